"""Copy the project's notebooks for a learner, and merge the project's later changes into them.

What was copied is recorded in the copy's own metadata (``labkit_work``), so that it moves along.
"""

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.base.arguments import wrong
from labkit.base.files import whole_file
from labkit.errors import InputError
from labkit.tools import notebook_files
from labkit.tools.labs import Lab
from labkit.tools.notebook_files import digest, relinked
from labkit.tools.work import merging

FOLDER = "work"
BACKUPS = "before_update"
_BASE = "labkit_work"


@dataclass(frozen=True)
class Copy:
    """The result for one copy.

    Attributes:
        path: path of the copy
        state: "copied" (new), "unchanged" (the project's notebook is the one that was copied),
            "behind" (it has changed since), "updated" (merged), "left" (it cannot be merged)
        notes: further messages for the user, one line each
    """

    path: Path
    state: str
    notes: tuple[str, ...] = ()


def work_folder(project: Path, folder: Path | None) -> Path:
    """Return the folder of the copies, by default ``work`` in the project.

    Raises:
        InputError: if it is a file, or lies in the project's notebooks/ or runs/notebooks/
    """
    place = (project / FOLDER) if folder is None else Path(folder).resolve()
    for reserved in (project / "notebooks", project / "runs" / "notebooks"):
        if place == reserved or reserved in place.parents:
            expected = "a folder of your own, and not where the project writes"
            raise wrong("--folder", str(place), expected)
    if place.exists() and not place.is_dir():
        raise wrong("--folder", str(place), "a folder, or a new name")
    return place


def make(project: Path, folder: Path, labs: Sequence[Lab], *, update: bool = False) -> list[Copy]:
    """Copy ``labs`` to ``folder`` if they have no copy yet; with ``update``, merge existing copies.

    Outputs are left out: a copy shows only what its owner's own code printed. Without ``update``
    no existing file is written to. With it, the file is first backed up in ``before_update/``;
    if both sides changed a cell, the copy keeps its own, and the project's notebook is written
    beside it.

    Raises:
        InputError: if a file cannot be read or written
    """
    return [_copy(project, folder / lab.path.name, lab, update) for lab in labs]


def _copy(project: Path, path: Path, lab: Lab, update: bool) -> Copy:
    theirs = as_copied(project, lab, path.parent)
    if not os.path.lexists(path):
        notebook_files.write(path, theirs)
        return Copy(path, "copied")
    try:
        mine = notebook_files.read(path)
    except InputError as error:
        return Copy(path, "left", (str(error),))
    base = _base_of(mine)
    if base is None:
        note = "not made by `labkit work`, or its metadata was removed: nothing to compare with"
        return Copy(path, "left", (note, _beside(path, theirs)) if update else (note,))
    if base == _base_of(theirs):
        return Copy(path, "unchanged")
    if not update:
        changed = sum(base.get(cell["id"]) != digest(cell) for cell in theirs["cells"])
        removed = len(base.keys() - {cell["id"] for cell in theirs["cells"]})
        note = f"{changed + removed} cells changed in the project since it was copied"
        return Copy(path, "behind", (note,))
    try:
        merged = merging.merge(base, mine["cells"], theirs["cells"])
    except merging.CannotMerge as error:
        return Copy(path, "left", (str(error), _beside(path, theirs)))
    return Copy(path, "updated", _update(path, mine, merged, theirs))


def _update(
    path: Path, mine: dict[str, Any], merged: merging.Merged, theirs: dict[str, Any]
) -> tuple[str, ...]:
    """Write the merged notebook after a backup; return messages for the user."""
    kept = _keep(path)
    mine["cells"] = merged.cells
    mine["metadata"][_BASE] = theirs["metadata"][_BASE]
    mine["nbformat"], mine["nbformat_minor"] = theirs["nbformat"], theirs["nbformat_minor"]
    notebook_files.write(path, mine)
    notes = [f"{len(merged.taken)} cells from the project; as it was before: {kept}"]
    notes += [f"yours stays, the project's changed too: {line}" for line in merged.conflicts]
    return tuple(notes + [_beside(path, theirs)] if merged.conflicts else notes)


def as_copied(project: Path, lab: Lab, folder: Path) -> dict[str, Any]:
    """Return the project's notebook as copied to ``folder``: without outputs, links adjusted."""
    notebook = notebook_files.read(lab.path)
    for cell in notebook["cells"]:
        if "id" not in cell:
            raise InputError(f"{lab.path} has a cell without id; expected format 4.5")
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
        elif cell["cell_type"] == "markdown":
            cell["source"] = relinked(cell["source"], lab.path.parent, folder, with_labs=True)
    # The stamp describes the outputs, which are left out.
    notebook["metadata"].pop("labkit", None)
    cells = [[cell["id"], digest(cell)] for cell in notebook["cells"]]
    notebook["metadata"][_BASE] = {"copied_from": lab.name, "cells": cells}
    return notebook


def _base_of(notebook: Mapping[str, Any]) -> dict[str, str] | None:
    """Return id -> digest of the cells as they were copied; None if that is not known."""
    try:
        return {name: was for name, was in notebook["metadata"][_BASE]["cells"]}
    except (KeyError, TypeError, ValueError):
        return None


def _keep(path: Path) -> str:
    """Copy the bytes of ``path`` to the folder of backups; return the backup's relative path."""
    wanted = path.parent / BACKUPS / f"{path.stem}-{time.strftime('%Y%m%d-%H%M%S')}.ipynb"
    place = next(free for free in _numbered(wanted) if not os.path.lexists(free))
    with whole_file(place, "the backup") as temporary:
        temporary.write_bytes(path.read_bytes())
    return f"{BACKUPS}/{place.name}"


def _beside(path: Path, theirs: dict[str, Any]) -> str:
    """Write the project's notebook beside the copy, once; return a message that says so."""
    wanted = _numbered(path.with_name(f"{path.stem}.project.ipynb"))
    place = next(each for each in wanted if not os.path.lexists(each) or _is(each, theirs))
    if not os.path.lexists(place):
        notebook_files.write(place, theirs)
    return f"the project's notebook is beside it: {place.name}"


def _is(path: Path, notebook: Mapping[str, Any]) -> bool:
    try:
        return notebook_files.read(path) == notebook
    except InputError:
        return False


def _numbered(path: Path) -> Iterator[Path]:
    """Yield ``path``, then the same with -2, -3, ... at the end of its name."""
    yield path
    yield from (path.with_name(f"{path.stem}-{n}{path.suffix}") for n in itertools.count(2))
