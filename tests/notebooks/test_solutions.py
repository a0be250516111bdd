"""Solution notebooks solve all exercises of their lab so that each check passes."""

import re

import nbformat
import pytest

from tests.support.answers import LABS
from tests.support.solutions import FOLDER, code

SOLUTIONS = sorted(FOLDER.glob("*.ipynb"))
each = pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)


def test_every_lab_with_exercises_has_one():
    assert {path.stem for path in SOLUTIONS} == set(LABS)


@each
def test_every_exercise_is_defined_once_and_checked_in_its_cell(path):
    """Exercises are in the lab's order; tests/labs/exercises executes the cells, and they pass."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    checked = []
    for source in code(path):
        defined = re.findall(r"^def (\w+)\(", source, re.M)
        names = re.findall(r'^passed = check\("(\w+)", \1\)$', source, re.M)
        assert names == defined[-1:] and source.count("check(") == len(names), source
        checked += [(name, set(defined)) for name in names]
    expected = [exercise.name for exercise in LABS[path.stem][0].EXERCISES]
    assert [name for name, _ in checked] == expected
    owners = [name for _, defined in checked for name in defined]
    assert len(owners) == len(set(owners)), "a later cell would replace what an earlier one uses"


@each
def test_its_lab_leads_to_it_and_back(path):
    lab = FOLDER.parent / path.name
    words, back = (
        "\n".join(cell.source for cell in nbformat.read(place, as_version=4).cells)
        for place in (lab, path)
    )
    assert f"](solutions/{path.name})" in words and f"](../{path.name})" in back
