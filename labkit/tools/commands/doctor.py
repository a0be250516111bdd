"""`labkit doctor`. Nothing of the runner is imported: what that needs may be what is missing."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from labkit.tools.doctor import Check

_NAME_WIDTH = 12
_STYLE = {"pass": "green", "fail": "bold red"}


def _checks(incomplete: str) -> list[str]:
    from labkit.tools import doctor

    return [name for name in doctor.known() if name.startswith(incomplete)]


def doctor(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CHECK]...",
            help="Only these, such as kernel; none: all.",
            autocompletion=_checks,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a check, and nothing else.")
    ] = False,
) -> None:
    """Check this machine for what bites people, and say the remedy. Takes under 10 seconds.

    Exit code 0: all checks passed; 1: one or more failed; 2: an unknown check.

    Example: labkit doctor
    """
    from labkit.tools import doctor

    found = []
    for check in doctor.checks(names=names or ()):
        found.append(check())
        if as_json:
            print(json.dumps(asdict(found[-1]), ensure_ascii=False), flush=True)
        else:
            _show(found[-1])
    failed = sum(not finding.ok for finding in found)
    if not as_json:
        print(f"{len(found) - failed} of {len(found)} checks passed", flush=True)
    raise typer.Exit(1 if failed else 0)


def _show(finding: "Check") -> None:
    """Print one finding, with the remedy if it is none of the good ones."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    verdict = "pass" if finding.ok else "fail"
    text = f"  {finding.name.ljust(_NAME_WIDTH)}  {finding.found}"
    console.print(Text.assemble((verdict, _STYLE[verdict]), text))
    if not finding.ok:
        console.print(Text(" " * (_NAME_WIDTH + 8) + f"remedy: {finding.remedy}"))
