"""Curves of a running or finished run: as text, and as a figure in a notebook.

Every look reads everything again from the run's folder: the run may be on another machine, the
records may appear later, their last line may be incomplete, the runner may have been killed.
"""

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.base import arguments
from labkit.base.arguments import names_checked
from labkit.base.printable import printable
from labkit.labs.run import opened_here
from labkit.labs.run_files import KERNEL_LOG, LOG, last_lines, other_host
from labkit.tools.reports import curves
from labkit.tools.reports.read import LabRun, RunFolder, read
from labkit.tools.running import request

# Seconds after its last written file for which a run without results.json, or between two labs,
# counts as running. Preparing data and starting a kernel took up to 40 s on two busy cores.
PATIENCE = 90.0
_MOST_RUNS = 10_000  # in a grid that is listed: a damaged one may have any number
_CLEAR = "\x1b[H\x1b[2J"


@dataclass(frozen=True)
class Look:
    """One look at a run.

    Attributes:
        lab: the running lab; otherwise the last one that has written anything.
        status: running, passed, failed or interrupted.
        where: one line: lab, status, place among the labs.
        rows: the lab's longest records; [] if it has no records yet.
        last: the last line that the lab printed, or its progress.
    """

    lab: LabRun | None
    status: str
    where: str
    rows: list[dict]
    last: str


def look(folder: str | os.PathLike) -> Look:
    """Read the state of a run; raise ``InputError`` if ``folder`` holds no run."""
    run = read(folder)
    labs, names = _asked_for(run)
    status = _status(run, labs, names)
    lab = _current(labs)
    if lab is None:
        return Look(None, status, f"{run.label}: {status}, nothing written yet", [], "")
    records = lab.records()
    rows = max(records.values(), key=len, default=[])
    places = [other.folder for other in labs]
    place = f" ({places.index(lab.folder) + 1} of {len(places)})" if len(places) > 1 else ""
    lines = last_lines(lab.folder / LOG, 1) or last_lines(lab.folder / KERNEL_LOG, 1)
    where = f"{lab.lab}{place}: {lab.status if status != 'running' else status}"
    if lab.status == "running" and (host := other_host(lab.results)):
        where += f" on {host}"
    if status == "interrupted" and lab.status not in ("interrupted", "failed"):
        where += "; the run was interrupted"
    return Look(lab, status, where, rows, lines[-1] if lines else "")


def as_text(current: Look, width: int = 80) -> str:
    """Return a look as text: where it is, a chart of each main column, the last line."""
    parts = [current.where]
    columns = curves.columns(current.rows)
    for name in [name for name in columns if name in ("loss", "accuracy")] or columns[:1]:
        points = curves.points(current.rows, "update", name)
        parts.append(curves.chart(points, curves.with_unit(name), "update", width))
    if not current.rows:
        parts.append("no records yet" if current.status == "running" else "no records")
    if current.last:
        parts.append(current.last.strip())
    return printable("\n".join(parts))


def follow(folder: str | os.PathLike, every: float, show: Callable[[Look], None]) -> str:
    """Call ``show`` with a look every ``every`` seconds until the run ends; return its status.

    A look is shown only if it differs from the last. A run that this process executes cannot
    advance while it is being followed: it is shown once, and "running" is returned.

    Raises:
        InputError: if ``folder`` holds no run, or ``every`` is not above 0.
    """
    arguments.number("every", every, above=0)
    before = None
    while True:
        current = look(folder)
        state = (current.where, len(current.rows), current.last)
        if state != before:
            show(current)
            before = state
        own = current.lab is not None and opened_here(current.lab.folder)
        if own or current.status != "running":
            return current.status
        time.sleep(every)


def in_terminal(folder: str | os.PathLike, every: float, once: bool) -> str:
    """Print looks until the run ends, or one if ``once`` is set; return the run's status."""
    width = min(shutil.get_terminal_size().columns, 100)
    if once:
        current = look(folder)
        print(as_text(current, width))
        return current.status
    redraws = sys.stdout.isatty()

    def show(current: Look) -> None:
        if redraws:
            print(_CLEAR + as_text(current, width), flush=True)
        else:
            # In a pipe, one line for each look: the chart follows at the end.
            text = f"{current.where}  {_numbers(current)}  {current.last.strip()}".rstrip()
            print(printable(text), flush=True)

    status = follow(folder, every, show)
    if not redraws:
        print(as_text(look(folder), width), flush=True)
    return status


@names_checked
def attach(folder: str | os.PathLike, every: float = 2.0) -> str:
    """Draw the curves of a run in a notebook, and update them until it ends; return its status.

    The figure is replaced in place; interrupting the cell does not affect the run. Outside a
    notebook, text is printed instead.

    Args:
        folder: folder of a run, a lab or a sweep; the running lab is shown.
        every: seconds between two looks, above 0.

    Returns:
        "passed", "failed" or "interrupted" when the run ends; "running" at once for the run of
        this very notebook.

    Raises:
        InputError: if ``folder`` holds no run, or ``every`` is not above 0.
    """
    if "ipykernel" not in sys.modules:
        return in_terminal(folder, every, once=False)
    from IPython.display import Image, display

    handle = None

    def show(current: Look) -> None:
        nonlocal handle
        data, alt = _figure(current), as_text(current)
        picture = Image(data=data, format="png", alt=alt.splitlines()[0])
        if handle is None:
            handle = display(picture, display_id=True)
        else:
            handle.update(picture)

    return follow(folder, every, show)


def _figure(current: Look) -> bytes:
    """Return the first columns of the records as a PNG, loss and accuracy side by side."""
    from labkit.labs.figures import common as plots

    names = curves.columns(current.rows)[:2]
    figure, grid = plots.axes(1, max(1, len(names)))
    axes = [grid] if len(names) < 2 else list(grid)
    for axis, name in zip(axes, names, strict=False):
        points = curves.points(current.rows, "update", name)
        axis.plot(*zip(*points, strict=True) if points else ((), ()), color=plots.BLUE)
        axis.set(xlabel="update", ylabel=curves.with_unit(name))
    if not names:
        axes[0].set_axis_off()
    figure.suptitle(f"{current.where}\n{current.last.strip()[:90]}".strip(), fontsize=9)
    return plots.png(figure)


def _numbers(current: Look) -> str:
    if not current.rows:
        return ""
    row = current.rows[-1]
    shown = [name for name in ("update", "loss", "accuracy") if name in row]
    return ", ".join(f"{name} {row[name]:g}" for name in shown)


def _status(run: RunFolder, labs: Sequence[LabRun], names: Collection[str]) -> str:
    """Return "running" while a lab is running, or one is to come and files were written lately."""
    statuses = [lab.status for lab in labs]
    if "running" in statuses:
        return "running"
    waits = len(statuses) < len(names) or any(
        status in ("unknown", "not started") for status in statuses
    )
    newest = max(_written(place) for place in (run.folder, *(lab.folder for lab in labs)))
    if waits and time.time() - newest < PATIENCE and "interrupted" not in statuses:
        return "running"
    for status in ("interrupted", "failed"):
        if status in statuses:
            return status
    return "interrupted" if waits else "passed"


def _asked_for(run: RunFolder) -> tuple[list[LabRun], Collection[str]]:
    """Return the labs that count, and the names of the folders that the run will have.

    A sweep's folder keeps the runs of earlier grids, which do not count.
    """
    grid = run.about.get("grid")
    values = list(grid.values()) if isinstance(grid, dict) else []
    whole = values and all(isinstance(each, list) for each in values)
    if run.kind != "sweep" or not whole or math.prod(map(len, values)) > _MOST_RUNS:
        return run.labs, [lab.folder.name for lab in run.labs] or [run.folder.name]
    names = {request.folder_name(point) for point in request.points(run.about["grid"])}
    return [lab for lab in run.labs if lab.folder.name in names], names


def _current(labs: Sequence[LabRun]) -> LabRun | None:
    for status in ("running", "unknown"):
        for lab in labs:
            if lab.status == status:
                return lab
    begun = [lab for lab in labs if lab.status != "not started"]
    return max(begun, key=lambda lab: _written(lab.folder), default=None)


def _written(folder: Path) -> float:
    """Return when ``folder`` or anything directly in it was last written; 0 if it is missing."""
    try:
        return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return 0.0
