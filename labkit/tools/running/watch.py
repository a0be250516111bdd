"""A watch over one lab's processes: its time, its memory, and how its kernel ended.

The kernel's process tree is polled several times a second from outside, so that even a lab that
hangs inside a compiled graph, or that exhausts the machine's memory, is stopped.
"""

import contextlib
import math
import signal
import subprocess
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from labkit.base.arguments import wrong
from labkit.base.memory import left_in_container, statistic
from labkit.ranks import processes

GB = 1e9
# Share of free memory; the rest keeps the machine responsive until an overrun is noticed.
_SHARE = 0.9
_GRACE = 5.0  # seconds between asking a kernel to stop and ending it
_EVERY = 0.2  # seconds; fresh memory is touched at some 3 GB/s, so a limit is overrun by 0.6 GB


@dataclass(frozen=True)
class Limits:
    """Limits of one lab; None means no limit.

    Attributes:
        seconds: time limit of the whole lab.
        cell_seconds: time limit of one cell.
        memory: limit of the bytes that the kernel and its processes hold, shared pages excluded.

    Raises:
        InputError: if one of them is not positive.
    """

    seconds: float | None = None
    cell_seconds: float | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not value > 0:
                raise wrong(name, value, "a number > 0")

    def __str__(self) -> str:
        """Return the limits as the end of a sentence; empty if there is none."""
        parts = []
        for value, unit in (
            (self.seconds, "s"),
            (self.cell_seconds, "s a cell"),
            (self.memory and self.memory / GB, "GB"),
        ):
            if value is not None and not math.isinf(value):
                parts.append(f"{value:.3g} {unit}" if unit == "GB" else f"{value:g} {unit}")
        return f", at most {', '.join(parts)}" if parts else ""


def free_memory() -> float:
    """Return a lab's default memory limit in bytes: 90 % of what is free now."""
    free, left = psutil.virtual_memory().available, left_in_container()
    return _SHARE * (free if left is None else min(free, left))


class Watch:
    """A context manager around one execution.

    Args:
        mark: mark of the processes, from ``ranks.processes.guarded``.
        limits: the limits; papermill, not the watch, enforces ``cell_seconds``.
        stop: when it is set, the kernel is ended.

    Attributes:
        cause: why the kernel was stopped or died: None, "timeout", "memory", "interrupted" or
            "died".
        reason: the cause in words.
        peak: peak memory, in bytes.
    """

    def __init__(self, mark: str, limits: Limits, stop: threading.Event | None = None) -> None:
        self.cause: str | None = None
        self.reason = ""
        self.peak = 0.0
        self._mark, self._limits = mark, limits
        self._stop = stop or threading.Event()
        self._kernel: subprocess.Popen | None = None
        self._kills = _out_of_memory_kills()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def kernel_started(self, kernel: subprocess.Popen) -> None:
        """Start to watch the kernel's process."""
        self._kernel = kernel

    def kernel_died(self) -> None:
        """Find out how a kernel ended to which Jupyter has lost the connection."""
        self.__exit__()
        if self.cause is not None or self._kernel is None:
            return
        self.cause = "died"
        code = self._kernel.poll()
        if code is None:
            self.reason = "the kernel does not answer any more"
        elif code >= 0:
            self.reason = f"the kernel's process exited with code {code}"
        else:
            name = processes.signal_name(-code)
            self.reason = f"the kernel was ended by {name}"
            if name == "SIGKILL" and _out_of_memory_kills() > self._kills:
                self.cause = "memory"
                held = f"it held {self.peak / GB:.1f} GB"
                self.reason += f", by the system for want of memory; {held}"

    def _look(self) -> None:
        began = time.monotonic()
        asked = None  # time at which the kernel was asked to stop
        while not self._over.wait(_EVERY):
            if self._kernel is None:
                continue
            self.peak = max(self.peak, held := memory_of(self._kernel.pid))
            now = time.monotonic()
            if self._stop.is_set():
                self._end("interrupted", "stopped from outside")
            elif asked is not None:
                if now - asked > _GRACE:
                    self._end("timeout", self.reason)
            elif self._limits.memory is not None and held > self._limits.memory:
                limit = self._limits.memory / GB
                self._end("memory", f"it held {held / GB:.1f} GB; at most {limit:.3g} GB")
            elif self._limits.seconds is not None and now - began > self._limits.seconds:
                self.cause = "timeout"
                self.reason = f"it took longer than {self._limits.seconds:g} s"
                asked = now
                # So that a traceback shows where the cell was; code that ignores it is ended later.
                with contextlib.suppress(ProcessLookupError):
                    self._kernel.send_signal(signal.SIGINT)

    def _end(self, cause: str, reason: str) -> None:
        """End the kernel and its processes, and the watch."""
        self.cause, self.reason = cause, reason
        self._over.set()
        processes.end(self._mark)


def memory_of(pid: int) -> float:
    """Return the bytes that a process and its descendants hold: resident minus shared memory.

    Shared pages are the libraries (0.5 GB of MindSpore), mapped by every rank but in memory once.
    """
    total = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                memory = each.memory_info()
                total += max(memory.rss - getattr(memory, "shared", 0), 0)
    return total


def _out_of_memory_kills() -> int:
    """Return how many processes the system has killed for lack of memory since it started."""
    return statistic(Path("/proc/vmstat"), "oom_kill")
