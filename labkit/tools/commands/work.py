"""`labkit work`: the learner's own copies of the notebooks."""

from typing import Annotated

import typer

from labkit.tools.commands import options

_STATES = {
    "copied": "copied",
    "unchanged": "there already",
    "behind": "there already, and older than the project's",
    "updated": "updated",
    "left": "left as it is",
}


def work(
    labs: options.Labs = None,
    folder: options.Folder = None,
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
    from labkit.tools import console
    from labkit.tools.labs import chosen
    from labkit.tools.work import copies

    project, wanted = chosen(labs or ())
    made = copies.make(project, copies.work_folder(project, folder), wanted, update=update)
    for copy in made:
        console.line(f"{console.near(copy.path)}: {_STATES[copy.state]}")
        for note in copy.notes:
            console.line(f"    {note}")
    if any(copy.state == "behind" for copy in made):
        console.line("`labkit work --update` merges the changes; your own cells stay as they are")
