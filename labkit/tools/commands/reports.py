"""`labkit report`, `labkit compare` and `labkit attach`: results of runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from labkit.tools.reports.difference import Difference


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folder of a run, of a lab, or a sweep.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="RUN/report.html for one RUN, ./report.html for several."),
    ] = None,
    notebooks: Annotated[
        bool, typer.Option(help="Convert the executed notebooks too, two to four seconds each.")
    ] = True,
) -> None:
    """Write one HTML page about runs that needs no network, and print its path.

    Differences between the runs come first, then what ran where, failures, headline numbers beside
    the stored run's, overlaid curves, figures and the executed notebooks, which become pages in a
    folder beside it.

    Example: labkit report runs/latest
    """
    from labkit.base.printable import printable
    from labkit.tools.reports import page

    print(printable(str(page.write(runs, out, notebooks))))


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


def compare(
    left: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run or of a lab.")],
    right: Annotated[Path, typer.Argument(metavar="RUN", help="The other one.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead.")] = False,
) -> None:
    """Print what differs between two runs; exit code 0 if nothing does, 1 otherwise.

    Parameters, versions, inputs, metrics and status are compared, lab by lab. Times are listed but
    do not count as differences: they vary from run to run.

    Example: labkit compare runs/20260101-120000 runs/latest
    """
    from labkit.tools import console
    from labkit.tools.reports import difference
    from labkit.tools.reports.read import read_all

    first, second = read_all([left, right])
    differences = difference.compare(first, second)
    if json:
        from json import dumps

        from labkit.labs.run_files import plain

        names = {"left": str(first.folder), "right": str(second.folder)}
        # A NaN in a damaged results.json becomes a text, as Run.finish writes it.
        record = plain(names | difference.as_json(differences), "the comparison")
        console.line(dumps(record, ensure_ascii=False, allow_nan=False))
    else:
        head = ("lab", "what", first.label, second.label, "difference", "tolerance")
        others = [_row(each) for each in differences if each.group != "times"]
        times = [_row(each)[:5] for each in differences if each.group == "times"]
        if others:
            console.table(head, others)
        else:
            console.line("no differences")
        if times:
            console.line("\ntimes, which do not count:")
            console.table(head[:5], times)
    raise typer.Exit(1 if difference.counting(differences) else 0)


def _row(difference: "Difference") -> tuple[str, ...]:
    from labkit.tools.reports.difference import number

    name, group = difference.name, difference.group
    what = name if group in ("run", "times") else f"{group}: {name}"
    change = "" if difference.change is None else f"{difference.change:+.3g}"
    within = {None: "", True: "within", False: "outside"}[difference.within]
    left, right = number(difference.left), number(difference.right)
    return difference.lab, what, left, right, change, within
