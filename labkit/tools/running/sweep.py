"""A sweep: one lab over a grid of parameters, several runs at once, each on a core of its own.

What has passed with the same inputs is not run again, so a sweep that was stopped goes on where it
was, and one that is asked for a further seed runs that seed alone.
"""

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from labkit.base import arguments, locks
from labkit.base.cores import usable_cores
from labkit.base.files import refuse_links
from labkit.base.locks import locked
from labkit.errors import InputError
from labkit.labs.run_files import RESULTS, RUN, SWEEP, SWEEP_RUNS, now, read_json, write_json
from labkit.ranks.processes import child_environment, guarded, module_command, pipes
from labkit.tools.running import folders, grid, record, runner
from labkit.tools.running.events import Event, Say
from labkit.tools.running.request import Request
from labkit.tools.running.watch import Limits

_GB_EACH = 2e9  # a lab's kernel holds 1 to 1.5 GB
_LONGEST_ERROR = 20_000  # bytes, the last that a run wrote which could not go on


@dataclass(frozen=True)
class Row:
    """One run of a sweep: its parameters, its folder, its results.json, whether it ran just now."""

    parameters: Mapping[str, Any]
    folder: Path
    results: Mapping[str, Any]
    skipped: bool


def usable_jobs(runs: int, free: float) -> int:
    """Return how many runs go on at once if nobody says: one a core, each with 2 GB of memory."""
    return max(1, min(runs, len(usable_cores()), int(free // _GB_EACH)))


def check_jobs(jobs: int) -> None:
    """Raise ``InputError`` for more runs at once than there are cores."""
    arguments.integer("--jobs", jobs, at_least=1, at_most=len(usable_cores()))


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

    With several jobs each run is pinned to a core of its own: a small network does not use a second
    one, and two runs that share two cores slow each other down.

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
    check_jobs(jobs)
    with locked(folder, "a sweep", lambda text: say(Event("output", text, values={"text": text}))):
        runner.prepare_data(first, say)
        about = {
            "lab": lab,
            "preset": first.preset,
            "device": first.device,
            "grid": dict(axes),
            "updated": now(),
        }
        write_json(folder / SWEEP, about)
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
    cores: SimpleQueue = SimpleQueue()
    for core in usable_cores()[:jobs]:
        cores.put(core if jobs > 1 else None)
    children = _Children(say, limits)
    total, rows = len(requests), {}
    with guarded() as mark, children.reported(total), ThreadPoolExecutor(jobs) as pool:
        work = {
            pool.submit(children.run, request, out, cores, mark): number
            for number, request in enumerate(requests)
        }
        try:
            for future in as_completed(work):
                row = rows[work[future]] = future.result()
                children.done += 1
                say(_finished(row, children.done, total))
        except BaseException:
            children.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [rows[number] for number in range(total)]


class _Children:
    """The processes of a sweep's runs; each run in one, so that none can harm another."""

    def __init__(self, say: Say, limits: Limits) -> None:
        self.done = 0
        self._say, self._limits = say, limits
        self._where: dict[str, str] = {}  # of each run that is under way
        self._lock = threading.Lock()
        self._alive: set[subprocess.Popen] = set()
        self._stopped = False

    def run(self, request: Request, out: Path, cores: SimpleQueue, mark: Mapping) -> Row:
        """Run one request, unless it has passed before; wait for a free core first."""
        lab = request.labs[0]
        point = request.of(lab)
        name = grid.folder_name(point)
        before = runner.passed_before(lab, request, out, self._say, name)
        if before is not None:
            return Row(point, out / name, before.results, skipped=True)
        core = cores.get()
        try:
            job = {
                "project": str(request.project),
                "lab": lab.name,
                "preset": request.preset,
                "device": request.device,
                "parameters": dict(point),
                "folder": str(out / name),
                "core": core,
                "limits": asdict(self._limits),
            }
            self._child(job, name, mark)
        finally:
            cores.put(core)
        return Row(point, out / name, record.settled(out / name), skipped=False)

    @contextmanager
    def reported(self, total: int, every: float = 10.0) -> Iterator[None]:
        """Say every few seconds how far the sweep is, in one line for all its runs."""
        over = threading.Event()

        def report() -> None:
            while not over.wait(every):
                running = "; ".join(f"{name} {at}" for name, at in sorted(self._where.items()))
                text = f"{self.done} of {total} done" + (f"; {running}" if running else "")
                values = {"done": self.done, "runs": total, "running": dict(self._where)}
                self._say(Event("progress", text, values=values))

        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def stop(self) -> None:
        """Ask every process to end; its kernel is stopped and its results say interrupted."""
        with self._lock:
            self._stopped = True
            for child in self._alive:
                child.terminate()

    def _child(self, job: Mapping[str, Any], name: str, mark: Mapping[str, str]) -> None:
        # A file, not a pipe: standard output is read first, and a full pipe would stop the child.
        with tempfile.TemporaryFile() as errors:
            child = self._start(mark, errors)
            if child is None:
                return
            with child:
                wanted, events = pipes(child)
                wanted.write(json.dumps(job))
                wanted.close()
                for line in events:
                    self._pass_on(line, name)
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _LONGEST_ERROR))
            reason = errors.read().decode(errors="replace").strip()
        with self._lock:
            self._alive.discard(child)
            self._where.pop(name, None)
        if reason and child.returncode not in (0, 1):
            self._say(Event("output", f"{name}: {reason}", values={"text": reason}))

    def _start(self, mark: Mapping[str, str], errors: IO[bytes]) -> subprocess.Popen[str] | None:
        """Start the process of a run; None where the sweep has been stopped."""
        with self._lock:
            if self._stopped:
                return None
            child = subprocess.Popen(
                module_command("labkit.tools.running.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**child_environment(), **mark},
                start_new_session=True,  # Ctrl-C is for this process, which then asks them to end
            )
            self._alive.add(child)
        return child

    def _pass_on(self, line: str, name: str) -> None:
        values = json.loads(line)
        text, kind, lab = values.pop("text"), values.pop("event"), values.pop("lab", None)
        if kind == "progress":
            with self._lock:
                self._where[name] = f"cell {values['cell']}/{values['cells']}"
            return
        text = text.replace(lab, name, 1) if lab else text
        self._say(Event(kind, text, lab, {"run": name, **values}))


def _finished(row: Row, done: int, total: int) -> Event:
    status = "passed before" if row.skipped else row.results.get("status", "failed")
    name = grid.folder_name(row.parameters)
    values = {"done": done, "runs": total, "run": name, "status": status}
    return Event("run", f"{done} of {total}: {name} {status}", values=values)
