"""Output of the command line: plain lines and columns, and rich tables in a terminal."""

import json
import math
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from labkit.base.printable import printable
from labkit.errors import InputError
from labkit.tools.running.events import CAUSES, Event, Say

if TYPE_CHECKING:
    from labkit.tools.running.execution import Failure
    from labkit.tools.running.runner import Outcome

_STYLE = {"pass": "green", "passed": "green", "fail": "bold red", "failed": "bold red"}
_LOG_LINES = 5  # lines of a failed lab's log below the closing table
_WRITING = threading.Lock()


def line(text: str) -> None:
    """Print one line immediately, also into a pipe; control characters in it are escaped."""
    text = printable(text)
    try:
        # With PYTHONUNBUFFERED a write larger than a pipe's buffer (64 KiB) is split, and another
        # thread's line could come between the parts.
        with _WRITING:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe (| head): the run is worth more than its output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _complain("nobody reads standard output any more; going on")


def _complain(text: str) -> None:
    print(printable(f"labkit: {text}"), file=sys.stderr)


def reporter(*, quiet: bool = False, verbose: bool = False, as_json: bool = False) -> Say:
    """Return a function that prints a run's events: when labs start and end, and their progress.

    Args:
        quiet: print nothing
        verbose: also print the labs' output
        as_json: print every event as a JSON object on one line

    Raises:
        InputError: if more than one of them is set
    """
    if quiet + verbose + as_json > 1:
        raise InputError("expected at most one of --quiet, --verbose and --json")
    if as_json:
        return lambda event: line(json.dumps(event.as_json(), ensure_ascii=False))

    def say(event: Event) -> None:
        if not quiet and (verbose or event.kind != "output"):
            line(event.text)

    return say


def closing(done: Sequence["Outcome"], folder: Path, *, as_json: bool, code: int) -> None:
    """Print how a run ended: the table of its labs, why some failed, how to continue."""
    if as_json:
        by_lab = {outcome.lab.name: outcome.results["status"] for outcome in done}
        reporter(as_json=True)(_finished(code, labs=by_lab, folder=str(folder)))
    elif done:
        outcomes(done)
    if code in (1, 130):
        _complain(f"go on with: labkit run --resume {near(folder)}")


def _finished(code: int, **values: Any) -> Event:
    return Event("finished", "", None, {"exit_code": code, **values})


def outcomes(done: Sequence["Outcome"]) -> None:
    """Print the closing table of a run, and on stderr why labs failed."""
    line("")
    rows = [
        (
            outcome.lab.name,
            outcome.status,
            outcome.results.get("device") or "-",
            *_seconds_and_headline(outcome),
            near(outcome.notebook),
        )
        for outcome in done
    ]
    table(("lab", "status", "device", "seconds", "headline", "notebook"), rows)
    for outcome in done:
        if outcome.failure is not None:
            _explain(outcome, outcome.failure)


def _explain(outcome: "Outcome", failure: "Failure") -> None:
    name = outcome.lab.name
    if outcome.refused:
        _complain(f"{name}: {failure.message}")
        return
    log: Iterable[str] = ()
    reason = _first_line(failure).rstrip(": ")
    if failure.cause != "exception":
        reason = CAUSES[failure.cause]
        log = (failure.message, *(f"| {text}" for text in failure.log[-_LOG_LINES:]))
    lines = (f"{name} failed {_where(failure.cell)}: {reason}", *log)
    _complain("\n    ".join([*lines, f"{near(outcome.notebook)} shows where"]))


def sweep_begins(lab: str, axes: Mapping[str, Sequence], jobs: int, limits: object) -> Event:
    """Return the event that announces a sweep."""
    runs = math.prod(map(len, axes.values()))
    shape = " x ".join(f"{len(values)} {name}" for name, values in axes.items())
    at_once = f"{jobs} at once, each on its own core" if jobs > 1 else "one after the other"
    text = f"sweep: {lab}, {shape} = {runs} runs, {at_once}{limits}"
    return Event("sweep", text, lab, {"runs": runs, "jobs": jobs, "grid": dict(axes)})


def sweep_ends(runs: Sequence["Outcome"], files: Sequence[Path], *, as_json: bool) -> int:
    """Print a sweep's table, the files written and why runs failed; return the exit code."""
    code = 1 if any(run.failure for run in runs) else 0
    if as_json:
        reporter(as_json=True)(_finished(code, files=list(map(str, files))))
    else:
        line("")
        head = (*runs[0].parameters, "status", "seconds", "headline")
        rows = [
            (*map(str, run.parameters.values()), run.status, *_seconds_and_headline(run))
            for run in runs
        ]
        table(head, rows)
        figures = sorted({near(path.parent) for path in files[1:]})
        line(f"table: {near(files[0])}")
        line(f"figures: {len(files) - 1} in {', '.join(figures) or 'none'}")
    for run in runs:
        if failure := run.failure:
            reason = f"{_where(failure.cell)}: {_first_line(failure)}"
            _complain(f"{near(run.folder)} failed {reason}")
    return code


def _first_line(failure: "Failure") -> str:
    return f"{failure.name}: {failure.message}".splitlines()[0]


def _seconds_and_headline(outcome: "Outcome") -> tuple[str, str]:
    results = outcome.results
    values = [(name, results["metrics"][name]) for name in results.get("headline") or ()]
    shown = ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values
    )
    return f"{results.get('total_seconds', 0):.1f}", shown or "-"


def _where(cell: int | None) -> str:
    return f"in cell {cell}" if cell else "before its first cell"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a rich table in a terminal, else aligned columns, a line per row, nothing cut off."""
    rows = [[printable(cell) for cell in row] for row in rows]
    head = [printable(name) for name in head]
    console = Console()
    if console.is_terminal:
        # Folded instead of cut off with an ellipsis: a path must stay complete.
        drawn = Table(*(Column(Text(name), overflow="fold") for name in head), box=box.SIMPLE_HEAD)
        for row in rows:
            drawn.add_row(*(Text(cell, style=_STYLE.get(cell, "")) for cell in row))
        console.print(drawn)
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        line("  ".join(cells).rstrip())


def near(path: Path) -> str:
    """Return ``path`` relative to the working folder if it is inside, else in full."""
    here = Path.cwd().resolve()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
