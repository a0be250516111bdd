"""A learner who has seen the answer sets a guess and runs its cell again: the answer stays."""

import copy
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from labkit.labs.claims import BAR

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
GUESS = re.compile(r"^guess\b(.*? = )None", re.M)  # "guess = None", "guess, curves = None, {}"


def with_guesses(cells):
    """Return cells, and (place of an answer, place of its repetition) of each guess made late."""
    made, places, asked = [], [], None
    for cell in cells:
        made.append(cell)
        if GUESS.search(cell.source):
            asked = copy.deepcopy(cell)
            asked.source = GUESS.sub(r"guess\g<1>7", cell.source)
        if "compare_guess(guess" in cell.source:
            answer = len(made) - 1
            made.append(asked)
            if not GUESS.search(cell.source):
                made.append(copy.deepcopy(cell))
            places.append((answer, len(made) - 1))
    return made, places


def measured(cell):
    """Return what a cell has measured: the lines of its claims, and that of a guess without it."""
    text = "".join(output.get("text", "") for output in cell.outputs)
    text = re.sub(rf"your guess {BAR} .*; (measured .*{BAR}).*", r"\1", text)
    return [line for line in text.splitlines() if BAR in line]


@pytest.mark.parametrize(
    "path",
    [path for path in NOTEBOOKS if "compare_guess" in path.read_text(encoding="utf-8")],
    ids=lambda path: path.stem,
)
def test_a_guess_made_late_changes_nothing(path, tmp_path, monkeypatch):
    """Its cell and the answer's are executed once more, and then the rest of the notebook."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells, places = with_guesses(code)
    monkeypatch.setenv("LABKIT_PRESET", "smoke")
    monkeypatch.setenv("LABKIT_RUN", str(tmp_path))
    NotebookClient(notebook, resources={"metadata": {"path": str(path.parent)}}).execute()
    answers = [[measured(notebook.cells[place]) for place in pair] for pair in places]
    assert answers
    for first, second in answers:
        assert first and first == second
