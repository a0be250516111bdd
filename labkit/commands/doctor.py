"""`labkit doctor`."""

import json
from dataclasses import asdict
from typing import Annotated

import typer


def doctor(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CHECK]...", help="Only these, such as kernel; none: all."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a check, and nothing else.")
    ] = False,
) -> None:
    """Check this machine for what bites people, and say the remedy. Takes under 10 seconds.

    Exit code 0: all checks passed; 1: one or more failed.

    Example: labkit doctor
    """
    from labkit import console, doctor

    found = []
    for check in doctor.checks(names=names or ()):
        finding = check()
        found.append(finding)
        if as_json:
            console.line(json.dumps(asdict(finding), ensure_ascii=False))
        else:
            console.check(finding)
    failed = sum(not finding.ok for finding in found)
    if not as_json:
        console.line(f"{len(found) - failed} of {len(found)} checks passed")
    raise typer.Exit(1 if failed else 0)
