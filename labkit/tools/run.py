"""`labkit run`: each lab by papermill in a process of its own, with limits of time and memory.

A lab's own notebook writes results.json (``lab.finish``); the runner adds how it ended. In a lab's
folder are also the executed notebook, log.txt, records.csv and figures.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from labkit.base import files
from labkit.base.arguments import parse, wrong
from labkit.base.memory import free_memory
from labkit.base.project import find_project, own_checkout
from labkit.errors import InputError, refuse_unknown
from labkit.labs.presets import LABS, PRESETS, choose
from labkit.labs.run import LOG, RESULTS, describe, last_lines, new_folder, now, plain
from labkit.ranks import cluster
from labkit.ranks.launch import child_environment
from labkit.runtime import DEVICES
from labkit.tools.labs import Lab, find_labs, parameter_names, pick

GB = 10**9
MEMORY = 3 * GB  # of one lab, where several run at once: lab 02's header states 3 GB
# Seconds that a lab may take: a lab that hangs must end at some point.
SECONDS = {"smoke": 900.0, "lab": 3600.0, "paper": float("inf")}
_POLL = 0.2  # seconds
_LINES = 10  # of a failed lab's log that are kept
RUN = "run.json"
# papermill itself exits with 1 for every failure; results.json is to say which cell raised what.
_PROGRAM = """
import json, sys
import papermill

source, output, parameters, folder, failure = sys.argv[1:]
try:
    papermill.execute_notebook(
        source, output, json.loads(parameters), kernel_name="python3", language="python",
        cwd=folder,
        progress_bar=False, log_output=True, stdout_file=sys.stdout, stderr_file=sys.stdout,
        start_timeout=180,
    )
except Exception as error:
    cell = getattr(error, "exec_count", None)  # none: the kernel died, or never started
    name, message = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error)
    cause = {"name": name, "message": str(message), "cell": cell}
    cause["cause"] = "died" if cell is None else "exception"
    open(failure, "w").write(json.dumps(cause))
    sys.exit(1)
"""


@dataclass(frozen=True)
class Task:
    """One lab to execute, checked: nothing in it can be refused later.

    ``folder`` is relative to that of the run until the lab is executed.
    """

    lab: Lab
    preset: str
    device: str
    parameters: Mapping[str, Any]
    folder: Path

    @property
    def asked(self) -> dict[str, Any]:
        """Everything that papermill sets in the notebook."""
        return {"preset": self.preset, "device": self.device, **self.parameters}


@dataclass(frozen=True)
class Limits:
    """Limits of one lab: seconds, and bytes of memory that its processes hold together."""

    seconds: float = float("inf")
    memory: float = float("inf")


def tasks(
    names: Sequence[str],
    *,
    preset: str = "lab",
    device: str = "auto",
    parameters: Mapping[str, Any] | None = None,
) -> list[Task]:
    """Check a request and return a task for each lab, whose folder has the lab's name.

    Args:
        names: numbers, names or paths of labs; all labs if empty.
        preset: smoke, lab or paper.
        device: auto, Ascend, GPU or CPU.
        parameters: values by name, for all these labs.

    Raises:
        InputError: if a lab, preset, device or parameter is unknown, or a lab cannot run with a
            value.
    """
    refuse_unknown("preset", preset, PRESETS)
    refuse_unknown("device", device, DEVICES)
    parameters = parameters or {}
    made: list[Task] = []
    for lab in pick(find_labs(find_project()), names):
        known = [name for name in parameter_names(lab) if name not in ("preset", "device")]
        for name in parameters:
            refuse_unknown(f"parameter of lab {lab.name}", name, known)
        if lab.name in LABS:
            choose(lab.name, preset, **parameters)
        if any(task.lab.name == lab.name for task in made):
            raise InputError(f"LAB: expected one notebook called {lab.name}, got two")
        made.append(Task(lab, preset, device, dict(parameters), Path(lab.name)))
    return made


def values(texts: Iterable[str], read: Callable[[str], Any] = parse) -> dict[str, Any]:
    """Return ``{"epochs": 3}`` for ``["epochs=3"]``; ``read`` makes a value of a text.

    Raises:
        InputError: if a text has no ``=`` or no value, or a name is given twice or has an option of
            its own.
    """
    named: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise wrong("-p", text, "NAME=VALUE, as in -p epochs=2")
        if name in ("preset", "device"):
            raise wrong("-p", text, "a parameter without an option", f" Use --{name} {value}")
        if name in named:
            raise InputError(f"-p: expected each parameter once, got {name!r} twice")
        try:
            named[name] = read(value)
        except InputError as error:
            raise InputError(f"-p {text}: {error}") from error
    return named


def output_folder(out: str | None, again: bool = False) -> Path:
    """Return the run folder: ``out``, which may begin with ~, or a new ``runs/<time>``.

    ``runs/latest`` then points to the new one. With ``again`` it may hold the run that is repeated.

    Raises:
        InputError: for an empty text or an address, or a folder that already holds a run.
    """
    if out is None:
        folder = new_folder(find_project() / "runs")
        latest = folder.with_name("latest")
        if latest.is_symlink() or not latest.exists():
            latest.unlink(missing_ok=True)
            latest.symlink_to(folder.name)
        return folder
    if not out.strip() or "://" in out:
        raise wrong("--out", out, "a folder of this machine")
    folder = Path(out).expanduser().resolve()
    if (folder / RUN).exists() and not again:
        raise InputError(f"{folder} holds a run; expected a new folder, or --resume {folder}")
    return folder


def jobs_of(asked: int | None, preset: str, device: str, count: int) -> int:
    """Return how many labs run at once; None: one a core, as memory allows, one on a device."""
    if asked is not None or preset == "paper" or device not in ("auto", "CPU"):
        return min(asked or 1, count)
    return max(1, min(len(os.sched_getaffinity(0)), int(free_memory() // MEMORY), count))


def run(
    chosen: Sequence[Task],
    folder: Path,
    jobs: int | None = None,
    seconds: float | None = None,
    memory: float | None = None,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Execute the tasks, each on cores of its own; return their results.

    Tasks that have passed in their folder with the same parameters are not executed again. The
    folder is locked. Ctrl-C interrupts the labs that run, and those not yet begun have no results.

    Args:
        chosen: the tasks.
        folder: folder of the run.
        jobs: how many at once; None: as many as fit.
        seconds: limit of one lab; None: ``SECONDS`` of the preset.
        memory: limit of one lab in GB; None: no limit.
        quiet: whether to print nothing.
    """
    jobs = jobs_of(jobs, chosen[0].preset, chosen[0].device, len(chosen))
    seconds = SECONDS[chosen[0].preset] if seconds is None else seconds
    limits = Limits(seconds, float("inf") if memory is None else memory * GB)
    cores = sorted(os.sched_getaffinity(0))
    free = [set(cores[number % len(cores) :: jobs]) for number in range(jobs)]
    stop = threading.Event()

    def say(text: str) -> None:
        if not quiet:  # as one text: lines of labs that run at once would mix
            print(f"{text}\n", end="", flush=True)

    def execute(task: Task) -> dict[str, Any]:
        task = replace(task, folder=folder / task.folder)
        if before := passed_before(task):
            say(f"{task.lab.name}: passed before with the same parameters, not executed again")
            return before
        say(f"{task.lab.name}: preset {task.preset}, device {task.device}")
        share = free.pop()
        try:
            results = _run_lab(task, limits, share, stop)
        finally:
            free.append(share)
        say(f"{task.lab.name}: {results['status']} after {results['total_seconds']:.1f} s")
        return results

    with files.locked(folder, "a run"):
        prepare_data(say)
        first, own = chosen[0].asked, find_project() / "notebooks"
        places = [(task.lab, task.lab.path) for task in chosen]
        labs = [lab.name if path.parent == own else str(path) for lab, path in places]
        request = {name: first.pop(name) for name in ("preset", "device")}
        request |= {"labs": labs, "parameters": first, "started": now()}
        files.write_json(folder / RUN, request, "the run")
        pool = ThreadPoolExecutor(jobs)
        futures = [pool.submit(execute, task) for task in chosen]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            say("interrupted")
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    say("")
    return [future.result() for future in futures if not future.cancelled()]


def read_request(folder: Path) -> dict[str, Any]:
    """Return what the run in ``folder`` was asked for, or raise ``InputError``."""
    try:
        return json.loads((folder / RUN).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--resume: {folder} holds no run ({error})") from error


def prepare_data(say: Any) -> None:
    """Unpack the bundled MNIST, which needs no network; does nothing where that is done."""
    project = own_checkout()
    if project is None or (project / "datasets" / "MNIST_Data").is_dir():
        return
    say("data: preparing mnist with data_scripts/mnist.py")
    command = [sys.executable, str(project / "data_scripts" / "mnist.py")]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    if done.returncode:
        raise InputError(done.stderr.strip() or "mnist cannot be prepared")


def passed_before(task: Task) -> dict[str, Any] | None:
    """Return the results of a task that has passed in its folder with the same parameters."""
    before = read_results(task.folder)
    same = before.get("requested") == plain(task.asked, "parameters")
    return before if same and before.get("status") == "passed" else None


def read_results(folder: Path) -> dict[str, Any]:
    """Return what results.json in ``folder`` holds; {} if there is none or it is damaged."""
    with suppress(OSError, ValueError):
        content = json.loads((folder / RESULTS).read_text("utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def _run_lab(task: Task, limits: Limits, cores: set[int], stop: threading.Event) -> dict[str, Any]:
    """Execute one lab in its folder and return what results.json then holds.

    When a limit is exceeded or ``stop`` is set, the lab's processes are killed.
    """
    folder, began = task.folder, time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = describe(task.lab.name, task.preset, task.parameters, None)
        begun = before | {"status": "running", "started": now()}
        files.write_json(folder / RESULTS, begun, "results.json")
        cause, peak = _execute(task, limits, cores, stop)
    except (OSError, InputError) as error:
        # A full disk or a folder that vanishes is this lab's failure alone.
        begun, cause, peak = {}, _cause("OSError", str(error), "exception"), 0.0
    results = begun | read_results(folder)
    results |= {
        "lab": task.lab.name,
        "status": "passed",
        "requested": plain(task.asked, "parameters"),
        "notebook": task.lab.path.name,
        "total_seconds": round(time.monotonic() - began, 3),
        "peak_memory_mb": round(peak / 1e6, 1),
    }
    if cause is not None:
        results["status"] = "interrupted" if cause["cause"] == "interrupted" else "failed"
        results["error"] = cause | {"log": last_lines(folder / LOG, _LINES)}
    with suppress(OSError, InputError):
        files.write_json(folder / RESULTS, results, "results.json", parents=False)
    return results


def _execute(
    task: Task, limits: Limits, cores: set[int], stop: threading.Event
) -> tuple[dict[str, Any] | None, float]:
    """Return why the lab failed, or None, and the most bytes that its processes held."""
    failure = task.folder / "failure.json"
    failure.unlink(missing_ok=True)
    source, output = task.lab.path, task.folder / task.lab.path.name
    command = [sys.executable, "-c", _PROGRAM, str(source), str(output)]
    command += [json.dumps(plain(task.asked, "parameters")), str(source.parent), str(failure)]

    def begin() -> None:
        cluster.die_with_parent()
        os.sched_setaffinity(0, cores)

    with (task.folder / LOG).open("wb") as log:
        child = subprocess.Popen(
            command,
            env=_environment(task),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=begin,
        )
        try:
            cause, peak = _watch(child, limits, stop)
        finally:
            end_family(child.pid)
            child.wait()
    if cause is None and child.returncode:
        ended = _cause("DeadKernelError", "papermill itself ended: see the log", "died")
        cause = json.loads(failure.read_text()) if failure.exists() else ended
    failure.unlink(missing_ok=True)
    return cause, peak


def _watch(
    child: subprocess.Popen, limits: Limits, stop: threading.Event
) -> tuple[dict[str, Any] | None, float]:
    """Wait for a process; return why it is to be killed, or None, and the most bytes it held."""
    peak, until = 0.0, time.monotonic() + limits.seconds
    while child.poll() is None:
        held = _memory(child.pid)
        peak = max(peak, held)
        if stop.is_set():
            return _cause("KeyboardInterrupt", "stopped from outside", "interrupted"), peak
        if time.monotonic() > until:
            words = f"the lab took more than {limits.seconds:g} s"
            return _cause("TimeoutError", words, "timeout"), peak
        if held > limits.memory:
            words = f"the lab held more than {limits.memory / GB:g} GB of memory"
            return _cause("MemoryError", words, "memory"), peak
        time.sleep(_POLL)
    return None, peak


def _cause(name: str, message: str, cause: str) -> dict[str, Any]:
    return {"name": name, "message": message, "cell": None, "cause": cause}


def _environment(task: Task) -> dict[str, str]:
    """Return the variables of the kernel: settings of the user's own notebooks do not leak in."""
    return child_environment() | {
        "LABKIT_PRESET": task.preset,
        "LABKIT_RUN": str(task.folder),
        "LABKIT_HEADLESS": "1",  # plain lines of progress instead of a bar
        # With a user's MPLBACKEND=Agg, matplotlibrc or IPython profile, an executed notebook may
        # have no figures, or others.
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "MATPLOTLIBRC": "/dev/null",
        "IPYTHONDIR": str(task.folder / ".ipython"),
        "JUPYTER_PATH": "",
        "JUPYTER_PREFER_ENV_PATH": "1",
    }


def _memory(pid: int) -> float:
    """Return the bytes that a process and all below it hold, shared pages excluded."""
    held = 0.0
    for process in _family(pid):
        with suppress(psutil.Error):
            held += process.memory_info().rss - process.memory_info().shared
    return held


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


def end_family(pid: int) -> None:
    """Kill a process and all below it; a kernel leads a session of its own."""
    for process in _family(pid):
        with suppress(psutil.Error):
            process.kill()
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def exit_code(results: Iterable[Mapping[str, Any]]) -> int:
    """Return 0 if all labs passed, 130 after Ctrl-C, 2 if only bad input stopped some, else 1."""
    errors = [each["error"] for each in results if each["status"] != "passed"]
    if not errors:
        return 0
    if any(error["cause"] == "interrupted" for error in errors):
        return 130
    return 2 if all(error.get("name") == "InputError" for error in errors) else 1


def row(results: Mapping[str, Any]) -> tuple[str, ...]:
    """Return lab, status, device, seconds and headline of a lab for the closing table."""
    device, seconds = results.get("device") or "-", f"{results['total_seconds']:.1f}"
    return results["lab"], results["status"], device, seconds, headline(results) or "-"


def headline(results: Mapping[str, Any]) -> str:
    """Return the headline metrics of a lab in one line."""
    metrics = results.get("metrics", {})
    names = [name for name in results.get("headline", ()) if name in metrics]
    shown = (f"{metrics[n]:.4g}" if isinstance(metrics[n], float) else metrics[n] for n in names)
    return ", ".join(f"{name} {value}" for name, value in zip(names, shown, strict=True))


def parameters_of(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were set, without preset and device."""
    asked = results["requested"]
    return {name: asked[name] for name in asked if name not in ("preset", "device")}


def complaints(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each lab that has not passed: its cell, the error, its log's last lines."""
    lines = []
    for each in results:
        error = each.get("error")
        if error and error["cause"] != "interrupted":
            where = f"in cell {error['cell']}" if error["cell"] else "outside its cells"
            first = f"{error['name']}: {error['message']}".splitlines()[0]
            asked = "".join(f" {n}={v}" for n, v in parameters_of(each).items())
            lines += [f"{each['lab']}{asked} {each['status']} {where}: {first}"]
            lines += [f"    {line}" for line in error["log"]]
    return lines
