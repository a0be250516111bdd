"""Memory, cores, processes: what only Linux has, of all that a training, a lab or a rank uses.

A training goes on without what Linux alone has (tests/base/test_machine.py hides it); each function
says what it then does. macOS and Windows themselves have not been tried.
"""

import ctypes
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from labkit.errors import InputError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
# Lines of NUMBER:CONTROLLERS:GROUP; version 2 names no controllers.
_OWN = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")


def need_linux(what: str) -> None:
    """Raise ``InputError`` elsewhere than on Linux: ``what`` starts processes and ends them."""
    if sys.platform != "linux":
        raise InputError(f"{what}: expected Linux, got {sys.platform}; on Windows, use WSL 2")


def control_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those around it, of any version.

    In a container the group may be named as the machine sees it: then only the outermost exists.
    """
    for line in _OWN.read_text().splitlines() if _OWN.exists() else ():
        _, controllers, name = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            mount = _MOUNTED / (controller if controllers else "")
            group = mount / name.lstrip("/")
            yield from (each for each in (group, *group.parents) if each.is_relative_to(mount))


def left_in_container() -> float:
    """Return the bytes that this process may still take by its control groups."""
    least = float("inf")
    for group in control_groups("memory"):
        for limit, used, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):  # no such file, or "max"
                left = int((group / limit).read_text()) - int((group / used).read_text())
                with suppress(OSError):  # cached files give way
                    lines = (group / "memory.stat").read_text().splitlines()
                    left += int(dict(map(str.split, lines)).get(cached, 0))
                least = min(least, max(left, 0))
    return least


def free_memory() -> float:
    """Return the bytes that are free here: the machine's, or the container's if fewer."""
    return min(psutil.virtual_memory().available, left_in_container())


def peak_memory() -> float:
    """Return the most bytes that this process has held; NaN elsewhere than on Linux."""
    if resource is None or sys.platform != "linux":  # macOS counts in other units
        return math.nan
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def own_memory(process: psutil.Process) -> int:
    """Return the bytes that a process holds now, without shared pages where they are told apart."""
    held = process.memory_info()
    return held.rss - getattr(held, "shared", 0)


def own_cores() -> list[int]:
    """Return the cores that this process is bound to; all of them where it cannot be bound."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores() -> float:
    """Return how many cores this process may use: those it is bound to, or its share of time."""
    least = float(len(own_cores()))
    for group in control_groups("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            with suppress(OSError, ValueError):  # no such file, or "max"
                quota, period = " ".join((group / name).read_text() for name in names).split()
                least = min(least, int(quota) / int(period)) if int(quota) > 0 else least
    return least


def bind(cores: Sequence[int]) -> None:
    """Bind every thread of this process to ``cores`` (Linux)."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # the thread has just ended
            os.sched_setaffinity(int(thread), cores)


def end_with_parent() -> None:
    """End when the process that started this one ends; write no core files of gigabytes (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def start_child(command: Sequence[str], log: BinaryIO, **options: Any) -> subprocess.Popen:
    """Start a process that writes into ``log``, leads a session, and ends with this one (Linux)."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=end_with_parent,
        **options,
    )


def exit_code(pid: int) -> int | None:
    """Return a process's exit code: None while it runs, 0 once collected by its parent (Linux)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return os.waitstatus_to_exitcode(int(stat[-1])) if stat[0] in "ZX" else None


@contextmanager
def time_limit(seconds: float, error: type[BaseException]) -> Iterator[None]:
    """Raise ``error`` in the block after ``seconds``, and again every second; on Windows, never.

    A bare except may catch one.
    """

    def stop(*_: object) -> None:
        raise error

    if not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def sync(path: Path) -> None:
    """Have the bytes of a file, or the names in a folder, on the disk when this returns.

    Not on Windows, which syncs no folder, nor a file that may only be read, as MindSpore's; there,
    and for folders in some file systems, a power cut may lose what was written.
    """
    if sys.platform == "win32":
        return
    with suppress(*[OSError] * path.is_dir()):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
