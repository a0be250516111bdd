"""`labkit work`: the learner's own copies of the notebooks."""

import os
from pathlib import Path
from typing import Annotated

import typer

from labkit.tools.commands import options

_SAID = {
    "copied": "copied",
    "unchanged": "there already",
    "behind": "there already, and older than the project's",
    "updated": "updated",
    "left": "left as it is",
}


def work(
    labs: options.Labs = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the copies; work/ in the project if not given.")
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Merge what changed in the project into the copies.")
    ] = False,
) -> None:
    """Make your own copies of the notebooks, without outputs; what you wrote is never overwritten.

    Answers and parameters belong there: no other command writes to these files. When the
    project's notebooks have changed, --update merges them in cell by cell, after a backup; close
    them in JupyterLab first, or choose Revert when it says that a file has changed.

    Example: labkit work 01 04
    """
    from labkit.base.project import find_project
    from labkit.tools import console
    from labkit.tools import labs as lab_files
    from labkit.tools.work import copies

    project = find_project()
    chosen = lab_files.pick(lab_files.find_labs(project), labs or ())
    place = copies.work_folder(project, folder)
    made = copies.make(project, place, chosen, update=update)
    for copy in made:
        console.line(f"{_near(copy.path)}: {_SAID[copy.state]}")
        for note in copy.notes:
            console.line(f"    {note}")
    if any(copy.state == "behind" for copy in made):
        console.line("`labkit work --update` merges the changes; your own cells stay as they are")


def _near(path: Path) -> str:
    """Return ``path`` as seen from here where it is below, else in full."""
    seen = os.path.relpath(path)
    return str(path) if seen.startswith(os.pardir) else seen
