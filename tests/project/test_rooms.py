"""The package has few rooms, and imports between them run in one direction only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LABKIT = Path(__file__).parents[2] / "labkit"
# Each room may import rooms on the floors below it, but none on its own floor.
FLOORS = (
    ("tools", "demos"),
    ("labs", "recipes"),
    ("upstream", "migration"),
    ("training", "algorithms"),
    ("steps",),
    ("data", "nets"),
    ("runtime",),
    ("ranks", "reference"),
    ("base",),
    ("errors",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(LABKIT).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the rooms that a module imports, anywhere in the module."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("labkit."))


def test_there_are_at_most_18_entries_and_each_has_its_floor():
    entries = {path.name.removesuffix(".py") for path in LABKIT.glob("[!_]*")} - {"py.typed"}
    assert entries == FLOOR.keys() and len(entries | {"__init__", "py.typed"}) <= 18


@pytest.mark.parametrize("room", FLOOR)
def test_imports_between_rooms_run_one_way(room):
    for path in (path for path in LABKIT.rglob("*.py") if room_of(path) == room):
        for other in set(imported(ast.parse(path.read_text(encoding="utf-8")))) - {room}:
            # A public name of labkit itself belongs to no room.
            assert FLOOR.get(other, -1) > FLOOR[room], f"{path} imports {other}"


def test_no_module_has_more_than_300_lines():
    lines = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in LABKIT.rglob("*.py")
    }
    assert {path: count for path, count in lines.items() if count > 300} == {}


def test_labkit_itself_imports_no_room_until_a_name_is_asked_for():
    tree = ast.parse((LABKIT / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    tree.body.remove(block)
    assert list(imported(tree)) == []


def test_no_algorithm_prints():
    for path in (LABKIT / "algorithms").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"), (
                path
            )
