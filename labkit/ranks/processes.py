"""Processes that must not outlive the call that started them.

Every process of a call carries a mark in its environment, which children inherit: one that has
changed its session, or whose parent is gone, is found by it as well. A guard, a small process of
its own, waits for the calling process to end, however that ends (a kernel that is restarted gets
no chance to tidy up), and ends then what carries the mark.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO

import psutil

MARK = "LABKIT_LAUNCH"
# Two looks this far apart that find nothing: in the middle of an exec a process shows no
# environment for some microseconds.
_AGAIN = 0.02
_PATIENCE = 10.0  # seconds; SIGKILL takes milliseconds where no device or network disk hangs
_READY = b"ready\n"  # a guard's first word; it takes 0.2 s to start, 3 s where others compute
_START = 30.0  # seconds for it


@contextlib.contextmanager
def guarded(
    sessions: Mapping[int, float | None] = MappingProxyType({}),
) -> Iterator[dict[str, str]]:
    """Give the variables to start processes with, and end every one of them when it is left.

    Ended by SIGKILL: the processes themselves, their descendants, whatever carries the mark. What
    escapes is a process that has all three: another session, no parent and another environment.
    Warns (``RuntimeWarning``) where the guard does not start, or has not lived to the end.

    Args:
        sessions: ids of sessions that belong to the processes, with the time their leader was
            created; may grow meanwhile. They find children that have another environment and
            have lost their parent.
    """
    mark = uuid.uuid4().hex
    outer = os.environ.get(MARK)  # a call inside a call belongs to the outer one as well
    guard = subprocess.Popen(
        module_command("labkit.ranks.processes", mark),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=child_environment(),
    )
    lifeline, output = guard.stdin, guard.stdout
    assert lifeline is not None and output is not None  # they are pipes
    lives = _is_ready(output)
    if not lives:
        _warn("did not start")
    try:
        yield {MARK: f"{outer}:{mark}" if outer else mark}
    finally:
        try:
            end(mark, sessions)
        finally:
            if lives and guard.poll() is not None:
                _warn("ended before the call did")
            with contextlib.suppress(BrokenPipeError):
                lifeline.close()
            output.close()
            guard.wait()


def _is_ready(output: IO[bytes]) -> bool:
    readable, _, _ = select.select([output], [], [], _START)
    return bool(readable) and os.read(output.fileno(), len(_READY)) == _READY


def _warn(what: str) -> None:
    warnings.warn(
        f"the guard of this call {what}: should this process be ended by SIGKILL, those that it "
        "has started stay",
        RuntimeWarning,
        stacklevel=4,
    )


def end(mark: str, sessions: Mapping[int, float | None] = MappingProxyType({})) -> None:
    """End all processes of a mark, until none is left; ``RuntimeError`` where one cannot be."""
    until = time.monotonic() + _PATIENCE
    empty = 0
    while empty < 2:
        family = _family(mark, sessions)
        if family and time.monotonic() > until:
            raise RuntimeError(f"processes that SIGKILL does not end: {sorted(family)}")
        empty = 0 if family else empty + 1
        for pid in family:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_AGAIN)


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of labkit in a Python of its own.

    -P: ``-m`` alone puts the working folder first on the path, so that a signal.py or torch.py that
    lies there would be executed. Where labkit is, ``child_environment`` says.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """Return this process's variables, with a PYTHONPATH by which a child finds this labkit."""
    return os.environ | {"PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}


def python_path(before: str | None) -> str:
    """Return PYTHONPATH with the folder that this labkit was imported from in front.

    Empty parts are left out: they would be the child's working folder.
    """
    root = str(Path(__file__).resolve().parents[2])
    # An installed one is found anyway, and its folder would come before the standard library.
    own = [] if root.endswith("-packages") else [root]
    return os.pathsep.join([*own, *filter(None, (before or "").split(os.pathsep))])


def _family(mark: str, sessions: Mapping[int, float | None]) -> set[int]:
    """Pids that live: with the mark, in one of the sessions, and the descendants of both."""
    # A leader created at another time is a stranger with the number of one that is long gone.
    own = {number for number, time in sessions.items() if created(number) in (None, time)}
    parents, family = {}, set()
    for process in psutil.process_iter(["pid", "ppid", "status"]):
        pid = process.info["pid"]
        if process.info["status"] == psutil.STATUS_ZOMBIE or pid == os.getpid():
            continue
        parents[pid] = process.info["ppid"]
        if _carries(pid, mark) or _session(pid) in own:
            family.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family


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


def signal_name(number: int) -> str:
    """Return ``SIGKILL``, or the number of a signal that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


if __name__ == "__main__":
    os.write(sys.stdout.fileno(), _READY)
    sys.stdin.buffer.read()  # until the calling process has closed it, or is gone
    end(sys.argv[1])
