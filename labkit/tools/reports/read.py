"""Read run folders into plain data. Anything missing or damaged in one is named, never guessed.

Three kinds of folder are read: a `labkit run`'s (with a folder for each lab), a single lab's, and
a sweep's (sweep.json, sweep.csv, and a lab's folder for each run below runs/).
"""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.base.files import natural_order, refuse_links
from labkit.base.input_files import first_bytes, read_text, usable_name
from labkit.errors import InputError
from labkit.labs.run_files import (
    FIGURES,
    KERNEL_LOG,
    LOG,
    RECORDS,
    RESULTS,
    RUN,
    SWEEP,
    SWEEP_RUNS,
    SWEEP_TABLE,
    last_lines,
    read_json,
    read_results,
    status_of,
)
from labkit.training.records import read_records

_LOG_LINES = 15
_TABLE_BYTES = 8 << 20  # a row of sweep.csv has some 100
# Columns times lines: a line of one byte has a cell in every column.
_TABLE_CELLS = 300_000
_PICTURE_BYTES = 32 << 20  # of all figures in one folder; a lab's own have 1 MB
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass
class LabRun:
    """One lab, executed once.

    Attributes:
        label: label of its run, unique on a page.
        lab: its name; the folder's name if results.json has none.
        folder: the folder that it has written.
        results: the usable part of results.json.
        status: passed, failed, running, interrupted, unknown, or "not started".
        figures: the pictures in figures/ that are PNG files, by name.
        problems: what is missing or damaged in the folder, one sentence each.
    """

    label: str
    lab: str
    folder: Path
    results: dict[str, Any] = field(default_factory=dict)
    status: str = "unknown"
    figures: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def notebook(self) -> Path | None:
        """The executed notebook; None if there is none, or several and results.json names none."""
        # Only the name: a damaged file must not lead out of the folder.
        name = Path(self.results.get("notebook", "")).name
        named = self.folder / name
        if usable_name(name) and named.suffix == ".ipynb" and named.is_file():
            return named
        notebooks = _files(self.folder, "*.ipynb")
        return notebooks[0] if len(notebooks) == 1 else None

    def records(self) -> dict[str, list[dict]]:
        """Return file -> rows for every records.csv in the folder; damage becomes a problem."""
        tables = {}
        for path in _files(self.folder, f"**/{RECORDS}"):
            name = str(path.relative_to(self.folder))
            try:
                rows = read_records(path).rows
            except (InputError, OSError, ValueError, csv.Error) as error:
                problem = f"{name} cannot be read: {error}"
                if problem not in self.problems:
                    self.problems.append(problem)
                continue
            if rows:
                tables[name] = rows
        return tables

    def last_lines(self) -> list[str]:
        """Return the last lines that the lab wrote: in results.json's error, else in its log."""
        kept = self.results.get("error", {}).get("log")
        lines = kept if isinstance(kept, list) else str(kept or "").splitlines()
        # A single line may be the name of the log instead of its contents.
        if len(lines) == 1 and Path(str(lines[0])).name in (LOG, KERNEL_LOG):
            lines = last_lines(self.folder / Path(str(lines[0])).name, _LOG_LINES)
        for name in (KERNEL_LOG, LOG):
            lines = lines or last_lines(self.folder / name, _LOG_LINES)
        return [str(line) for line in lines][-_LOG_LINES:]


@dataclass
class RunFolder:
    """The folder of a run, a lab or a sweep.

    Attributes:
        label: its name on a page.
        folder: its path.
        kind: "run", "lab" or "sweep".
        labs: the labs that were executed in it.
        about: contents of run.json or sweep.json.
        table: rows of sweep.csv, text by column; empty for other kinds.
        figures: a sweep's own figures.
        problems: what is missing or damaged in it, one sentence each.
    """

    label: str
    folder: Path
    kind: str
    labs: list[LabRun]
    about: dict[str, Any] = field(default_factory=dict)
    table: list[dict[str, str]] = field(default_factory=list)
    figures: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_all(folders: Sequence[str | os.PathLike]) -> list[RunFolder]:
    """Read every folder; labels are the folders' names, extended if two are the same.

    Raises:
        InputError: if a folder does not exist, holds no run, or is named twice.
    """
    places = [Path(folder).resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            raise InputError(f"RUN: expected each folder once, got {str(folder)!r} twice")
    runs = [read(place, label) for place, label in zip(places, _labels(places), strict=True)]
    for run in runs if len(runs) > 1 else ():
        for lab in run.labs if run.kind == "sweep" else ():
            lab.label = f"{run.label}: {lab.label}"
    return runs


def read(folder: str | os.PathLike, label: str | None = None) -> RunFolder:
    """Read the folder of a run, a lab or a sweep.

    Raises:
        InputError: if it holds no run, or contains a link.
    """
    place = Path(folder).resolve()
    if not os.path.isdir(place):  # pathlib's raises if a name is too long
        raise InputError(f"no run at {folder}: expected a folder that `labkit run` has written")
    # Before links are refused: a folder of runs contains labkit's own link, latest.
    _refuse_without_run(folder, place)
    refuse_links(place)
    label = label or place.name
    if (place / SWEEP).exists() or (place / SWEEP_TABLE).exists():
        return _read_sweep(place, label)
    if is_lab_folder(place):
        return RunFolder(label, place, "lab", [read_lab(place, label)])
    return _read_run(place, label)


def read_lab(folder: Path, label: str) -> LabRun:
    """Read a lab's folder, which may not exist yet."""
    if not is_lab_folder(folder):
        return LabRun(label, folder.name, folder, status="not started")
    results, problems = read_results(folder)
    if not (folder / RESULTS).exists():
        problems.append(f"{RESULTS} is missing: the lab has not finished")
    figures, more = _pictures(folder)
    lab = results.get("lab") or folder.name
    return LabRun(label, lab, folder, results, status_of(results), figures, problems + more)


def is_lab_folder(folder: Path) -> bool:
    """Return whether one lab has written, or is writing, to ``folder``."""
    if any((folder / name).exists() for name in (RESULTS, RECORDS, LOG)):
        return True
    return bool(_files(folder, "*.ipynb"))


def _read_run(place: Path, label: str) -> RunFolder:
    about, problems = read_json(place / RUN)
    asked = about.get("labs")
    names = [Path(str(name)).name for name in asked] if isinstance(asked, list) else []
    for name in names:
        if not usable_name(name):
            problems.append(f"{RUN} names the lab {name[:60]!r}, which is not a folder name")
    there = [path.name for path in _folders(place) if is_lab_folder(path)]
    names = list(dict.fromkeys([*filter(usable_name, names), *there]))
    labs = [read_lab(place / name, label) for name in names]
    return RunFolder(label, place, "run", labs, about, problems=problems)


def _read_sweep(place: Path, label: str) -> RunFolder:
    about, problems = read_json(place / SWEEP)
    rows: list[dict[str, str]] = []
    try:
        lines = read_text(place / SWEEP_TABLE, _TABLE_BYTES).splitlines(keepends=True)
        table = csv.DictReader(lines)
        columns = len(table.fieldnames or ())
        if columns * len(lines) > _TABLE_CELLS:
            raise InputError(
                f"{len(lines)} lines of {columns} columns; at most {_TABLE_CELLS} cells"
            )
        rows = [{name: str(value or "") for name, value in row.items() if name} for row in table]
    except FileNotFoundError:
        problems.append(f"{SWEEP_TABLE} is missing: the sweep has not finished")
    except (OSError, ValueError, csv.Error) as error:
        problems.append(f"{SWEEP_TABLE} cannot be read: {error}")
    folders = [path for path in _folders(place / SWEEP_RUNS) if is_lab_folder(path)]
    labs = [read_lab(path, path.name) for path in folders]
    figures, more = _pictures(place)
    return RunFolder(label, place, "sweep", labs, about, rows, figures, problems + more)


def _refuse_without_run(folder: str | os.PathLike, place: Path) -> None:
    named = any(os.path.lexists(place / name) for name in (RUN, SWEEP, SWEEP_TABLE))
    inside = _folders(place)
    # A user's own training may be among the runs, as a lab's folder is in a run.
    has_labs = not (place / "latest").is_symlink() and any(map(is_lab_folder, inside))
    if named or has_labs or is_lab_folder(place):
        return
    runs = [path.name for path in inside if any(map(is_lab_folder, (path, *_folders(path))))]
    hint = f" Did you mean one of the runs in it: {', '.join(runs[-5:])}?" if runs else ""
    raise InputError(
        f"{folder} holds no run (no run.json, results.json, notebook or records.csv).{hint}"
    )


def _labels(places: Sequence[Path]) -> list[str]:
    for parts in range(1, max(len(place.parts) for place in places) + 1):
        labels = ["/".join(place.parts[-parts:]) for place in places]
        if len(set(labels)) == len(labels):
            break
    return labels


def _folders(place: Path) -> list[Path]:
    try:
        paths = [path for path in place.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []
    return sorted(paths, key=natural_order)


def _files(folder: Path, pattern: str) -> list[Path]:
    """Return the matching files of ``folder``, without those hidden or still being written."""
    try:
        paths = sorted(path for path in folder.glob(pattern) if path.is_file())
    except OSError:
        return []
    return [path for path in paths if not path.name.startswith(".")]


def _pictures(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the PNG files in ``figures`` of a folder, and a sentence for each one left out."""
    pictures, problems, left = [], [], _PICTURE_BYTES
    for path in _files(folder / FIGURES, "*.png"):
        name = f"{FIGURES}/{path.name}"
        if first_bytes(path, len(_PNG)) != _PNG:
            problems.append(f"{name} is not a PNG picture")
        elif (size := path.stat().st_size) > left:
            problems.append(f"{name} is left out: it has {size} bytes, {left} are left")
        else:
            left -= size
            pictures.append(path)
    return pictures, problems
