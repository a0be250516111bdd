"""One finding of the doctor."""

import sys
from dataclasses import dataclass

INSTALL = f"install the pinned versions: {sys.executable} -m pip install -c constraints.txt -e ."


@dataclass(frozen=True)
class Check:
    """One finding: what was looked at, whether it is all right, what was found, and the remedy."""

    name: str
    ok: bool
    found: str
    remedy: str
