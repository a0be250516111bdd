"""docs/sources.md has a row for each statement of the sources, and every name in it exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.texts import own_cells

ROWS_OF_DOCUMENT = {"000": 22, "001": 22, "002": 14, "003": 15, "004": 17}
STATE = re.compile(r"met|(differs|not reproduced here): \S.*")
ROW = re.compile(r"\| (\d{3}-\d{2}) \| .+? \| (.+?) \| (`[^`]+`(?:, `[^`]+`)*) \|")
# What shows it: FILE::TEST, NOTEBOOK#text of one cell, FILE:NAME
TEST = re.compile(r"(tests/\S+/test_\w+\.py)::((?:Test\w+::)?test_\w+)")
CELL = re.compile(r"(notebooks/\w+\.ipynb)#(.+)")
NAME = re.compile(r"(labkit/\S+\.py):([\w.]+)")
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
ROWS = [row.groups() for row in map(ROW.fullmatch, TEXT.splitlines()) if row]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return functions, classes, methods as ``Class.method``, and names assigned at the top."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for each in getattr(node, "targets", [getattr(node, "target", node)]):
            names.add(getattr(each, "name", getattr(each, "id", None)))
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{getattr(each, 'name', '')}" for each in node.body}
    return frozenset(names)


def fault(item: str) -> str:
    """Return what is wrong with an entry of "shown by", or ""."""
    found = [match for form in (TEST, CELL, NAME) if (match := form.fullmatch(item))]
    if not found:
        return f"{item} is no test, cell or name of labkit"
    path, name = ROOT / found[0][1], found[0][2]
    if not path.is_file():
        return f"{path} is not there"
    if found[0].re is CELL:
        count = sum(name in cell["source"] for cell in own_cells(path))
        return "" if count == 1 else f"{count} cells of {path} hold {name!r}"
    return "" if name.replace("::", ".") in names_in(path) else f"{path} has no {name}"


def test_every_document_has_its_rows_in_order():
    written = [line for line in TEXT.splitlines() if re.match(r"\| *\d{3} *-", line)]
    assert len(written) == len(ROWS) == 90
    counts = ROWS_OF_DOCUMENT.items()
    expected = [f"{name}-{number:02}" for name, last in counts for number in range(1, last + 1)]
    assert [row[0] for row in ROWS] == expected
    for name, count in counts:
        assert re.search(rf"^\| {name}, .* \| {count} \| ", TEXT, re.M), name


@pytest.mark.parametrize(("name", "state", "shown_by"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_has_a_state_and_what_it_names_exists(name, state, shown_by):
    assert STATE.fullmatch(state), state
    items = re.findall("`([^`]+)`", shown_by)
    assert list(filter(None, map(fault, items))) == []
    # The name of a module or function alone is not evidence.
    assert any(TEST.fullmatch(item) or CELL.fullmatch(item) for item in items)
