"""SIGTERM as an exception, so that what a command has started is ended with it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise ``SystemExit`` where SIGTERM comes: it would end Python at once, and leave kernels."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
