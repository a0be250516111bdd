"""Solution notebooks: all exercises of their lab, each solved so that its check passes."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.answers import LABS

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SOLUTIONS = sorted((NOTEBOOKS / "solutions").glob("*.ipynb"))
each = pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)


def test_there_are_some():
    assert SOLUTIONS


@each
def test_every_exercise_is_solved_and_passes(path, root):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    client.execute(env=os.environ | {"PYTHONPATH": str(root)})
    printed = "".join(
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == "stream"
    )
    passed = re.findall(r"^(\w+): passed \((\d+) of \2 public checks\)$", printed, re.M)
    expected = [exercise.name for exercise in LABS[path.stem][0].EXERCISES]
    assert [name for name, _ in passed] == expected, printed


@each
def test_its_lab_leads_to_it_and_back(path):
    lab = NOTEBOOKS / path.name
    text = {place: nbformat.read(place, as_version=4) for place in (lab, path)}
    words = {
        place: "\n".join(cell.source for cell in notebook.cells) for place, notebook in text.items()
    }
    assert f"](solutions/{path.name})" in words[lab] and f"](../{path.name})" in words[path]
