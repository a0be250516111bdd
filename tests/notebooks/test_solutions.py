"""Solution notebooks: all exercises of their lab, each solved so that its check passes."""

import os
import re

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.support.answers import LABS
from tests.support.solutions import FOLDER, code

SOLUTIONS = sorted(FOLDER.glob("*.ipynb"))
each = pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def printed(root):
    """What the cells of each notebook print, by path; all in one kernel, which begins anew."""
    cells, owners = [], []
    for path in SOLUTIONS:
        own = ["%reset -f", *code(path)]
        cells += map(new_code_cell, own)
        owners += [path] * len(own)
    joined = new_notebook(cells=cells)
    resources = {"metadata": {"path": FOLDER}}
    client = NotebookClient(joined, timeout=120, kernel_name="python3", resources=resources)
    client.execute(env=os.environ | {"PYTHONPATH": str(root)})
    texts = dict.fromkeys(SOLUTIONS, "")
    for path, cell in zip(owners, joined.cells, strict=True):
        texts[path] += "".join(out.text for out in cell.outputs if out.output_type == "stream")
    return texts


def test_every_lab_with_exercises_has_one():
    assert {path.stem for path in SOLUTIONS} == set(LABS)


@each
def test_every_exercise_is_solved_and_passes(path, printed):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    lines = re.findall(r"^(\w+): passed \((\d+) of \2 public checks\)$", printed[path], re.M)
    expected = [exercise.name for exercise in LABS[path.stem][0].EXERCISES]
    assert [name for name, _ in lines] == expected, printed[path]


@each
def test_its_lab_leads_to_it_and_back(path):
    lab = FOLDER.parent / path.name
    words, back = (
        "\n".join(cell.source for cell in nbformat.read(place, as_version=4).cells)
        for place in (lab, path)
    )
    assert f"](solutions/{path.name})" in words and f"](../{path.name})" in back
