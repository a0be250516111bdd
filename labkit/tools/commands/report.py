"""`labkit report`: runs on one HTML page."""

from pathlib import Path
from typing import Annotated

import typer


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

    What differs between them comes first, then what ran where, failures, headline numbers against
    the stored run, curves over each other, figures and the executed notebooks, which become pages
    in a folder beside it.

    Example: labkit report runs/latest
    """
    from labkit.base.printable import printable
    from labkit.tools.reports import page

    print(printable(str(page.write(runs, out, notebooks))))
