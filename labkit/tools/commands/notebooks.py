"""`labkit list`, `labkit lab`, `labkit work` and `labkit progress`: notebooks and their copies."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.base.arguments import wrong
from labkit.errors import refuse_unknown
from labkit.tools.commands import options

if TYPE_CHECKING:
    from labkit.tools.work.marks import LabMarks

_STATES = {
    "copied": "copied",
    "unchanged": "there already",
    "behind": "there already, and older than the project's",
    "updated": "updated",
    "left": "left as it is",
}


def list_labs() -> None:
    """Show the labs: number, name, title, presets, and the minutes stated on their header card.

    Example: labkit list
    """
    from labkit.base.project import find_project
    from labkit.tools import console
    from labkit.tools.labs import find_labs

    rows = [
        (lab.number, lab.name, lab.title, " ".join(lab.presets), lab.minutes)
        for lab in find_labs(find_project())
    ]
    console.table(("number", "lab", "title", "presets", "minutes"), rows)


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
    """Open JupyterLab on your own copies of the notebooks; missing copies are made first.

    The server is for this machine only, requires a token, and uses this environment's kernel,
    whatever kernels and settings the user has elsewhere. If a port is taken, the next one is used.
    An executed notebook of a run can be opened by its path.

    Example: labkit lab 01
    """
    from labkit.labs import presets
    from labkit.tools import jupyter

    refuse_unknown("preset", os.environ.get("LABKIT_PRESET", "lab"), presets.PRESETS)
    words = list(notebook or ())
    # Everything from the first option on, values too, is for JupyterLab itself.
    named = list(takewhile(lambda word: not word.startswith("-"), words))
    more = words[len(named) :]
    if len(named) > 1:
        raise wrong("LAB", " ".join(named), "one lab or notebook")
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
            raise wrong("LAB", name, "a number or name beside --folder or --committed")
        project = find_project()
        place = Path(name).resolve()
        if not place.is_file():
            raise wrong("NOTEBOOK", str(place), "a file that is there")
    else:
        if folder is not None and committed:
            raise wrong("--folder", str(folder), "none beside --committed: it is of your copies")
        project, labs = chosen([name or "0"])
        if len(labs) != 1:
            raise wrong("LAB", name, "one lab")
        place = labs[0].path if committed else _copy(project, folder, labs[0].path.name)
    return (project if project in place.parents else place.parent), place


def _copy(project: Path, folder: Path | None, name: str) -> Path:
    """Return the copy called ``name``; make missing copies; report new and outdated ones."""
    from labkit.tools.labs import find_labs
    from labkit.tools.work import copies

    place = copies.work_folder(project, folder)
    for copy in copies.make(project, place, find_labs(project)):
        if copy.state == "copied":
            print(f"{copy.path}: your own copy, made now")
        elif copy.state == "behind":
            print(f"{copy.path}: older than the project's; `labkit work --update` merges")
    return place / name


def work(
    labs: options.Labs = None,
    folder: options.Folder = None,
    update: Annotated[
        bool, typer.Option("--update", help="Merge what changed in the project into the copies.")
    ] = False,
) -> None:
    """Make your own copies of the notebooks, without outputs; what you wrote is never overwritten.

    Put your answers and parameters into these files: no other command writes to them. When the
    project's notebooks have changed, --update merges the changes cell by cell, after a backup;
    close the copies in JupyterLab first, or choose Revert when it says that a file has changed.

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


def progress(
    labs: options.Labs = None,
    folder: options.Folder = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that the check of one answer may take.")
    ] = 10.0,
    as_json: options.Json = False,
) -> None:
    """Show which exercises pass in your copies of the notebooks; no training is run.

    Only the answers' functions and the code they need are executed, each in a process of its own
    with a time limit. labkit writes nothing. This is not a sandbox: an answer runs with your rights
    and can declare itself passed, so check your own copies, not a stranger's.

    Example: labkit progress 01
    """
    from labkit.tools import console
    from labkit.tools.labs import chosen
    from labkit.tools.work import copies, marks

    project, wanted = chosen(labs or ())
    # Nothing is written, so any folder will do, even the project's own notebooks.
    place = project / copies.FOLDER if folder is None else folder
    if not place.is_dir():
        raise wrong("--folder", str(place), "a folder of copies, as `labkit work` makes them")
    results = marks.look(place, wanted, timeout)
    if as_json:
        for result in results:
            console.line(_json(result))
        return
    for result in results:
        for text in _lines(result):
            console.line(text)
    passed = sum(result.passed for result in results)
    console.line(f"{passed} of {sum(len(result.marks) for result in results)} exercises passed")


def _json(result: "LabMarks") -> str:
    record = {
        "lab": result.lab.name,
        "notebook": str(result.path),
        "problem": result.problem,
        "passed": result.passed,
        "count": len(result.marks),
        "exercises": [asdict(mark) for mark in result.marks],
    }
    return json.dumps(record, ensure_ascii=False)


def _lines(result: "LabMarks") -> Iterator[str]:
    """Yield the lines printed for one lab: how many pass, then each exercise with its notes."""
    head = f"{result.lab.name}: {result.passed} of {len(result.marks)} passed"
    if result.problem:
        yield f"{head} ({result.problem})"
        return
    yield head
    width = max(len(mark.name) for mark in result.marks)
    for mark in result.marks:
        message = "" if mark.state == "passed" else mark.message
        yield f"    {mark.name:{width}}  {mark.state:13}  {message}".rstrip()
        yield from (" " * (width + 21) + note for note in mark.notes)
