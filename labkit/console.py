"""What the command line prints: plain lines and columns, and rich tables where a person watches."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from labkit.doctor import Check
from labkit.runner import Outcome

_NAME_WIDTH = 12
_STYLE = {"pass": "green", "passed": "green", "fail": "bold red", "failed": "bold red"}


def line(text: str) -> None:
    """Print one line at once, also into a pipe."""
    print(text, flush=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: rich's in a terminal, else aligned columns, a row a line, nothing cut off."""
    rows = [list(row) for row in rows]
    console = Console()
    if console.is_terminal:
        # Folded, not cut off with an ellipsis: a path must stay whole.
        drawn = Table(*(Column(name, overflow="fold") for name in head), box=box.SIMPLE_HEAD)
        for row in rows:
            drawn.add_row(*(Text(cell, style=_STYLE.get(cell, "")) for cell in row))
        console.print(drawn)
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        line("  ".join(cells).rstrip())


def outcomes(found: Sequence[Outcome]) -> None:
    """Print the closing table of a run, and on stderr why a lab stopped."""
    line("")
    table(("lab", "status", "device", "seconds", "headline", "notebook"), map(_row, found))
    for outcome in found:
        if outcome.refused:
            print(f"labkit: {outcome.lab.name}: {outcome.failure.message}", file=sys.stderr)
        elif outcome.failure:
            failure = outcome.failure
            reason = f"{failure.name}: {failure.message}".splitlines()[0].rstrip(": ")
            print(
                f"labkit: {outcome.lab.name} failed in cell {failure.cell}: {reason}\n"
                f"    {_near(outcome.notebook)} shows where",
                file=sys.stderr,
            )


def check(found: Check) -> Check:
    """Print one finding of the doctor, with the remedy if it is none of the good ones."""
    console = Console(soft_wrap=True, highlight=False)
    verdict = "pass" if found.ok else "fail"
    text = Text.assemble(
        (verdict, _STYLE[verdict]), f"  {found.name.ljust(_NAME_WIDTH)}  {found.found}"
    )
    console.print(text)
    if not found.ok:
        console.print(Text(" " * (_NAME_WIDTH + 8) + f"remedy: {found.remedy}"))
    return found


def headline(results: Mapping[str, Any]) -> str:
    """Return the headline metrics of a results.json as one line: ``test accuracy 0.9812``."""
    metrics = results["metrics"]
    return ", ".join(f"{name} {_number(metrics[name])}" for name in results["headline"])


def _row(outcome: Outcome) -> tuple[str, ...]:
    results = outcome.results
    return (
        outcome.lab.name,
        results["status"],
        results["device"] or "-",
        f"{results['total_seconds']:.1f}",
        headline(results) or "-",
        _near(outcome.notebook),
    )


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _near(path: Path) -> str:
    """Return ``path`` as seen from here where it is below, else in full."""
    here = Path.cwd().resolve()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
