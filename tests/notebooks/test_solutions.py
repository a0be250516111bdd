"""Solution notebooks solve all exercises of their lab so that each check passes."""

import re

import nbformat
import pytest

from tests.support.answers import FOLDER, LABS, code


@pytest.mark.parametrize("lab", LABS)
def test_every_exercise_is_defined_once_and_checked_in_its_cell(lab):
    """Exercises are in the lab's order; tests/labs/exercises executes the cells, and they pass."""
    path = FOLDER / f"{lab}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    checked = []
    for source in code(path):
        defined = re.findall(r"^def (\w+)\(", source, re.M)
        names = re.findall(r'^passed = check\("(\w+)", \1\)$', source, re.M)
        assert names == defined[-1:] and source.count("check(") == len(names), source
        checked += [(name, set(defined)) for name in names]
    assert [name for name, _ in checked] == [each.name for each in LABS[lab][0].EXERCISES]
    owners = [name for _, defined in checked for name in defined]
    assert len(owners) == len(set(owners)), "a later cell would replace what an earlier one uses"
