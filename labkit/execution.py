"""One notebook, executed headlessly by papermill in a kernel of this very interpreter."""

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_KERNEL = "python3"
# Two busy cores need up to 20 s for a kernel; papermill's own limit of 60 s leaves little room.
_START_TIMEOUT = 180


@dataclass(frozen=True)
class Failure:
    """Why a notebook stopped: exception ``name``, its message, and ``cell`` n as in ``In [n]``.

    ``cell`` is None where it was stopped from outside.
    """

    name: str
    message: str
    cell: int | None


class Progress:
    """Passes a notebook's printed lines on and says, every few seconds, which cell is running.

    ``say`` takes one line of text. Used as a context manager around an execution; papermill writes
    the notebook's standard output to it as to a file.
    """

    def __init__(self, lab: str, cells: int, say: Callable[[str], None], every: float = 5.0):
        self.cell = 0  # code cells started so far: the n of the running cell's In [n]
        self._lab, self._cells, self._say, self._every = lab, cells, say, every
        self._started = time.monotonic()
        self._partial = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._end_line()

    def cell_started(self, cell: Mapping[str, Any], cell_index: int) -> None:
        """Count a cell that is about to run; pass on what the last one left without line end."""
        self._end_line()
        if is_executed(cell):
            self.cell += 1

    def write(self, text: str) -> None:
        """Pass on the complete lines of ``text``, indented; a rest waits for its line end."""
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self._pass_on(line)

    def flush(self) -> None:
        """Do nothing: papermill flushes after every message, also in the middle of a line."""

    def _end_line(self) -> None:
        line, self._partial = self._partial, ""
        self._pass_on(line)

    def _pass_on(self, line: str) -> None:
        # A bar that redraws itself with carriage returns shows its last state.
        line = line.rstrip("\r").rsplit("\r", 1)[-1].rstrip()
        if line:
            self._say(f"    {line}")

    def _report(self) -> None:
        while not self._stop.wait(self._every):
            seconds = time.monotonic() - self._started
            self._say(f"{self._lab}: cell {self.cell}/{self._cells}, {seconds:.0f} s")


def is_executed(cell: Mapping[str, Any]) -> bool:
    """Return whether the kernel runs ``cell``, which then gets the next number ``In [n]``."""
    return cell["cell_type"] == "code" and bool("".join(cell["source"]).strip())


def execute(
    source: Path,
    output: Path,
    parameters: Mapping[str, Any],
    environment: Mapping[str, str],
    say: Callable[[str], None],
    cell_timeout: float | None = None,
) -> Failure | None:
    """Execute the notebook ``source`` into ``output``; return why it stopped, or None if it ended.

    The kernel works in the folder of ``source``, as in JupyterLab, with ``environment`` added to
    its variables. ``cell_timeout`` is in seconds for each cell. ``output`` is saved after every
    cell and can be opened again; beside it, after a failure, lies kernel.log: what the kernel's
    process wrote outside the cells. On KeyboardInterrupt the kernel is stopped first.
    """
    import papermill

    _silence_papermill()
    log = output.with_name("kernel.log")
    cells = _prepare(source, output)
    # papermill fills {name} in paths with parameters: a brace in a folder's name is doubled.
    path = str(output).replace("{", "{{").replace("}", "}}")
    with Progress(source.stem, cells + 1, say) as progress:
        try:
            papermill.execute_notebook(
                path,
                path,
                dict(parameters),
                kernel_name=_KERNEL,
                language="python",
                progress_bar=False,
                stdout_file=progress,
                start_timeout=_START_TIMEOUT,
                execution_timeout=cell_timeout,
                coalesce_streams=True,
                on_cell_start=progress.cell_started,
                kernel_manager_class=_own_kernel(environment, log),
                resources={"metadata": {"path": str(source.parent)}},
            )
        except papermill.PapermillExecutionError as error:
            return Failure(error.ename, error.evalue, progress.cell)
        # Whatever else stops one notebook (its kernel was killed, a cell took too long) is that
        # lab's failure: it is reported, and the other labs still run.
        except Exception as error:
            return Failure(type(error).__name__, str(error), progress.cell)
    log.unlink(missing_ok=True)
    return None


def _prepare(source: Path, output: Path) -> int:
    """Copy the notebook with the metadata that papermill needs; return how many cells will run."""
    import nbformat

    notebook = nbformat.read(source, as_version=4)
    notebook.metadata["kernelspec"] = {
        "name": _KERNEL,
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
    }
    notebook.metadata.setdefault("language_info", {"name": "python"})
    nbformat.write(notebook, output)
    return sum(is_executed(cell) for cell in notebook.cells)


def _silence_papermill() -> None:
    """Keep papermill's own lines off stderr: what they say is in the ``Failure``."""
    logger = logging.getLogger("papermill")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _own_kernel(environment: Mapping[str, str], log: Path) -> type:
    """Return a kernel manager class whose kernels run this interpreter with ``environment`` added.

    What their processes write goes to ``log``. Jupyter looks a kernel up by name in the user's
    folders first, so that another environment's "python3" can stand before this one's: the
    notebook would run with other packages.
    """
    import zmq
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from traitlets import default

    # Jupyter fills $NAME in these values.
    literal = {name: value.replace("$", "$$") for name, value in environment.items()}
    arguments = {"python_arguments": ["-Xfrozen_modules=off"]}  # else the debugger warns on stderr

    class OwnKernelSpecManager(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            return KernelSpec(**get_kernel_dict(**arguments), env=literal)

    class OwnKernelManager(AsyncKernelManager):
        @default("kernel_spec_manager")
        def _own_interpreter(self) -> KernelSpecManager:
            return OwnKernelSpecManager()

        @default("transport_encryption")
        def _encrypted(self) -> str:
            # Else the kernel warns that others on this machine could listen.
            return "auto" if zmq.has("curve") else "disabled"

        async def start_kernel(self, **options: Any) -> None:
            with log.open("wb") as file:
                await super().start_kernel(stdout=file, stderr=subprocess.STDOUT, **options)

    return OwnKernelManager
