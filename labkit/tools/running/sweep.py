"""A sweep: one lab over a grid of parameters, several runs at once, each on its own core.

Runs that have passed with the same inputs are not repeated, so an interrupted sweep continues where
it stopped, and with one more seed in the grid only that seed is run.
"""

import os
import threading
from collections.abc import Mapping, Sequence
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
from labkit.tools.running.events import Event, Say, remark
from labkit.tools.running.request import Request, folder_name
from labkit.tools.running.runner import Outcome
from labkit.tools.running.watch import Limits

MEMORY = 2e9  # bytes for each run: a lab's kernel holds 1 to 1.5 GB
_EVERY = 10.0  # seconds after which the sweep reports its progress if no run has ended


def sweep(
    requests: Sequence[Request],
    axes: Mapping[str, Sequence[Any]],
    folder: Path,
    *,
    jobs: int,
    say: Say,
    limits: Limits,
) -> list[Outcome]:
    """Run every point of a grid, several at once; a run that fails does not stop the others.

    Args:
        requests: one for each point.
        axes: the grid, values by name of parameter.
        folder: folder of the sweep; each run goes to ``folder/runs/<name=value,...>``.
        jobs: number of simultaneous runs.
        say: called with each ``Event``.
        limits: limits of each run.

    Returns:
        The outcome of each request, in their order.

    Raises:
        InputError: if the folder cannot be used; nothing is written then.
    """
    folder = folder.resolve()
    first, lab = requests[0], requests[0].labs[0].name
    folders.refuse_unwritable(folder)
    refuse_links(folder)
    _refuse_other(folder, lab)
    with locked(folder, "a sweep", lambda text: say(remark(text))):
        runner.prepare_data(first, say)
        asked = {"preset": first.preset, "device": first.device, "grid": dict(axes)}
        write_json(folder / SWEEP, {"lab": lab, **asked, "updated": now()})
        return _run_all(requests, folder / SWEEP_RUNS, jobs, say, limits)


def _refuse_other(folder: Path, lab: str) -> None:
    """Raise ``InputError`` if ``folder`` holds anything but a sweep of this ``lab``."""
    if (folder / RUN).exists() or (folder / RESULTS).exists():
        raise InputError(f"{folder} holds a run; expected the folder of a sweep, or a new one")
    if folder.exists() and not os.path.lexists(folder / SWEEP):
        # Unrelated files named sweep.csv or figures would be overwritten.
        names = sorted(path.name for path in folder.iterdir())
        others = [name for name in names if name != locks.NAME and not name.startswith(".part-")]
        if others:
            raise InputError(
                f"{folder} holds {others[0]}, and no {SWEEP}; expected the folder of a "
                "sweep, an empty one, or a new one"
            )
    before, _ = read_json(folder / SWEEP)
    if before.get("lab", lab) != lab:
        raise InputError(
            f"--out: expected the folder of a sweep of {lab}, got {folder}, of {before['lab']}"
        )


def _run_all(
    requests: Sequence[Request], out: Path, jobs: int, say: Say, limits: Limits
) -> list[Outcome]:
    cells: dict[str, str] = {}  # run -> its progress
    outcomes: dict[int, Outcome] = {}
    tasks = [partial(_run_point, request, out, cells, say, limits) for request in requests]
    # One core each, for any number of jobs: a result may depend on the number of cores.
    for ended in pool.side_by_side(tasks, [{core} for core in usable_cores()[:jobs]], _EVERY):
        if ended is None:
            running = dict(cells)
            at = "".join(f"; {name} {cell}" for name, cell in sorted(running.items()))
            values = {"done": len(outcomes), "runs": len(tasks), "running": running}
            say(Event("progress", f"{len(outcomes)} of {len(tasks)} done{at}", values=values))
        else:
            number, outcome = ended
            outcomes[number] = outcome
            status, name = outcome.status, outcome.folder.name
            values = {"done": len(outcomes), "runs": len(tasks), "run": name, "status": status}
            text = f"{len(outcomes)} of {len(tasks)}: {name} {status}"
            say(Event("run", text, values=values))
    return [outcomes[number] for number in range(len(tasks))]


def _run_point(
    request: Request,
    out: Path,
    cells: dict[str, str],
    say: Say,
    limits: Limits,
    stop: threading.Event,
) -> Outcome:
    """Run one request, unless it has already passed."""
    (lab,) = request.labs
    name = folder_name(request.of(lab))

    def pass_on(event: Event) -> None:
        if event.kind == "progress":
            cells[name] = f"cell {event.values['cell']}/{event.values['cells']}"
        else:
            begins = event.text.startswith(lab.name)
            text = name + event.text.removeprefix(lab.name) if begins else event.text
            say(Event(event.kind, text, event.lab, {"run": name, **event.values}))

    try:
        return runner.run_or_keep(lab, request, out / name, pass_on, limits, stop, again=True)
    finally:
        cells.pop(name, None)
