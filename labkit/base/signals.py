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
    # A second one, to the group and by the script, would end what is being done finally. Not
    # SIG_IGN: a signal that is ignored would stay ignored in what is started.
    signal.signal(number, lambda *_: None)
    raise SystemExit(128 + number)
