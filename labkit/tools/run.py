"""`labkit run`: each lab by papermill in a process of its own, with limits of time and memory.

A lab's own notebook writes results.json (``lab.finish``); the runner adds how it ended.
"""

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from labkit.base import files, machine
from labkit.base.arguments import local_path, parse, wrong
from labkit.base.project import find_project, own_checkout
from labkit.data.imagefiles import existing_folder
from labkit.data.prepare import prepare
from labkit.errors import InputError, refuse_unknown
from labkit.labs.presets import LABS, PRESETS, choose
from labkit.labs.run import LOG, RESULTS, describe, last_lines, new_folder, now, plain
from labkit.ranks.launch import child_environment
from labkit.runtime import DEVICES
from labkit.tools import doctor
from labkit.tools.labs import Lab, find_labs, parameter_names, pick, read_notebook, tags

GB = 10**9
MEMORY = 3 * GB  # of one lab, where several run at once: lab 02's header states 3 GB
# Seconds that a lab may take: a lab that hangs must end at some point.
SECONDS = {"smoke": 900.0, "lab": 3600.0, "paper": float("inf")}
RUN = "run.json"
_PROGRAM = """
import json, sys
import papermill

source, output, parameters, folder = sys.argv[1:]
try:
    papermill.execute_notebook(
        source, output, json.loads(parameters), kernel_name="python3", language="python",
        cwd=folder, progress_bar=False, log_output=True, stdout_file=sys.stdout,
        stderr_file=sys.stdout, start_timeout=180,
    )
except papermill.PapermillExecutionError:
    sys.exit(3)  # the notebook holds the error, and the log its lines
"""
# Settings of the user's own notebooks do not leak in: with their MPLBACKEND, matplotlibrc or
# IPython profile, an executed notebook may have no figures, or others.
_SETTINGS = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "MATPLOTLIBRC": os.devnull,
    "JUPYTER_PATH": "",
    "JUPYTER_PREFER_ENV_PATH": "1",
    "LABKIT_HEADLESS": "1",
}


class Task(NamedTuple):
    """One lab to execute, all parameters that papermill sets, and its folder within the run's."""

    lab: Lab
    asked: dict[str, Any]
    folder: str


def tasks(names: Sequence[str], asked: Mapping[str, Any], named: bool = True) -> list[Task]:
    """Return a task for each of the labs ``names`` (all if empty), if they can run with ``asked``.

    The preset is that of the environment, LABKIT_PRESET, if ``asked`` has none, else lab. A
    notebook that cannot be read fails when it is its turn, unless the user has ``named`` it.
    """
    machine.need_linux("the labs")
    doctor.refuse_what_stops_kernels()
    default = {"preset": os.environ.get("LABKIT_PRESET") or "lab", "device": "auto"}
    chosen = plain(default | dict(asked), "parameters")
    refuse_unknown("preset", chosen["preset"], PRESETS)
    refuse_unknown("device", chosen["device"], DEVICES)
    labs = pick(find_labs(find_project()), names)
    for lab in labs:
        try:
            known, parameters = parameter_names(lab), parameters_of(chosen)
        except InputError:
            if named and names:
                raise
            continue
        for name in parameters:
            refuse_unknown(f"parameter of lab {lab.name}", name, known)
        if lab.name in LABS:
            data = choose(lab.name, chosen["preset"], **parameters).get("data")
            if data:  # from here: a kernel's working folder is another
                chosen["data"] = str(existing_folder(os.path.realpath(data), "train/ and val/"))
        if sum(other.name == lab.name for other in labs) > 1:
            raise InputError(f"LAB: expected one notebook called {lab.name}, got two")
    return [Task(lab, chosen, lab.name) for lab in labs]


def values(texts: Iterable[str], read: Callable[[str], Any] = parse) -> dict[str, Any]:
    """Return ``{"epochs": 3}`` for ``["epochs=3"]``; ``read`` makes a value of a text."""
    named: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not value.strip() or not name.isidentifier():
            raise wrong("-p", text, "NAME=VALUE, as in -p epochs=2 or -p data=FOLDER")
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

    ``runs/latest`` then points to the new one. A folder that holds a run is refused unless it is
    to be repeated (``again``).
    """
    if out is None:
        folder = new_folder(find_project() / "runs")
        latest = folder.with_name("latest")
        if latest.is_symlink() or not latest.exists():
            latest.unlink(missing_ok=True)
            latest.symlink_to(folder.name)
        return folder
    folder = Path(os.path.realpath(local_path("--out", out, "a folder of this machine")))
    if (folder / RUN).exists() and not again:
        raise InputError(f"{folder} holds a run; expected a new folder, or --resume {folder}")
    return folder


def jobs_of(asked: int | None, preset: str, device: str, count: int) -> int:
    """Return how many labs run at once; None: one a core, as memory allows, one on a device."""
    if asked is not None or preset == "paper" or device not in ("auto", "CPU"):
        return min(asked or 1, count)
    return max(1, min(math.ceil(machine.cores()), int(machine.free_memory() // MEMORY), count))


def run(
    chosen: Sequence[Task],
    folder: Path,
    jobs: int | None,
    seconds: float | None,
    memory: float | None,
    quiet: bool,
) -> list[dict[str, Any]]:
    """Execute the tasks, ``jobs`` at once (as many as fit), each on cores of its own.

    Those that have passed in their folder with the same parameters are not executed again. A lab
    may take ``seconds`` (``SECONDS`` of its preset) and ``memory`` in GB (all). The folder is
    locked. Ctrl-C interrupts the labs that run, and those not yet begun have no results.
    """
    preset, device = chosen[0].asked["preset"], chosen[0].asked["device"]
    jobs = jobs_of(jobs, preset, device, len(chosen))
    limits = (seconds or SECONDS[preset], memory or float("inf"))
    cores = machine.own_cores()
    free = [cores[number % len(cores) :: jobs] for number in range(jobs)]
    stop = threading.Event()

    def say(text: str) -> None:
        if not quiet:  # as one text: lines of labs that run at once would mix
            print(f"{text}\n", end="", flush=True)

    def execute(task: Task) -> dict[str, Any]:
        place, name = folder / task.folder, task.lab.name
        before = read_results(place)
        if before.get("status") == "passed" and before.get("requested") == task.asked:
            say(f"{name}: passed before with the same parameters, not executed again")
            return before
        say(f"{name}: preset {preset}, device {device}")
        share = free.pop()
        try:
            results = _run_lab(task, place, share, *limits, stop)
        except (OSError, InputError) as error:  # a faulty folder is this lab's failure alone
            results = {"lab": name, "status": "failed", "requested": task.asked, "device": None}
            results |= {"total_seconds": 0.0, "peak_memory_mb": 0.0}
            results["error"] = _error("exception", "OSError", str(error)) | {"log": []}
        free.append(share)
        say(f"{name}: {results['status']} after {results['total_seconds']:.1f} s")
        return results

    with files.locked(folder, "a run"):
        if not ((own_checkout() or find_project()) / "datasets" / "MNIST_Data").is_dir():
            prepare("mnist")  # once, for all labs
        labs = [str(task.lab.path) for task in chosen]
        request = {"labs": labs, "parameters": chosen[0].asked, "started": now()}
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
    return [future.result() for future in futures if not future.cancelled()]


def read_results(folder: Path) -> dict[str, Any]:
    """Return what results.json in ``folder`` holds; {} if there is none or it is damaged."""
    with suppress(OSError, ValueError):
        content = json.loads((folder / RESULTS).read_text("utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def _run_lab(
    task: Task,
    folder: Path,
    cores: Sequence[int],
    seconds: float,
    memory: float,
    stop: threading.Event,
) -> dict[str, Any]:
    """Execute one lab in its folder within its limits; return what results.json then holds."""
    began, asked, peak, error = time.monotonic(), task.asked, 0, None
    source, notebook = task.lab.path, folder / task.lab.path.name
    parameter_names(task.lab)  # raises for a notebook that papermill could not set
    folder.mkdir(parents=True, exist_ok=True)
    notebook.unlink(missing_ok=True)  # of an earlier run: its error is not this one's
    results = describe(task.lab.name, asked["preset"], parameters_of(asked), None)
    results |= {"status": "running", "started": now()}
    files.write_json(folder / RESULTS, results, "results.json")
    own = {"LABKIT_PRESET": asked["preset"], "LABKIT_RUN": str(folder)}
    own |= {"IPYTHONDIR": str(folder / ".ipython")}
    words = [str(source), str(notebook), json.dumps(asked), str(source.parent)]
    with (folder / LOG).open("wb") as log:
        command = [sys.executable, "-c", _PROGRAM, *words]
        child = machine.start_child(command, log, env=child_environment() | _SETTINGS | own)
        try:
            psutil.Process(child.pid).cpu_affinity(cores)
            while error is None and child.poll() is None:
                held = sum(map(_memory, _family(child.pid)))
                peak = max(peak, held)
                if stop.is_set():
                    error = _error("interrupted", "KeyboardInterrupt", "stopped from outside")
                elif time.monotonic() > began + seconds:
                    took = f"the lab took more than {seconds:g} s"
                    error = _error("timeout", "TimeoutError", took)
                elif held > memory * GB:
                    much = f"the lab held more than {memory:g} GB of memory"
                    error = _error("memory", "MemoryError", much)
                time.sleep(0.2)
        finally:
            for process in _family(child.pid):  # a kernel leads a session of its own
                with suppress(psutil.Error):
                    process.kill()
            child.wait()
    if error is None and child.returncode:
        error = _failure(notebook, child.returncode)
    results |= read_results(folder) | {
        "lab": task.lab.name,
        "status": "passed",
        "requested": asked,
        "notebook": notebook.name,
        "total_seconds": round(time.monotonic() - began, 3),
        "peak_memory_mb": round(peak / 1e6, 1),
    }
    if error is not None:
        results["status"] = "interrupted" if error["cause"] == "interrupted" else "failed"
        results["error"] = error | {"log": last_lines(folder / LOG, 10) + doctor.faults()}
    files.write_json(folder / RESULTS, results, "results.json")
    return results


def _failure(notebook: Path, code: int) -> dict[str, Any] | None:
    """Return the error that ended an executed notebook, or that papermill itself has ended.

    papermill executes what follows a cell with the tag raises-exception, and then fails all the
    same, with code 3: None.
    """
    died = _error("died", "DeadKernelError", "papermill itself ended: see the log")
    try:
        cells = read_notebook(notebook)["cells"]
    except InputError:
        return died
    for cell in cells:
        failed = cell["metadata"].get("papermill", {}).get("exception")
        if not failed or "raises-exception" in tags(cell):
            continue
        for each in cell["outputs"]:
            if each["output_type"] == "error":
                return _error("exception", each["ename"], each["evalue"], cell["execution_count"])
        return _error("exception", "Error", "without output: see the log", cell["execution_count"])
    return None if code == 3 else died


def _error(cause: str, name: str, message: str, cell: int | None = None) -> dict[str, Any]:
    return {"cause": cause, "name": name, "message": message, "cell": cell}


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


def _memory(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return machine.own_memory(process)
    return 0


def headline(results: Mapping[str, Any]) -> str:
    """Return the headline metrics of a lab in one line."""
    metrics = results.get("metrics", {})
    shown = ((name, metrics[name]) for name in results.get("headline", ()))
    return ", ".join(f"{n} {v:.4g}" if isinstance(v, float) else f"{n} {v}" for n, v in shown)


def parameters_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were set, without preset and device."""
    return {name: asked[name] for name in asked if name not in ("preset", "device")}
