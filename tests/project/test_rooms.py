"""Imports between the rooms of the package run in one direction only."""

import re
from pathlib import Path

import pytest

LABKIT = Path(__file__).parents[2] / "labkit"
# Each room may import rooms on the floors below it, but none on its own floor.
FLOORS = (
    ("tools",),
    ("labs", "recipes"),
    ("upstream", "migration"),
    ("training", "algorithms"),
    ("optimizers",),
    ("steps",),
    ("data", "nets"),
    ("runtime",),
    ("ranks", "reference"),
    ("base",),
    ("errors",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# Anywhere in a module; a public name of labkit itself belongs to no room.
IMPORT = re.compile(r"^\s*(?:from|import) labkit(?:\.(\w+)| import (.+))", re.M)


@pytest.mark.parametrize("room", FLOOR)
def test_imports_between_rooms_run_one_way(room):
    paths = [*(LABKIT / room).rglob("*.py"), *LABKIT.glob(f"{room}.py")]
    assert paths
    for path in paths:
        found = IMPORT.findall(path.read_text(encoding="utf-8"))
        for other in {name for one, names in found for name in (one or names).split(", ")} - {room}:
            assert FLOOR.get(other, -1) > FLOOR[room], f"{path} imports {other}"
