"""Execution of the labs of a checked request, each in its own folder: `labkit run`."""

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

MEMORY = 3e9  # bytes per lab if several run at once: lab 02's header states 3 GB
_DATA = "mnist"  # bundled with the project, so that preparing it needs no network


@dataclass(frozen=True)
class Outcome:
    """The outcome of one lab of a run, or of one run of a sweep.

    Attributes:
        lab: the lab.
        parameters: parameters that were asked for.
        folder: folder of the results.
        results: contents of results.json.
        skipped: whether it was not executed because it had already passed with the same inputs.
    """

    lab: Lab
    parameters: Mapping[str, Any]
    folder: Path
    results: Mapping[str, Any]
    skipped: bool = False

    @property
    def notebook(self) -> Path:
        """Path of the executed notebook."""
        return self.folder / self.lab.path.name

    @property
    def status(self) -> str:
        """Passed, passed before, failed or interrupted."""
        return "passed before" if self.skipped else self.results["status"]

    @property
    def failure(self) -> Failure | None:
        """Why the lab failed; None if it passed."""
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
    """Check the output folder, prepare the labs' data, make the folder and yield it.

    As long as the context lasts, no other run can use the folder.

    Args:
        request: the labs and how they are run.
        out: lab ``name`` goes to ``out/name``; if not given, to a new ``runs/<time>/name`` of the
            project, and ``runs/latest`` then points to ``runs/<time>``.
        resume: folder of an earlier run, which is continued in it.
        say: called with each ``Event``.

    Raises:
        InputError: if the folder cannot be used or the data cannot be prepared; nothing is
            created then.
        RuntimeError: if preparing the data fails for another reason.
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
    """Execute a request's labs, ``jobs`` at once, in a prepared folder; yield outcomes as they end.

    With one job they run in this thread, and nothing is pinned to cores. With ``again``, labs that
    have passed in this folder with the same inputs are not executed.
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

    An error outside the notebook is this lab's failure too: the other labs continue.
    """
    try:
        before = passed_before(lab, request, folder, say) if again else None
        return before or run_lab(lab, request, folder, say, limits, stop)
    except Exception as error:  # the lab cannot even begin
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
    """Execute one lab in ``folder``, continuing the trainings of an earlier execution.

    A full disk or a folder that vanishes is this lab's failure only: the other labs may still fit.
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
        # Also after Ctrl-C: the folder must record that the run is incomplete.
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
        # Makes labkit.base.progress print plain lines instead of a bar.
        "LABKIT_HEADLESS": "1",
        # With a user's MPLBACKEND=Agg the executed notebook would have no figures.
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

    A folder made from other inputs is moved to ``replaced`` beside it.
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

    It runs the script of the checkout that this labkit is imported from, never one of the project
    whose labs are run: that project may be a stranger's.
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
