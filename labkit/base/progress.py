"""One progress display: a bar if a person is watching, else a plain line every few seconds."""

import os
import sys
import time
from collections.abc import Callable
from typing import Self

_SECONDS_BETWEEN_LINES = 5.0


def has_front_end() -> bool:
    """Return whether a Jupyter server started this kernel for a page that somebody looks at.

    False under papermill, nbconvert, nbval and ``labkit run``: a saved widget is an empty box, or
    a bar stuck at 0 %. A server names its session; a program that executes a notebook, even if it
    was started from such a session, accepts no input for it.
    """
    if not os.environ.get("JPY_SESSION_NAME") or _asked_for():
        return False
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(getattr(shell, "kernel", None), "_allow_stdin", True)


def _asked_for() -> bool:
    return bool(os.environ.get("LABKIT_HEADLESS") or os.environ.get("LABKIT_RUN"))


def is_headless() -> bool:
    """Return whether progress goes to a log because nobody looks at a page or a terminal."""
    if "ipykernel" in sys.modules:
        return not has_front_end()
    return _asked_for() or not sys.stderr.isatty()


class Progress:
    """Progress through ``total`` steps, a context manager; plain lines if ``is_headless``.

    Args:
        name: what is in progress
        total: number of steps
        done: steps done before this process (a resumed run)
    """

    def __init__(self, name: str, total: int, done: int = 0) -> None:
        self.name, self.total, self.done = name, total, done
        self._bar = None
        if not is_headless():
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, initial=done, desc=name)
        self._start = self._last = time.monotonic()

    def advance(self, text: str | Callable[[], str] = "", steps: int = 1) -> None:
        """Count ``steps`` more; show ``text`` (or what it returns) after the count."""
        self.done += steps
        now = time.monotonic()
        due = now - self._last >= (0.5 if self._bar is not None else _SECONDS_BETWEEN_LINES)
        if self._bar is not None:
            self._bar.update(steps)
        if due or self.done == self.total:
            self._last = now
            self._show(text() if callable(text) else text, now - self._start)

    def _show(self, text: str, seconds: float) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        else:
            print(f"{self.name} {self.done}/{self.total} {text} {seconds:.0f} s", flush=True)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
