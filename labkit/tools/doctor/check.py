"""The result of a check of the doctor, and the most common remedy."""

import sys
from typing import NamedTuple

INSTALL = (
    f"install the pinned versions: {sys.executable} -m pip install -c constraints.txt -e '.[labs]'"
)


class Finding(NamedTuple):
    """The result of a check; ``remedy``, if given, replaces the more general one of the table."""

    ok: bool
    found: str
    remedy: str = ""
