"""What the data scripts share as programs."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from labkit.errors import InputError


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser that shows ``description``, a script's own docstring, as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def exit_code(script: str, prepare: Callable[[], Path]) -> int:
    """Call ``prepare``; return 0, or 2 for bad input with its message on stderr."""
    try:
        prepare()
    except InputError as error:
        print(f"{Path(script).name}: {error}", file=sys.stderr)
        return 2
    return 0
