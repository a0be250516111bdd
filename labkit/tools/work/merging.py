"""Merge three versions of a notebook cell by cell; nothing that a learner wrote is lost."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.tools.notebook_files import digest, tags

Cell = Mapping[str, Any]


class CannotMerge(Exception):
    """The cells of two versions cannot be matched; the message says why."""


@dataclass
class Merged:
    """The cells of a merge, and how those that differ were resolved.

    Attributes:
        cells: the merged cells, in order
        taken: ids of the cells that follow the project: changed, new or removed there
        conflicts: first lines of the cells that both sides changed; the learner's are kept
    """

    cells: list[Cell] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


def merge(base: Mapping[str, str], mine: Sequence[Cell], theirs: Sequence[Cell]) -> Merged:
    """Return ``mine`` with the changes that ``theirs`` made since both were ``base``.

    A cell that the learner left alone follows the project. A cell that the learner changed is kept,
    one that the learner deleted stays deleted, and the learner's own cells stay after the cell that
    they follow.

    Args:
        base: id -> ``digest`` of every cell as it was copied, in order
        mine: the learner's cells
        theirs: the project's cells now

    Raises:
        CannotMerge: if the cells have lost their ids, or both sides moved cells
    """
    own, project = _by_id(mine), {cell["id"]: cell for cell in theirs}
    if not base.keys() & own.keys():
        raise CannotMerge("its cells have other ids than those that were copied")
    merged = Merged()
    chosen = {
        name: cell
        for name in dict.fromkeys([*project, *own])
        if (cell := _choose(name, base, own, project, merged)) is not None
    }
    order = _weave(*_orders(base, own, project), keep=chosen)
    merged.cells = [chosen[name] for name in order]
    return merged


def _choose(
    name: str,
    base: Mapping[str, str],
    own: Mapping[str, Cell],
    project: Mapping[str, Cell],
    merged: Merged,
) -> Cell | None:
    """Return the version of a cell to keep, or None to omit the cell."""
    my_cell, their_cell = own.get(name), project.get(name)
    was = base.get(name)
    changed_there = their_cell is None or digest(their_cell) != was
    if my_cell is None:
        if was is None:
            merged.taken.append(name)
            return their_cell
        if their_cell is not None and changed_there:
            merged.conflicts.append(f"{_first_line(their_cell)} (deleted in the copy)")
        return None
    if digest(my_cell) == was:  # the learner left it alone
        if changed_there:
            merged.taken.append(name)
            return their_cell
        return my_cell
    if was is not None and changed_there:
        if their_cell is None:
            merged.conflicts.append(f"{_first_line(my_cell)} (removed in the project)")
        elif digest(their_cell) != digest(my_cell):
            merged.conflicts.append(_first_line(my_cell))
    return my_cell


def _orders(
    base: Iterable[str], own: Mapping[str, Cell], project: Mapping[str, Cell]
) -> tuple[list[str], list[str]]:
    """Return the ids in the order to follow, then the ids whose neighbours place the rest."""
    common = set(base) & own.keys() & project.keys()
    was, mine, theirs = ([name for name in ids if name in common] for ids in (base, own, project))
    if mine == was:
        return list(project), list(own)
    if theirs in (was, mine):
        return list(own), list(project)
    raise CannotMerge("cells were moved both in the copy and in the project")


def _weave(first: Iterable[str], second: Iterable[str], keep: Iterable[str]) -> list[str]:
    """Return ``first``, with ids that only ``second`` has placed after their neighbour there."""
    order = [name for name in first if name in keep]
    place = 0
    for name in second:
        if name not in keep:
            continue
        if name not in order:
            order.insert(place, name)
        place = order.index(name) + 1
    return order


def _by_id(cells: Sequence[Cell]) -> dict[str, Cell]:
    """Return id -> cell; a cell without an id, or with a duplicate id, gets a new one."""
    by_id: dict[str, Cell] = {}
    for number, cell in enumerate(cells):
        name = cell.get("id")
        if name is None or name in by_id:
            name = f"own-{number}-{digest(cell)}"
            cell = {**cell, "id": name}
        by_id[name] = cell
    return by_id


def _first_line(cell: Cell) -> str:
    if "parameters" in tags(cell):
        return "the parameters cell"
    lines = [line for line in cell["source"].splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("# ")] or lines or ["(empty)"]
    return lines[0]
