"""Headless execution of one notebook by papermill, in a kernel of this interpreter."""

import logging
import math
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from labkit.labs.run_files import KERNEL_LOG, last_lines, write_text
from labkit.ranks.processes import MARK, guarded
from labkit.tools.notebook_files import relinked
from labkit.tools.running.events import Progress, Say, is_executed, merge_streams, remark
from labkit.tools.running.watch import Limits, Watch

_KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
# On two busy cores a kernel takes up to 20 s to start; papermill's limit of 60 s is too tight.
_START_TIMEOUT = 180
_SILENT = logging.NullHandler()  # keeps messages that the Failure repeats off stderr
_IMPORTING = threading.Lock()  # a thread of a sweep must not see a half-imported module
_LOG_LINES = 10  # lines of a failed kernel's log that are kept
# Jupyter finds free ports and releases them for the kernel: another program may take one between.
_PORT_TAKEN, _STARTS = "Address already in use", 3
# A kernel may log this after the actual failure, when Jupyter ends it.
_ON_STOPPING = "KeyboardInterrupt caught in kernel."


@dataclass(frozen=True)
class Failure:
    """Why a notebook stopped.

    Attributes:
        name: name of the exception.
        message: message of the exception.
        cell: n of ``In [n]``; None if the notebook stopped before its first cell.
        cause: "exception", "died" (the kernel), "memory", "timeout" or "interrupted" (from
            outside).
        log: the last lines that the kernel's process wrote; if it wrote none, the last line that
            the cells printed.
    """

    name: str
    message: str
    cell: int | None
    cause: str = "exception"
    log: list[str] = field(default_factory=list)


INTERRUPTED = Failure("KeyboardInterrupt", "stopped from outside", None, "interrupted")


@dataclass(frozen=True)
class Execution:
    """How a notebook's execution ended: ``failure`` or None, and its peak memory in bytes."""

    failure: Failure | None
    peak_memory: float


def execute(
    source: Path,
    output: Path,
    parameters: Mapping[str, Any],
    environment: Mapping[str, str],
    say: Say,
    limits: Limits = Limits(),  # noqa: B008 (immutable)
    stop: threading.Event | None = None,
) -> Execution:
    """Execute a notebook; the kernel's working folder is the notebook's, as in JupyterLab.

    On KeyboardInterrupt, and however else this process ends, the kernel and its processes are ended
    first.

    Args:
        source: the notebook.
        output: path of the executed notebook, saved atomically after every cell; after a failure,
            kernel.log beside it holds what the kernel's process wrote outside the cells.
        parameters: values by name, for papermill.
        environment: variables added to the kernel's environment.
        say: called with each ``Event``.
        limits: limits of time and memory.
        stop: when it is set, the kernel is ended and the notebook counts as interrupted.

    Returns:
        How the execution ended.
    """
    with _IMPORTING:
        import_module("papermill")
    for name in ("papermill", "traitlets"):  # nbclient logs a dead kernel to traitlets' logger
        logging.getLogger(name).addHandler(_SILENT)
    log = output.with_name(KERNEL_LOG)
    for start in range(_STARTS):
        if start:
            text = "another program took the kernel's port; starting it again"
            say(remark(text, source.stem))
        progress = Progress(source.stem, _prepare(source, output) + 1, say)
        with guarded() as mark, Watch(mark[MARK].split(":")[-1], limits, stop) as watch, progress:
            manager = _own_kernel({**environment, **mark}, log, watch)
            error = _papermill(source, output, parameters, progress, manager, limits)
            if type(error).__name__ == "DeadKernelError":
                watch.kernel_died()
        if error is None and watch.cause is None:
            log.unlink(missing_ok=True)
            return Execution(None, watch.peak)
        if progress.cell or not any(_PORT_TAKEN in line for line in _log_lines(log)):
            break
    return Execution(_failure(error, watch, progress, log), watch.peak)


def _prepare(source: Path, output: Path) -> int:
    """Copy the notebook with the metadata that papermill needs; return how many cells will run.

    Relative links are adapted to the output folder, where the executed copy is read and rerun.
    """
    import nbformat

    notebook = nbformat.read(source, as_version=4)
    notebook.metadata["kernelspec"] = dict(_KERNEL)
    notebook.metadata.setdefault("language_info", {"name": "python"})
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = relinked(cell.source, source.parent, output.parent, with_labs=False)
    write_text(output, nbformat.writes(notebook))
    return sum(is_executed(cell) for cell in notebook.cells)


def _own_kernel(environment: Mapping[str, str], log: Path, watch: Watch) -> type:
    """Return a kernel manager class whose kernels run this interpreter.

    Jupyter looks up a kernel by name, first in the folders of JUPYTER_PATH, and in the user's
    folders before the environment's if somebody else owns the environment. It may thus find another
    environment's "python3" first, and the notebook would run with other packages.

    Args:
        environment: variables added to the kernels' environment.
        log: file for the output of their processes.
        watch: receives each kernel's process at once, before the kernel is ready.
    """
    import zmq
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from traitlets import default

    # Jupyter substitutes $NAME in these values.
    literal = {name: value.replace("$", "$$") for name, value in environment.items()}
    arguments = {"python_arguments": ["-Xfrozen_modules=off"]}  # or the debugger warns on stderr

    class OwnKernelSpecManager(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            return KernelSpec(**get_kernel_dict(**arguments), env=literal)

    class OwnKernelManager(AsyncKernelManager):
        @default("kernel_spec_manager")
        def _own_interpreter(self) -> KernelSpecManager:
            return OwnKernelSpecManager()

        @default("transport_encryption")
        def _encrypted(self) -> str:
            # Without it the kernel warns that others on this machine could listen.
            return "auto" if zmq.has("curve") else "disabled"

        # The base class is typed as its blocking counterpart.
        async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
            with log.open("wb") as file:
                await super().start_kernel(stdout=file, stderr=subprocess.STDOUT, **options)
            provisioner: Any = self.provisioner  # a LocalProvisioner, by default
            watch.kernel_started(provisioner.process)

    return OwnKernelManager


def _papermill(
    source: Path,
    output: Path,
    parameters: Mapping[str, Any],
    progress: Progress,
    manager: type,
    limits: Limits,
) -> BaseException | None:
    """Execute ``output`` in place with papermill; return what stopped it, or None."""
    import papermill
    from papermill.iorw import LocalHandler, papermill_io

    class Whole(LocalHandler):
        def write(self, buf: str, path: str) -> None:
            write_text(Path(path), buf)

    # For this path only: papermill's own handler truncates the file before it writes.
    papermill_io.register(str(output), Whole())
    # papermill substitutes parameters for {name} in paths: escape the braces of folder names.
    path = str(output).replace("{", "{{").replace("}", "}}")
    cell_seconds = math.inf if limits.cell_seconds is None else limits.cell_seconds
    try:
        papermill.execute_notebook(
            path,
            path,
            dict(parameters),
            kernel_name=_KERNEL["name"],
            language=_KERNEL["language"],
            progress_bar=False,
            stdout_file=progress,
            start_timeout=_START_TIMEOUT,
            execution_timeout=None if math.isinf(cell_seconds) else math.ceil(cell_seconds),
            on_cell_start=progress.cell_started,
            on_cell_executed=merge_streams,
            kernel_manager_class=manager,
            resources={"metadata": {"path": str(source.parent)}},
        )
    # Anything that stops one notebook (an error in a cell, a killed kernel, a cell that takes too
    # long) is that lab's failure: it is reported, and the other labs still run.
    except Exception as error:
        return error
    return _left_early(output)


def _left_early(output: Path) -> SystemExit | None:
    """Return a SystemExit if cells were not run: papermill treats sys.exit() as a normal end."""
    import nbformat

    for cell in nbformat.read(output, as_version=4).cells:
        if is_executed(cell) and cell.metadata.get("papermill", {}).get("status") != "completed":
            return SystemExit("the notebook was left before its end")
    return None


def _failure(error: BaseException | None, watch: Watch, progress: Progress, log: Path) -> Failure:
    if watch.cause == "interrupted":
        return INTERRUPTED
    if error is None:  # a cell caught the KeyboardInterrupt of the lab's time limit
        error = KeyboardInterrupt()
    name = getattr(error, "ename", type(error).__name__)
    message = getattr(error, "evalue", str(error))
    cause = "exception"
    if watch.cause is not None:
        cause, message = watch.cause, watch.reason
    elif name == "CellTimeoutError":
        cause, message = "timeout", message.splitlines()[0]
    lines = _log_lines(log)[-_LOG_LINES:] or ([progress.last] if progress.last else [])
    return Failure(name, message, progress.cell or None, cause, lines)


def _log_lines(log: Path) -> list[str]:
    return [line for line in last_lines(log, 200) if not line.endswith(_ON_STOPPING)]
