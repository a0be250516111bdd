"""`labkit lab`: JupyterLab on the learner's copies; what `make lab` calls."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.errors import InputError, refuse_unknown
from labkit.tools.commands import options


def lab(
    notebook: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LAB|NOTEBOOK] [-- OPTION...]",
            help="Number or name of a lab, or a notebook's path; options for JupyterLab itself.",
            autocompletion=options.labs,
        ),
    ] = None,
    folder: options.Folder = None,
    committed: Annotated[
        bool, typer.Option("--committed", help="Open the project's own notebooks, no copies.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="First port to try; 8888 if not given.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser, where there is one.")] = True,
) -> None:
    """Open JupyterLab on your own copies of the notebooks; it makes those that are not there yet.

    On this machine only, behind a token, and with this environment's kernel, whatever kernels and
    settings the user has elsewhere. A port that is taken is no fault: the next one is used. An
    executed notebook of a run can be opened by its path.

    Example: labkit lab 01
    """
    from labkit.labs import presets
    from labkit.tools import jupyter

    refuse_unknown("preset", os.environ.get("LABKIT_PRESET", "lab"), presets.PRESETS)
    more = [word for word in notebook or () if word.startswith("-")]
    named = [word for word in notebook or () if not word.startswith("-")]
    if len(named) > 1:
        raise InputError(f"expected one lab or notebook, got {' '.join(named)}")
    root, place = _choose(named[0] if named else None, folder, committed)
    command = jupyter.command(root, place, port=port, browser=browser, more=more)
    sys.stdout.flush()
    os.execve(command[0], command, jupyter.environment(os.environ))


def _choose(name: str | None, folder: Path | None, committed: bool) -> tuple[Path, Path]:
    """Return the folder that JupyterLab shows, and the notebook in it to open."""
    from labkit.base.project import find_project
    from labkit.tools.labs import chosen

    if name is not None and name.endswith(".ipynb"):
        if folder is not None or committed:
            raise InputError(f"{name} is a notebook's path: --folder and --committed choose a lab")
        project = find_project()
        place = Path(name).resolve()
        if not place.is_file():
            raise InputError(f"there is no notebook {place}")
    else:
        project, labs = chosen([name or "0"])
        if len(labs) != 1:
            raise InputError(f"expected one lab, got {name}")
        place = labs[0].path if committed else _copy(project, folder, labs[0].path.name)
    return (project if project in place.parents else place.parent), place


def _copy(project: Path, folder: Path | None, name: str) -> Path:
    """Return the copy called ``name``; copies that are not there yet are made, and spoken of."""
    from labkit.tools.labs import find_labs
    from labkit.tools.work import copies

    place = copies.work_folder(project, folder)
    for copy in copies.make(project, place, find_labs(project)):
        if copy.state == "copied":
            print(f"{copy.path}: your own copy, made now")
        elif copy.state == "behind":
            print(f"{copy.path}: older than the project's; `labkit work --update` merges")
    return place / name
