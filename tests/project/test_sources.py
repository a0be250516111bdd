"""docs/sources.md has a row for each statement of the sources, and every name in it exists."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.texts import own_cells

ROWS_OF_DOCUMENT = {"000": 22, "001": 22, "002": 14, "003": 15, "004": 17}
STATE = re.compile(r"met|(differs|not reproduced here): \S.*")
ROW = re.compile(r"\| (\d{3}-\d{2}) \| (.+?) \| (.+?) \| (.+) \|")
SHOWN_BY = re.compile(r"`[^`]+`(, `[^`]+`)*")
# FILE::TEST, NOTEBOOK#text of one cell, FILE:NAME
TEST = re.compile(r"(tests/\S+/test_\w+\.py)((?:::\w+)+)")
CELL = re.compile(r"(notebooks/\w+\.ipynb)#(.+)")
NAME = re.compile(r"(labkit/\S+\.py):([\w.]+)")
ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")


class Row(NamedTuple):
    id: str
    says: str
    state: str
    shown_by: str

    @property
    def items(self) -> list[str]:
        return re.findall("`([^`]+)`", self.shown_by)


ROWS = [Row(*row.groups()) for row in map(ROW.fullmatch, TEXT.splitlines()) if row]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return functions, classes, methods as ``Class.method``, and names assigned at the top."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            functions = (each for each in node.body if isinstance(each, ast.FunctionDef))
            names |= {f"{node.name}.{each.name}" for each in functions}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {each.id for each in targets if isinstance(each, ast.Name)}
    return frozenset(names)


@cache
def cells_of(path: Path) -> list[str]:
    """Return the cells without the generated contents, which repeat the headings."""
    return [cell["source"] for cell in own_cells(path)]


def fault(item: str) -> str:
    """Return what is wrong with an entry of "shown by", or ""."""
    for form in (TEST, CELL, NAME):
        if match := form.fullmatch(item):
            break
    else:
        return f"{item} is no test, cell or name of labkit"
    path, name = ROOT / match[1], match[2]
    if not path.is_file():
        return f"{match[1]} is not there"
    if form is CELL:
        count = sum(name in cell for cell in cells_of(path))
        return "" if count == 1 else f"{count} cells of {match[1]} hold {name!r}"
    name = name.removeprefix("::").replace("::", ".")
    if name not in names_in(path):
        return f"{match[1]} has no {name}"
    if form is TEST and not name.rpartition(".")[2].lower().startswith("test"):
        return f"{name} of {match[1]} is no test"
    return ""


def test_every_document_has_its_rows_in_order():
    written = [line for line in TEXT.splitlines() if re.match(r"\| *\d{3} *-", line)]
    assert len(written) == len(ROWS) == 90
    expected = [
        f"{name}-{n:02}" for name, count in ROWS_OF_DOCUMENT.items() for n in range(1, count + 1)
    ]
    assert [row.id for row in ROWS] == expected
    for name, count in ROWS_OF_DOCUMENT.items():
        assert re.search(rf"^\| {name}, .* \| {count} \| ", TEXT, re.M), name


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_a_row_has_a_state_and_what_it_names_exists(row):
    assert STATE.fullmatch(row.state), row.state
    assert SHOWN_BY.fullmatch(row.shown_by), row.shown_by
    assert list(filter(None, map(fault, row.items))) == []
    # The name of a module or function alone is not evidence.
    assert any(TEST.fullmatch(item) or CELL.fullmatch(item) for item in row.items)
