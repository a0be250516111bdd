"""Waiting for what another process does."""

import time


def wait_until(condition, seconds=60):
    """Return once ``condition()`` is true; fail if that takes longer than ``seconds``."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.02)
