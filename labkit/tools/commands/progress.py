"""`labkit progress`: which exercises pass."""

import json
from pathlib import Path
from typing import Annotated

import typer

from labkit.errors import InputError
from labkit.tools.commands import options


def progress(
    labs: options.Labs = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of your copies; work/ in the project if not given.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that the check of one answer may take.")
    ] = 10.0,
    as_json: options.Json = False,
) -> None:
    """Show which exercises pass in your copies of the notebooks; no training is run.

    Of a notebook only the functions of the answers, and what these need, are executed, each in a
    process of its own that ends in time. labkit writes nothing. This is no sandbox: an answer runs
    with your rights and can call itself passed, so look at your own copies, not at a stranger's.

    Example: labkit progress 01
    """
    from labkit.base.project import find_project
    from labkit.tools import console
    from labkit.tools import labs as lab_files
    from labkit.tools.work import copies, marks

    project = find_project()
    chosen = lab_files.pick(lab_files.find_labs(project), labs or ())
    # Looking writes nothing, so any folder will do, the project's own notebooks too.
    place = project / copies.FOLDER if folder is None else folder
    if not place.is_dir():
        raise InputError(f"no copies of the notebooks in {place}: `labkit work` makes them")
    found = marks.look(place, chosen, timeout)
    if as_json:
        for one in found:
            console.line(_json(one))
    else:
        _show(found)


def _json(found) -> str:
    exercises = [
        {"name": mark.name, "state": mark.state, "message": mark.message, "notes": [*mark.notes]}
        for mark in found.marks
    ]
    record = {"lab": found.lab.name, "notebook": str(found.path), "problem": found.problem}
    record |= {"passed": found.passed, "count": len(found.marks), "exercises": exercises}
    return json.dumps(record, ensure_ascii=False)


def _show(found) -> None:
    from labkit.tools import console

    for lab in found:
        said = f"{lab.lab.name}: {lab.passed} of {len(lab.marks)} passed"
        console.line(f"{said} ({lab.problem})" if lab.problem else said)
        if lab.problem:
            continue
        width = max(len(mark.name) for mark in lab.marks)
        for mark in lab.marks:
            message = "" if mark.state == "passed" else mark.message
            said = [f"{mark.name:{width}}  {mark.state:13}  {message}"]
            said += [" " * (width + 17) + note for note in mark.notes]
            for one in said:
                console.line(f"    {one}".rstrip())
    passed, count = sum(lab.passed for lab in found), sum(len(lab.marks) for lab in found)
    console.line(f"{passed} of {count} exercises passed")
