"""Imports between the rooms of the package run in one direction only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LABKIT = Path(__file__).parents[2] / "labkit"
# Each room may import rooms on the floors below it, but none on its own floor.
FLOORS = (
    ("tools",),
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


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the rooms that a module imports, anywhere in the module."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("labkit."))


@pytest.mark.parametrize("room", FLOOR)
def test_imports_between_rooms_run_one_way(room):
    paths = [*(LABKIT / room).rglob("*.py"), *LABKIT.glob(f"{room}.py")]
    assert paths
    for path in paths:
        for other in set(imported(ast.parse(path.read_text(encoding="utf-8")))) - {room}:
            # A public name of labkit itself belongs to no room.
            assert FLOOR.get(other, -1) > FLOOR[room], f"{path} imports {other}"
