"""nbval with the project's sanitiser: compared outputs are compared, and no value is masked."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbval.plugin import get_sanitize_patterns

from labkit.labs.claims import BAR, YES
from labkit.tools import notebook_files
from scripts.notebooks import COMPARED

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SANITIZER = NOTEBOOKS / "sanitize.cfg"
ROW = f"[^{BAR}]*\\S +{BAR} [^{BAR}]*\\S *{BAR} [^{BAR}]*\\S *{YES}"
CASES = {
    # name: (what the cell prints, what the notebook holds, whether nbval may pass)
    "same": ("updates 469, images (32, 1, 28, 28)", "updates 469, images (32, 1, 28, 28)", True),
    "address": ("<Net at 0x7f00aa11bb22>", "<Net at 0x7f99cc33dd44>", True),
    "run_folder": ("01-lab-20260102-030405", "01-lab-20251231-235959", True),
    "count": ("updates 469", "updates 468", False),
    "shape": ("(32, 1, 28, 28)", "(32, 1, 32, 32)", False),
    "truth": ("equal: True", "equal: False", False),
    "decimal": ("accuracy 0.98", "accuracy 0.97", False),
    "long_count": ("parameters 61684", "parameters 61706", False),
    "long_identifier": ("seed 20260102", "seed 20260103", False),
    "exponent": ("tolerance 1e-06", "tolerance 1e-05", False),
    "short_hex": ("colour 0xff00", "colour 0xff01", False),
    "sign": ("slope -0.5", "slope 0.5", False),
    "beside_an_address": ("<Net at 0x7f00aa11bb22> 3", "<Net at 0x7f00aa11bb22> 4", False),
    "extra_line": ("a\nb", "a", False),
    "missing_line": ("a", "a\nb", False),
    "nothing": ("", "updates 469", False),
    "claim_measured": ("gap │ 2.1e-7   │ < 1e-5 ✓", "gap │ 3e-08 │ < 1e-5 ✓", True),
    "claim_mark": ("gap │ 2.1e-7 │ < 1e-5 ✗", "gap │ 2.1e-7 │ < 1e-5 ✓", False),
    "claim_tolerance": ("gap │ 2.1e-7 │ < 1e-4 ✓", "gap │ 2.1e-7 │ < 1e-5 ✓", False),
    "claim_name": ("gaps │ 2.1e-7 │ < 1e-5 ✓", "gap │ 2.1e-7 │ < 1e-5 ✓", False),
    "claim_missing": ("a │ 1 │ 1 ✓", "a │ 1 │ 1 ✓\nb │ 1 │ 1 ✓", False),
}
# A cell prints at once, or in several messages of the kernel, which nbval joins.
AT_ONCE = "print({!r})"
IN_PARTS = """\
import time
first, second = {!r}.split("\\n")
print(first, flush=True)
time.sleep(0.3)  # longer than the kernel gathers what a cell prints
print(second)
"""
STREAMS = {
    # name: (code of the cell, number of parts in which the notebook holds its output)
    "one stream, held as one": (AT_ONCE, 1),
    "one stream, held in parts": (AT_ONCE, 2),
    "in parts, held as one": (IN_PARTS, 1),
    "in parts, held in parts": (IN_PARTS, 2),
}


def cell_for(source, *held):
    made = new_code_cell(source, execution_count=1)
    made.metadata["tags"] = ["nbval-check-output"]
    made.outputs = [new_output("stream", name="stdout", text=text) for text in held]
    return made


def cells():
    """Yield a cell for each of CASES and two for each of STREAMS, a right and a wrong one."""
    for printed, held, _ in CASES.values():
        yield cell_for(AT_ONCE.format(printed), held + "\n")
    for source, parts in STREAMS.values():
        for last in ("b\n", "c\n"):
            held = ("a\n" + last,) if parts == 1 else ("a\n", last)
            yield cell_for(source.format("a\nb"), *held)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Whether each cell passed in one nbval run over all of them, in order."""
    folder = tmp_path_factory.mktemp("sanitizer")
    nbformat.write(new_notebook(cells=list(cells())), folder / "cases.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "-v"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    command += ["--nbval-sanitize-with", str(SANITIZER)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = re.findall(r"::Cell (\d+) (PASSED|FAILED)", done.stdout)
    assert [int(number) for number, _ in lines] == list(range(len(CASES) + 2 * len(STREAMS)))
    return [verdict == "PASSED" for _, verdict in lines]


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_value_fails_and_an_address_does_not(verdicts, name):
    assert verdicts[list(CASES).index(name)] is CASES[name][2]


@pytest.mark.parametrize("name", STREAMS)
def test_how_a_stream_is_cut_does_not_matter_and_what_it_says_does(verdicts, name):
    place = len(CASES) + 2 * list(STREAMS).index(name)
    assert verdicts[place : place + 2] == [True, False]


def test_every_pattern_has_a_case_that_needs_it():
    """A new pattern needs a case that shows what it masks."""
    patterns = dict(get_sanitize_patterns(SANITIZER.read_text()))
    assert patterns
    for pattern in patterns:
        assert any(
            passes and printed != held and re.search(pattern, printed) and re.search(pattern, held)
            for printed, held, passes in CASES.values()
        ), pattern


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_nothing_is_masked_in_the_notebooks(path):
    """nbval compares one stream of text, all of it without masks.

    The exception is the measured column of a table of claims; each row of it ends in a mark.
    """
    patterns = dict(get_sanitize_patterns(SANITIZER.read_text()))
    compared = 0
    for cell in nbformat.read(path, as_version=4).cells:
        if COMPARED in notebook_files.tags(cell):
            assert [(o.output_type, o.name) for o in cell.outputs] == [("stream", "stdout")]
            text = cell.outputs[0].text
            if "lab.check" in cell.source:
                for line in text.splitlines():
                    if BAR in line and not re.match(r"your guess|.*expected$", line):
                        assert re.fullmatch(ROW, line), line
                text = text.replace(BAR, "|")
            assert not [p for p in patterns if re.search(p, text)]
            compared += 1
    assert compared
