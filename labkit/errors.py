"""One exception for everything a user can get wrong, and hints at the right name."""

import difflib
import sys
import warnings
from collections.abc import Iterable


class InputError(ValueError):
    """Input that cannot be used: the message says what was expected and what was given.

    The command line prints it without a traceback and exits with code 2. Its lines are joined, and
    the middle of a message of more than 1000 characters is left out.
    """

    def __init__(self, message: object = "") -> None:
        lines = filter(None, map(str.strip, str(message).splitlines()))
        text = "; ".join(lines).replace(":; ", ": ")
        super().__init__(text if len(text) <= 1000 else f"{text[:600]} ... {text[-300:]}")


def nearest(name: object, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest of ``known``, or an empty string."""
    by_lower = {str(candidate).lower(): candidate for candidate in known}
    # At cutoff 0.5, O1 is close to both O2 and O3.
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.51)
    return f" Did you mean '{by_lower[close[0]]}'?" if close else ""


def refuse_unknown(kind: str, name: object, known: Iterable[str]) -> None:
    """Raise ``InputError`` unless ``name`` is one of ``known``; ``kind`` names what it is."""
    known = list(known)
    if name not in known:
        expected = f"{', '.join(known) or 'none'}.{nearest(name, known)}"
        raise InputError(f"unknown {kind} {name!r}; expected one of: {expected}")


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and name the line outside labkit from which this was called."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("labkit."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


class WorkerFailed(RuntimeError):
    """A rank that ``labkit.launch`` started failed, or did not end in time.

    Attributes:
        rank: its number; None if msrun failed, or if ranks hang.
        exit_code: of its process, -n if signal n ended it; None if it hangs.
        tail: the last lines of its log.
    """

    def __init__(
        self, message: str, rank: int | None = None, exit_code: int | None = None, tail: str = ""
    ) -> None:
        super().__init__(message)
        self.rank, self.exit_code, self.tail = rank, exit_code, tail


class WorkersTimedOut(WorkerFailed, TimeoutError):
    """Ranks had not ended when the time was up; ``tail`` ends with where each of them was."""
