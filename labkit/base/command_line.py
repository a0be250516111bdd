"""An option parser that suggests the nearest name for an unknown one."""

import argparse
import re
from typing import Any, NoReturn

from labkit.errors import nearest

_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)$")


class Parser(argparse.ArgumentParser):
    """Accepts options by their full names only, and suggests the nearest for a misspelled one.

    Args:
        **settings: as for ``argparse.ArgumentParser``.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Print the message, with the nearest name, and exit with code 2."""
        start, colon, unknown = message.partition("unrecognized arguments: ")
        if colon and not start:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            message += "." + nearest(unknown.split()[0].partition("=")[0], known)
        elif choice := _CHOICE.search(message):
            message += "." + nearest(choice[1], re.findall(r"'([^']*)'", choice[2]))
        super().error(message)
