"""`labkit compare`: the differences between two runs."""

from pathlib import Path
from typing import Annotated

import typer


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
    found = difference.compare(first, second)
    if json:
        from json import dumps

        from labkit.base.printable import printable
        from labkit.labs.run_files import plain

        names = {"left": str(first.folder), "right": str(second.folder)}
        # A NaN in a damaged results.json becomes a text, as Run.finish writes it.
        record = plain(names | difference.as_json(found), "the comparison")
        print(printable(dumps(record, ensure_ascii=False, allow_nan=False)))
    else:
        _show(found, first.label, second.label)
    raise typer.Exit(1 if difference.counting(found) else 0)


def _show(found, left: str, right: str) -> None:
    from labkit.tools import console

    head = ("lab", "what", left, right, "difference", "tolerance")
    counting = [one for one in found if one.group != "times"]
    if counting:
        console.table(head, map(_row, counting))
    else:
        console.line("no differences")
    times = [one for one in found if one.group == "times"]
    if times:
        console.line("\ntimes, which do not count:")
        console.table(head[:5], [_row(one)[:5] for one in times])


def _row(one) -> tuple[str, ...]:
    from labkit.tools.reports.difference import number

    what = one.name if one.group in ("run", "times") else f"{one.group}: {one.name}"
    change = "" if one.change is None else f"{one.change:+.3g}"
    within = {None: "", True: "within", False: "outside"}[one.within]
    return one.lab, what, number(one.left), number(one.right), change, within
