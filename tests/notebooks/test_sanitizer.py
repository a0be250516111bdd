"""What nbval may overlook in compared outputs (sanitize.cfg): addresses and measured columns."""

import re
from pathlib import Path

import nbformat
import pytest
from nbval.plugin import get_sanitize_patterns

from labkit.labs.claims import BAR, YES
from scripts.notebooks import COMPARED

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PATTERNS = dict(get_sanitize_patterns((NOTEBOOKS / "sanitize.cfg").read_text()))
ROW = f"[^{BAR}]*\\S +{BAR} [^{BAR}]*\\S *{BAR} [^{BAR}]*\\S *{YES}"
CASES = [  # (what the cell prints, what the notebook holds, whether nbval may pass)
    ("updates 469, images (32, 1, 28, 28)", "updates 469, images (32, 1, 28, 28)", True),
    ("<Net at 0x7f00aa11bb22>", "<Net at 0x7f99cc33dd44>", True),
    ("01-lab-20260102-030405", "01-lab-20251231-235959", True),
    ("equal: True", "equal: False", False),
    ("accuracy 0.98", "accuracy 0.97", False),
    ("seed 20260102, colour 0xff00", "seed 20260102, colour 0xff01", False),
    ("tolerance 1e-06", "tolerance 1e-05", False),
    ("<Net at 0x7f00aa11bb22> 3", "<Net at 0x7f00aa11bb22> 4", False),
    ("a\nb", "a", False),
    ("gap │ 2.1e-7   │ < 1e-5 ✓", "gap │ 3e-08 │ < 1e-5 ✓", True),
    ("gap │ 2.1e-7 │ < 1e-5 ✗", "gap │ 2.1e-7 │ < 1e-5 ✓", False),
    ("gap │ 2.1e-7 │ < 1e-4 ✓", "gap │ 2.1e-7 │ < 1e-5 ✓", False),
    ("gaps │ 2.1e-7 │ < 1e-5 ✓", "gap │ 2.1e-7 │ < 1e-5 ✓", False),
    ("a │ 1 │ 1 ✓", "a │ 1 │ 1 ✓\nb │ 1 │ 1 ✓", False),
]


def masked(text):
    for pattern, replacement in PATTERNS.items():
        text = re.sub(pattern, replacement, text)
    return text


@pytest.mark.parametrize(("printed", "held", "passes"), CASES)
def test_a_wrong_value_fails_and_an_address_does_not(printed, held, passes):
    assert (masked(printed) == masked(held)) is passes


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_nothing_is_masked_in_the_notebooks(path):
    """The exception is the measured column of a table of claims; each row of it ends in a mark."""
    for cell in nbformat.read(path, as_version=4).cells:
        if COMPARED in cell.metadata.get("tags", []):
            (output,) = cell.outputs
            text = output.text
            if "lab.check" in cell.source:
                for line in text.splitlines():
                    if BAR in line and not re.match(r".*expected$", line):
                        assert re.fullmatch(ROW, line), line
                text = text.replace(BAR, "|")
            assert masked(text) == text
