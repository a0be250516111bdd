"""nbval with the project's sanitiser: compared outputs are compared, and no value is masked."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

SANITIZER = Path(__file__).parents[2] / "notebooks" / "sanitize.cfg"
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
    "extra_line": ("a\nb", "a", False),
}


def cell_for(printed, held):
    made = new_code_cell(f"print({printed!r})", execution_count=1)
    made.metadata["tags"] = ["nbval-check-output"]
    made.outputs = [new_output("stream", name="stdout", text=held + "\n")]
    return made


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """One nbval run over all cases, a cell each: name -> whether it passed."""
    folder = tmp_path_factory.mktemp("sanitizer")
    cells = [cell_for(printed, held) for printed, held, _ in CASES.values()]
    nbformat.write(new_notebook(cells=cells), folder / "cases.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "-v"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    command += ["--nbval-sanitize-with", str(SANITIZER)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = re.findall(r"::Cell (\d+) (PASSED|FAILED)", done.stdout)
    return {list(CASES)[int(number)]: verdict == "PASSED" for number, verdict in lines}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_value_fails_and_an_address_does_not(verdicts, name):
    assert verdicts[name] is CASES[name][2]
