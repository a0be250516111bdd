"""One exception for everything a user can get wrong, and the words that point to the right name."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Input that cannot be used: the message says what came and what was expected.

    The command line prints it without a traceback and exits with code 2.
    """


def nearest(name: object, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest of ``known``, or an empty string."""
    by_lower = {str(one).lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.5)
    return f" Did you mean '{by_lower[close[0]]}'?" if close else ""


def refuse_unknown(kind: str, name: object, known: Iterable[str]) -> None:
    """Raise ``InputError`` unless ``name`` is one of ``known``; ``kind`` names what it is."""
    known = list(known)
    if name not in known:
        expected = ", ".join(known) if known else "none"
        raise InputError(
            f"unknown {kind} {name!r}; expected one of: {expected}.{nearest(name, known)}"
        )
