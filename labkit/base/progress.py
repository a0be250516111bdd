"""One progress display: a bar if a person is watching, else a plain line every few seconds."""

import os
import sys
import time
from collections.abc import Callable


def has_front_end() -> bool:
    """Return whether a Jupyter server started this kernel for a page that somebody looks at.

    A server names its session; a program that executes a notebook (papermill, nbval), even if
    started from such a session, accepts no input for it. A saved widget would be an empty box.
    """
    if not os.environ.get("JPY_SESSION_NAME") or os.environ.get("LABKIT_HEADLESS"):
        return False
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython and ipython.get_ipython(), "kernel", None)
    return getattr(kernel, "_allow_stdin", True)


def is_headless() -> bool:
    """Return whether progress goes to a log because nobody looks at a page or a terminal."""
    if "ipykernel" in sys.modules:
        return not has_front_end()
    return bool(os.environ.get("LABKIT_HEADLESS")) or not sys.stderr.isatty()


class Progress:
    """Progress through ``total`` steps, of which an earlier process has done ``done``."""

    def __init__(self, name: str, total: int, done: int = 0) -> None:
        self.name, self.total, self.done = name, total, done
        self._bar, self._between = None, 5.0  # seconds
        if not is_headless():
            from tqdm.auto import tqdm

            self._bar, self._between = tqdm(total=total, initial=done, desc=name), 0.5
        self._start = self._last = time.monotonic()

    def advance(self, text: Callable[[], str], steps: int = 1) -> None:
        """Count ``steps`` more; show what ``text`` returns after the count."""
        self.done += steps
        now = time.monotonic()
        due = now - self._last >= self._between or self.done == self.total
        self._last = now if due else self._last
        if self._bar is not None:
            self._bar.update(steps)
            if due:
                self._bar.set_postfix_str(text())
        elif due:
            seconds = f"{now - self._start:.0f} s"
            print(f"{self.name} {self.done}/{self.total} {text()} {seconds}", flush=True)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
