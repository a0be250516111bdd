"""SIGTERM as an exception, so that what a command has started ends with the command."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise ``SystemExit`` on SIGTERM, which would end Python at once and leave kernels running."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: object) -> None:
    # A second SIGTERM (one to the group, one from the script) would interrupt the clean-up. Not
    # SIG_IGN: an ignored signal would stay ignored in processes that are started.
    signal.signal(number, lambda *_: None)
    raise SystemExit(128 + number)
