"""A learner who has seen the answer sets a guess and runs its cell again: the answer stays."""

import copy
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from labkit.labs.claims import BAR

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
ASKING = [path for path in NOTEBOOKS if "compare_guess" in path.read_text(encoding="utf-8")]
GUESS = "guess = None"
OFTEN = ("04",)  # where it was reported; a notebook takes half a minute


def measured(cell):
    """Return what a cell has measured: the lines of its claims, and that of a guess without it."""
    text = "".join(output.get("text", "") for output in cell.outputs)
    text = re.sub(rf"your guess {BAR} .*; (measured .*{BAR}).*", r"\1", text)
    return [line for line in text.splitlines() if BAR in line]


@pytest.mark.parametrize(
    "path",
    [
        path if path.stem[:2] in OFTEN else pytest.param(path, marks=pytest.mark.long)
        for path in ASKING
    ],
    ids=lambda path: path.stem,
)
def test_a_guess_made_late_changes_nothing(path, tmp_path, monkeypatch):
    """Its cell and the answer's are executed once more, and then the rest of the notebook."""
    notebook, cells, answers = nbformat.read(path, as_version=4), [], []
    for cell in notebook.cells:
        cells.append(cell)
        if GUESS in cell.source:
            late = copy.deepcopy(cell)
            late.source = cell.source.replace(GUESS, "guess = 7")
        if "compare_guess(guess" in cell.source:
            cells += [late] if GUESS in cell.source else [late, copy.deepcopy(cell)]
            answers.append((cell, cells[-1]))
    notebook.cells = cells
    monkeypatch.setenv("LABKIT_PRESET", "smoke")
    monkeypatch.setenv("LABKIT_RUN", str(tmp_path))
    NotebookClient(notebook, resources={"metadata": {"path": str(path.parent)}}).execute()
    assert any(measured(first) for first, _ in answers)  # at smoke not every question is asked
    for first, again in answers:
        assert measured(first) == measured(again)
