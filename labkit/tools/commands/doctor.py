"""`labkit doctor`. It does not import the runner, whose dependencies may be what is missing."""

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
    """Check this machine for known problems, and suggest remedies. Takes under 10 seconds.

    Exit code 0: all checks passed; 1: one or more failed; 2: an unknown check.

    Example: labkit doctor
    """
    from labkit.tools import doctor

    passed = []
    for look in doctor.checks(names=names or ()):
        check = look()
        passed.append(check.ok)
        if as_json:
            print(json.dumps(asdict(check), ensure_ascii=False), flush=True)
        else:
            _show(check)
    if not as_json:
        print(f"{sum(passed)} of {len(passed)} checks passed", flush=True)
    raise typer.Exit(0 if all(passed) else 1)


def _show(check: "Check") -> None:
    """Print one check, with the remedy if it has failed."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    verdict = "pass" if check.ok else "fail"
    text = f"  {check.name.ljust(_NAME_WIDTH)}  {check.found}"
    console.print(Text.assemble((verdict, _STYLE[verdict]), text))
    if not check.ok:
        console.print(Text(" " * (_NAME_WIDTH + 8) + f"remedy: {check.remedy}"))
