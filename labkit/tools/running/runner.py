"""Execution of checked labs, each into its own folder: `labkit run`."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from labkit.base.cores import equal_shares
from labkit.base.files import remove_unfinished
from labkit.base.locks import locked
from labkit.base.project import own_checkout
from labkit.errors import InputError
from labkit.labs.run import new_folder
from labkit.labs.run_files import LOG, read_results, write_results
from labkit.ranks.processes import python_path
from labkit.tools.labs import Lab, mentions
from labkit.tools.running import digests, folders, pool
from labkit.tools.running.events import CAUSES, Event, Say, remark
from labkit.tools.running.execution import INTERRUPTED, Execution, Failure, execute
from labkit.tools.running.request import Request
from labkit.tools.running.watch import Limits

MEMORY = 3e9  # bytes for each lab where several run at once: lab 02's header says 3 GB
_DATA = "mnist"  # bundled with the project, so that preparing it needs no network


@dataclass(frozen=True)
class Outcome:
    """What became of one lab of a run, or of one run of a sweep.

    Attributes:
        lab: which one.
        parameters: what it was asked to run with.
        folder: where it is.
        results: what results.json says.
        skipped: whether it had passed before, with the same inputs, and was not executed again.
    """

    lab: Lab
    parameters: Mapping[str, Any]
    folder: Path
    results: Mapping[str, Any]
    skipped: bool = False

    @property
    def notebook(self) -> Path:
        """The executed one."""
        return self.folder / self.lab.path.name

    @property
    def status(self) -> str:
        """Passed, passed before, failed or interrupted."""
        return "passed before" if self.skipped else self.results["status"]

    @property
    def failure(self) -> Failure | None:
        """Why it failed; None if it passed."""
        passed = self.results["status"] == "passed"
        return None if passed else Failure(**self.results["error"])

    @property
    def refused(self) -> bool:
        """Whether the lab stopped because its input cannot be used."""
        return self.failure is not None and self.failure.name == "InputError"


@contextmanager
def prepared(
    request: Request, out: Path | None = None, *, resume: Path | None = None, say: Say
) -> Iterator[Path]:
    """Check where the labs may be written to, prepare their data, make the folder and give it.

    As long as the context lasts, no other run can use the folder.

    Args:
        request: which labs, and how they are run.
        out: lab ``name`` goes to ``out/name``; without it to a new ``runs/<time>/name`` of the
            project, and ``runs/latest`` then points to ``runs/<time>``.
        resume: folder of an earlier run to go on in.
        say: takes an ``Event``.

    Raises:
        InputError: when the folder cannot be used or the data cannot be prepared; nothing is
            created then.
        RuntimeError: when preparing the data fails for another reason.
    """
    runs = request.project / "runs"
    if resume is None:
        folders.refuse_used(request, out, runs)
    else:
        folders.refuse_unwritable(resume)
    prepare_data(request, say)
    folder = resume or out
    if folder is None:
        folder = new_folder(runs)
        folders.point_latest(runs, folder)
    folder = folder.resolve()
    with locked(folder, "a run", lambda text: say(remark(text))):
        folders.write_run(folder, request)
        yield folder


def run(
    request: Request, out: Path | None = None, *, say: Say = lambda event: print(event.text)
) -> list[Outcome]:
    """Prepare a run and execute all its labs; arguments and errors as in ``prepared``."""
    with prepared(request, out, say=say) as folder:
        return list(run_labs(request, folder, 1, say, Limits()))


def run_labs(
    request: Request, folder: Path, jobs: int, say: Say, limits: Limits, *, again: bool = False
) -> Iterator[Outcome]:
    """Execute the labs of a request, ``jobs`` at once, into a prepared folder; yield as they end.

    With one job it is in this thread, and nothing is pinned. ``again``: labs that have passed here
    with the same inputs are left as they are.
    """
    tasks = [
        partial(run_or_keep, lab, request, folder / lab.name, say, limits, again=again)
        for lab in request.labs
    ]
    if jobs == 1:
        yield from (task() for task in tasks)
        return
    for ended in pool.side_by_side(tasks, equal_shares(jobs)):
        if ended is not None:
            yield ended[1]


def run_or_keep(
    lab: Lab,
    request: Request,
    folder: Path,
    say: Say,
    limits: Limits,
    stop: threading.Event | None = None,
    *,
    again: bool,
) -> Outcome:
    """Execute one lab, unless ``again`` and it has passed in ``folder`` with the same inputs.

    Whatever stops it outside its notebook is its own failure: the others go on.
    """
    try:
        before = passed_before(lab, request, folder, say) if again else None
        return before or run_lab(lab, request, folder, say, limits, stop)
    except Exception as error:  # of a lab that cannot even begin
        results = folders.stopped(folder, error)
        say(remark(str(error), lab.name))
        return Outcome(lab, request.of(lab), folder, results)


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """Return 0 if all labs passed, 1 if one failed, 2 if only bad input stopped any."""
    failed = [outcome for outcome in outcomes if outcome.failure]
    if not failed:
        return 0
    return 2 if all(outcome.refused for outcome in failed) else 1


def run_lab(
    lab: Lab,
    request: Request,
    folder: Path,
    say: Say,
    limits: Limits,
    stop: threading.Event | None = None,
) -> Outcome:
    """Execute one lab into ``folder``, where trainings of an earlier execution are continued.

    A disk that is full, or a folder that vanishes, is this lab's failure: the others may fit.
    """
    before = folders.begun(lab, request)
    ending = Execution(INTERRUPTED, 0.0)
    started = time.monotonic()

    def say_and_log(event: Event) -> None:
        with suppress(OSError), (folder / LOG).open("a", encoding="utf-8") as log:
            log.write(event.text + "\n")
        say(event)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
        write_results(folder, before)
        text = f"{lab.name}: preset {request.preset}, device {request.device}{limits}"
        values = {"preset": request.preset, "device": request.device, "folder": str(folder)}
        say_and_log(Event("started", text, lab.name, values))
        ending = _execute(lab, request, folder, say_and_log, limits, stop)
    except OSError as error:
        ending = Execution(folders.unwritable(error), 0.0)
    finally:
        # Ctrl-C passes through here: the folder must say that it holds no whole run.
        results, problems = folders.completed(folder, before, ending, time.monotonic() - started)
        for problem in problems:
            say_and_log(remark(problem, lab.name))
        say_and_log(_ended(lab, results))
    return Outcome(lab, request.of(lab), folder, results)


def _execute(
    lab: Lab, request: Request, folder: Path, say: Say, limits: Limits, stop: threading.Event | None
) -> Execution:
    parameters = {"preset": request.preset, "device": request.device, **request.of(lab)}
    environment = {
        "LABKIT_PRESET": request.preset,
        "LABKIT_RUN": str(folder),
        # labkit.base.progress then prints plain lines and draws no bar.
        "LABKIT_HEADLESS": "1",
        # A user's MPLBACKEND=Agg would leave the figures out of the executed notebook.
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONPATH": python_path(os.environ.get("PYTHONPATH")),
    }
    notebook = folder / lab.path.name
    return execute(lab.path, notebook, parameters, environment, say, limits, stop)


def _ended(lab: Lab, results: Mapping[str, Any]) -> Event:
    how = "passed"
    if error := results.get("error"):
        why = CAUSES.get(error["cause"], error["name"])
        where = f" in cell {error['cell']}" if error["cell"] else ""
        how = f"{results['status']}{where} ({why})"
    text = f"{lab.name}: {how} after {results['total_seconds']:.1f} s"
    keys = ("status", "device", "total_seconds", "metrics", "headline", "error")
    return Event("ended", text, lab.name, {key: results[key] for key in keys if key in results})


def passed_before(lab: Lab, request: Request, folder: Path, say: Say) -> Outcome | None:
    """Return the outcome of a lab that has passed in ``folder`` with the same inputs, or None.

    What was made from other inputs is moved out of the way, to ``replaced`` beside it.
    """
    if not folder.exists():
        return None
    results, _ = read_results(folder)
    different = digests.changed(results.get("inputs", {}), folders.inputs_of(lab, request))
    if different:
        aside = folders.set_aside(folder)
        text = f"{folder.name}: changed: {', '.join(different)}; the old run is in {aside}"
        say(Event("replaced", text, lab.name, {"changed": different, "folder": str(aside)}))
        return None
    whole = results.get("status") == "passed" and "total_seconds" in results
    if not whole or not (folder / lab.path.name).exists():
        return None
    text = f"{folder.name}: passed before with the same inputs, not executed again"
    say(Event("skipped", text, lab.name, {"folder": str(folder)}))
    return Outcome(lab, request.of(lab), folder, results, skipped=True)


def prepare_data(request: Request, say: Say) -> None:
    """Prepare the bundled data that the labs name; errors as in ``prepared``.

    By the script of the checkout that this labkit is imported from, whichever project's labs run:
    theirs may be anybody's.
    """
    project = own_checkout()
    if project is None or not any(mentions(lab, _DATA) for lab in request.labs):
        return
    script = project / "data_scripts" / f"{_DATA}.py"
    if not script.exists():
        return
    text = f"data: preparing {_DATA} with {script.relative_to(project)}"
    say(Event("data", text, values={"name": _DATA}))
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        raise InputError(done.stderr.strip() or f"{_DATA} cannot be prepared")
    if done.returncode:
        raise RuntimeError(f"{script} exited with {done.returncode}:\n{done.stderr.strip()}")
