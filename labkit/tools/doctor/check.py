"""What a check of the doctor returns, and what becomes of it."""

import sys
from dataclasses import dataclass
from typing import NamedTuple

INSTALL = (
    f"install the pinned versions: {sys.executable} -m pip install -c constraints.txt -e '.[labs]'"
)


class Finding(NamedTuple):
    """What a check found; ``remedy`` replaces the one of the table where a closer one is known."""

    ok: bool
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """One finished check: its name, whether it passed, what was found, and the remedy."""

    name: str
    ok: bool
    found: str
    remedy: str
