"""Which processes live, which of them a test has started, and how one takes Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

MARK = "MARKED_BY"  # a variable that a test gives to what it starts, and that children inherit


def is_alive(pid):
    """Whether process ``pid`` runs; one that nobody has collected yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def marked(by):
    """Pids of the living processes that were started with ``MARK=by`` in their environment."""
    return [pid for pid in psutil.pids() if _carries(pid, f"{MARK}={by}".encode())]


def _carries(pid, text):
    try:
        return text in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone meanwhile, or another user's
        return False


def interrupted(arguments: list[str], mark: Path, is_time: Callable[[], bool]) -> tuple:
    """Start `labkit` with ``arguments``, send it Ctrl-C once ``is_time``.

    Returns (exit code, stdout, stderr). Nothing that it has started lives on.
    """
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "labkit.tools.cli", *arguments],
        env=os.environ | {MARK: str(mark)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until = time.monotonic() + 60
        while not is_time():
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert not marked(mark) and "Traceback" not in stderr
    return process.returncode, stdout, stderr
