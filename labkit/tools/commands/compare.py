"""`labkit compare`: the differences between two runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from labkit.tools.reports.difference import Difference


def compare(
    left: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run or of a lab.")],
    right: Annotated[Path, typer.Argument(metavar="RUN", help="Another one.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead.")] = False,
) -> None:
    """Print what differs between two runs; exit code 0 if nothing does, 1 otherwise.

    Parameters, versions, inputs, metrics and status are compared, lab by lab. Times are listed but
    do not count: no two runs take the same.

    Example: labkit compare runs/20260101-120000 runs/latest
    """
    from labkit.tools.reports import difference
    from labkit.tools.reports.read import read_all

    first, second = read_all([left, right])
    differences = difference.compare(first, second)
    if json:
        from json import dumps

        from labkit.labs.run_files import plain
        from labkit.tools import console

        names = {"left": str(first.folder), "right": str(second.folder)}
        # A NaN in a damaged results.json becomes a text, as Run.finish writes it.
        record = plain(names | difference.as_json(differences), "the comparison")
        console.line(dumps(record, ensure_ascii=False, allow_nan=False))
    else:
        _show(differences, first.label, second.label)
    raise typer.Exit(1 if difference.counting(differences) else 0)


def _show(differences: Sequence["Difference"], left: str, right: str) -> None:
    from labkit.tools import console

    head = ("lab", "what", left, right, "difference", "tolerance")
    times = [each for each in differences if each.group == "times"]
    others = [each for each in differences if each.group != "times"]
    if others:
        console.table(head, map(_row, others))
    else:
        console.line("no differences")
    if times:
        console.line("\ntimes, which do not count:")
        console.table(head[:5], [_row(each)[:5] for each in times])


def _row(difference: "Difference") -> tuple[str, ...]:
    from labkit.tools.reports.difference import number

    name, group = difference.name, difference.group
    what = name if group in ("run", "times") else f"{group}: {name}"
    change = "" if difference.change is None else f"{difference.change:+.3g}"
    within = {None: "", True: "within", False: "outside"}[difference.within]
    left, right = number(difference.left), number(difference.right)
    return difference.lab, what, left, right, change, within
