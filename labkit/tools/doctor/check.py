"""What a check of the doctor returns, and the remedy of most."""

import sys
from typing import NamedTuple

INSTALL = (
    f"install the pinned versions: {sys.executable} -m pip install -c constraints.txt -e '.[labs]'"
)


class Finding(NamedTuple):
    """What a check found; ``remedy`` replaces the one of the table where a closer one is known."""

    ok: bool
    found: str
    remedy: str = ""
