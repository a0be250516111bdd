"""`labkit attach`: the curves of a run in a terminal."""

from pathlib import Path
from typing import Annotated

import typer


def attach(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, of a lab, or a sweep.")
    ],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 3.0,
    once: Annotated[bool, typer.Option(help="Look once, and do not wait for the end.")] = False,
) -> None:
    """Show the live curves of a running or finished run as text, until it ends.

    Ctrl-C leaves the run alone. Exit code 0 if the run has passed or is still running, 1 if it
    failed or was interrupted. In a notebook, `labkit.attach(folder)` draws them.

    Example: labkit attach runs/latest
    """
    from labkit.tools.reports import live

    status = live.in_terminal(run, every, once)
    raise typer.Exit(1 if status in ("failed", "interrupted") else 0)
