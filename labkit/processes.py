"""Processes that must not outlive the call that started them.

Every process of a call carries a mark in its environment, which children inherit: one that has
changed its session, or whose parent is gone, is found by it as well. A guard, a small process of
its own, waits for the calling process to end, however that ends (a kernel that is restarted gets
no chance to tidy up), and ends then what carries the mark.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import psutil

MARK = "LABKIT_LAUNCH"
# Two looks this far apart that find nothing: in the middle of an exec a process shows no
# environment for some microseconds.
_AGAIN = 0.02
_PATIENCE = 10.0  # seconds; SIGKILL takes milliseconds where no device or network disk hangs


@contextlib.contextmanager
def guarded(sessions: Mapping[int, float] = MappingProxyType({})) -> Iterator[dict[str, str]]:
    """Give the variables to start processes with, and end every one of them when it is left.

    sessions  ids of sessions that belong to the processes, with the time their leader was created;
              may grow meanwhile. They find children that were given an environment of their own
              and have lost their parent.

    Ended by SIGKILL: the processes themselves, their descendants, whatever carries the mark. What
    escapes is a process that has all three: another session, no parent and another environment.
    """
    mark = uuid.uuid4().hex
    outer = os.environ.get(MARK)  # a call inside a call belongs to the outer one as well
    guard = subprocess.Popen(
        [sys.executable, "-m", "labkit.processes", mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))},
    )
    try:
        yield {MARK: f"{outer}:{mark}" if outer else mark}
    finally:
        try:
            end(mark, sessions)
        finally:
            guard.stdin.close()
            guard.wait()


def end(mark: str, sessions: Mapping[int, float] = MappingProxyType({})) -> None:
    """End all processes of a mark, until none is left; ``RuntimeError`` where one cannot be."""
    until = time.monotonic() + _PATIENCE
    empty = 0
    while empty < 2:
        found = _family(mark, sessions)
        if found and time.monotonic() > until:
            raise RuntimeError(f"processes that SIGKILL does not end: {sorted(found)}")
        empty = 0 if found else empty + 1
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_AGAIN)


def python_path(before: str | None) -> str:
    """Return PYTHONPATH with the folder that this labkit was imported from in front."""
    root = str(Path(__file__).resolve().parents[1])
    # An installed one is found anyway, and its folder would come before the standard library.
    own = [] if root.endswith("-packages") else [root]
    return os.pathsep.join([*own, *([before] if before else [])])


def _family(mark: str, sessions: Mapping[int, float]) -> set[int]:
    """Pids that live: with the mark, in one of the sessions, and the descendants of both."""
    # A leader created at another time is a stranger with the number of one that is long gone.
    own = {number for number, time in sessions.items() if created(number) in (None, time)}
    parents, found = {}, set()
    for process in psutil.process_iter(["pid", "ppid", "status"]):
        pid = process.info["pid"]
        if process.info["status"] == psutil.STATUS_ZOMBIE or pid == os.getpid():
            continue
        parents[pid] = process.info["ppid"]
        if _carries(pid, mark) or _session(pid) in own:
            found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def created(pid: int) -> float | None:
    """Return the time a process was created; None where there is none of this number."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def _carries(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone meanwhile, or another user's
        return False


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


if __name__ == "__main__":
    sys.stdin.buffer.read()  # until the calling process has closed it, or is gone
    end(sys.argv[1])
