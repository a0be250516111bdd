"""Finds living processes and those that a test has started; interrupts a command by Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "MARKED_BY"  # variable that a test sets for what it starts; children inherit it


def is_alive(pid):
    """Return whether process ``pid`` runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def marked(by):
    """Return the PIDs of the living processes started with ``MARK=by`` in their environment."""
    return [pid for pid in psutil.pids() if _carries(pid, f"{MARK}={by}".encode())]


def _carries(pid, text):
    try:
        return text in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended meanwhile, or is another user's
        return False


def kill_marked(by):
    """End all processes that ``marked(by)`` names: a test that fails leaves nothing behind."""
    while pids := marked(by):  # again: one of them may just have started another
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def ranks_of(pid):
    """Return {rank: psutil.Process} of the living ranks that process ``pid`` has started."""
    ranks = {}
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):  # a rank before its own children
            with suppress(psutil.Error):  # one that has just ended
                variables = child.environ()
                if variables.get("MS_ROLE") == "MS_WORKER":
                    ranks.setdefault(int(variables["RANK_ID"]), child)
    return ranks


def wait_until(condition, seconds=60):
    """Return once ``condition()`` is true; fail if that takes longer than ``seconds``."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.02)


def interrupted(
    arguments: list[str], mark: Path, is_time: Callable[[], bool], by: int = signal.SIGINT
) -> tuple:
    """Start `labkit` with ``arguments``; end it by Ctrl-C once ``is_time()``, if it still runs.

    Return (exit code, stdout, stderr). Assert that no process it started is still alive.
    """
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "labkit.tools.cli", *arguments],
        env=os.environ | {MARK: str(mark)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_until(lambda: is_time() or process.poll() is not None)
            process.send_signal(by)
            stdout, stderr = process.communicate(timeout=30)
            assert not marked(mark) and "Traceback" not in stderr
        finally:
            kill_marked(mark)
    return process.returncode, stdout, stderr
