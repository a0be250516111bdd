"""Processes that must not outlive the call that started them.

Every process of a call carries a mark in its environment, which children inherit. The mark also
finds processes that have changed their session or lost their parent. A guard, a small separate
process, waits for the calling process to end, however it ends (a kernel that is restarted gets no
chance to clean up), and then ends every process that carries the mark.
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
# Seconds between two searches that must find nothing: in the middle of an exec a process shows no
# environment for some microseconds.
_AGAIN = 0.02
_PATIENCE = 10.0  # seconds; SIGKILL takes milliseconds unless a device or network disk hangs
_READY = b"ready\n"  # a guard's first output; it starts in 0.2 s, or 3 s on a busy machine
_START = 30.0  # seconds for a guard to start


@contextlib.contextmanager
def guarded(
    sessions: Mapping[int, float | None] = MappingProxyType({}),
) -> Iterator[dict[str, str]]:
    """Yield the variables to start processes with; on leaving, end all of these processes.

    SIGKILL ends the processes themselves, their descendants and whatever carries the mark. Only a
    process with another session, no parent and another environment, all three, escapes.
    Warns (``RuntimeWarning``) if the guard does not start, or does not live to the end.

    Args:
        sessions: session id -> time at which its leader was created, for sessions that belong to
            the processes; may grow meanwhile. It finds children that have another environment and
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
    """End all processes with a mark or session; raise ``RuntimeError`` if one does not end."""
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
    """Return the command that runs a module of labkit in a separate Python process.

    -P: ``-m`` alone puts the working folder first on the path, so that a signal.py or torch.py that
    lies there would be executed. The child finds labkit through ``child_environment``.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """Return this process's variables, with a PYTHONPATH by which a child finds this labkit."""
    return os.environ | {"PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}


def python_path(before: str | None) -> str:
    """Return PYTHONPATH with the folder that this labkit was imported from in front.

    Empty parts are dropped: they would stand for the child's working folder.
    """
    root = str(Path(__file__).resolve().parents[2])
    # An installed labkit is found anyway, and its folder would precede the standard library.
    own = [] if root.endswith("-packages") else [root]
    return os.pathsep.join([*own, *filter(None, (before or "").split(os.pathsep))])


def _family(mark: str, sessions: Mapping[int, float | None]) -> set[int]:
    """Return the pids of live processes with the mark, in the sessions, and their descendants."""
    # A leader created at another time is an unrelated process that has reused the id.
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
    """Return the time at which a process was created; None if there is no such process."""
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
    """Return the name of a signal, such as ``SIGKILL``, or its number if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


if __name__ == "__main__":
    os.write(sys.stdout.fileno(), _READY)
    sys.stdin.buffer.read()  # until the calling process has closed it, or is gone
    end(sys.argv[1])
