"""`labkit progress`: which exercises pass."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.errors import InputError
from labkit.tools.commands import options

if TYPE_CHECKING:
    from labkit.tools.work.marks import LabMarks


def progress(
    labs: options.Labs = None,
    folder: options.Folder = None,
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
    from labkit.tools import console
    from labkit.tools.labs import chosen
    from labkit.tools.work import copies, marks

    project, wanted = chosen(labs or ())
    # Looking writes nothing, so any folder will do, the project's own notebooks too.
    place = project / copies.FOLDER if folder is None else folder
    if not place.is_dir():
        raise InputError(f"no copies of the notebooks in {place}: `labkit work` makes them")
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
    """Yield what is printed of one lab: how many pass, then each exercise with its notes."""
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
