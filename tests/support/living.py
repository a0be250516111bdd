"""Which processes live, and which of them a test has started."""

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
