"""Finds living processes and those that a test has started; interrupts a command by Ctrl-C."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "MARKED_BY"  # variable that a test sets for what it starts; children inherit it


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


def wait_until(condition, seconds=60):
    """Return once ``condition()`` is true; fail if that takes longer than ``seconds``."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.02)
