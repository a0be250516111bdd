"""A sweep: one lab over a grid of parameters, several runs at once, each on a core of its own.

What has passed with the same inputs is not run again, so a sweep that was stopped goes on where it
was, and one that is asked for a further seed runs that seed alone.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from labkit.base import locks
from labkit.base.cores import usable_cores
from labkit.base.files import refuse_links
from labkit.base.locks import locked
from labkit.errors import InputError
from labkit.labs.run_files import RESULTS, RUN, SWEEP, SWEEP_RUNS, now, read_json, write_json
from labkit.tools.running import folders, pool, runner
from labkit.tools.running.events import Event, Say
from labkit.tools.running.request import Request, folder_name
from labkit.tools.running.watch import Limits

MEMORY = 2e9  # bytes for each run: a lab's kernel holds 1 to 1.5 GB
_EVERY = 10.0  # seconds without a run that ends, after which the sweep says how far it is


@dataclass(frozen=True)
class Row:
    """One run of a sweep: its parameters, its folder, its results.json, whether it ran just now."""

    parameters: Mapping[str, Any]
    folder: Path
    results: Mapping[str, Any]
    skipped: bool


def sweep(
    requests: Sequence[Request],
    axes: Mapping[str, Sequence[Any]],
    folder: Path,
    *,
    jobs: int,
    say: Say,
    limits: Limits,
) -> list[Row]:
    """Run every point of a grid, several at once; one that fails is its own failure.

    Args:
        requests: one for each point.
        axes: the grid, values by name of parameter.
        folder: of the sweep; each run goes to ``folder/runs/<name=value,...>``.
        jobs: runs at once.
        say: takes an ``Event``.
        limits: of each run.

    Returns:
        A row for each request, in their order.

    Raises:
        InputError: when the folder cannot be used; nothing is written then.
    """
    folder = folder.resolve()
    first, lab = requests[0], requests[0].labs[0].name
    folders.refuse_unwritable(folder)
    refuse_links(folder)
    _refuse_other(folder, lab)
    with locked(folder, "a sweep", lambda text: say(Event("output", text, values={"text": text}))):
        runner.prepare_data(first, say)
        asked = {"preset": first.preset, "device": first.device, "grid": dict(axes)}
        write_json(folder / SWEEP, {"lab": lab, **asked, "updated": now()})
        return _run_all(requests, folder / SWEEP_RUNS, jobs, say, limits)


def _refuse_other(folder: Path, lab: str) -> None:
    """Raise ``InputError`` where ``folder`` holds what is no sweep, or that of another lab."""
    if (folder / RUN).exists() or (folder / RESULTS).exists():
        raise InputError(f"{folder} holds a run; expected the folder of a sweep, or a new one")
    if folder.exists() and not os.path.lexists(folder / SWEEP):
        # sweep.csv and figures of somebody else would be replaced.
        names = sorted(path.name for path in folder.iterdir())
        others = [name for name in names if name != locks.NAME and not name.startswith(".part-")]
        if others:
            raise InputError(
                f"{folder} holds {others[0]}, and no {SWEEP}; expected the folder of a "
                "sweep, an empty one, or a new one"
            )
    before, _ = read_json(folder / SWEEP)
    if before.get("lab", lab) != lab:
        raise InputError(f"{folder} holds a sweep of lab {before['lab']}, not of {lab}")


def _run_all(
    requests: Sequence[Request], out: Path, jobs: int, say: Say, limits: Limits
) -> list[Row]:
    cells: dict[str, str] = {}  # run -> how far it is
    rows: dict[int, Row] = {}
    tasks = [partial(_run_one, request, out, cells, say, limits) for request in requests]
    # One core each, whatever the number of jobs: a result may depend on how many cores it had.
    for ended in pool.side_by_side(tasks, [{core} for core in usable_cores()[:jobs]], _EVERY):
        if ended is None:
            say(_progress(dict(cells), len(rows), len(tasks)))
        else:
            number, row = ended
            rows[number] = row
            say(_finished(row, len(rows), len(tasks)))
    return [rows[number] for number in range(len(tasks))]


def _run_one(
    request: Request,
    out: Path,
    cells: dict[str, str],
    say: Say,
    limits: Limits,
    stop: threading.Event,
) -> Row:
    """Run one request, unless it has passed before."""
    (lab,) = request.labs
    point = request.of(lab)
    name = folder_name(point)
    folder = out / name

    def pass_on(event: Event) -> None:
        if event.kind == "progress":
            cells[name] = f"cell {event.values['cell']}/{event.values['cells']}"
        else:
            begins = event.text.startswith(lab.name)
            text = name + event.text.removeprefix(lab.name) if begins else event.text
            say(Event(event.kind, text, event.lab, {"run": name, **event.values}))

    try:
        before = runner.passed_before(lab, request, folder, say)
        if before is not None:
            return Row(point, folder, before.results, skipped=True)
        results = runner.run_lab(lab, request, folder, pass_on, limits, stop).results
    except Exception as error:  # of a run that cannot even begin: the others go on
        say(Event("output", f"{name}: {error}", values={"text": str(error)}))
        results = folders.stopped(folder, error)
    cells.pop(name, None)
    return Row(point, folder, results, skipped=False)


def _progress(cells: Mapping[str, str], done: int, total: int) -> Event:
    running = "; ".join(f"{name} {cell}" for name, cell in sorted(cells.items()))
    text = f"{done} of {total} done" + (f"; {running}" if running else "")
    return Event("progress", text, values={"done": done, "runs": total, "running": cells})


def _finished(row: Row, done: int, total: int) -> Event:
    status = "passed before" if row.skipped else row.results.get("status", "failed")
    name = row.folder.name
    values = {"done": done, "runs": total, "run": name, "status": status}
    return Event("run", f"{done} of {total}: {name} {status}", values=values)
