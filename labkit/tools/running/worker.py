"""The process of one run of a sweep: reads as JSON on standard input what it is to run.

On standard output it writes its events as JSON lines, and nothing else.
"""

import json
import os
import sys
from pathlib import Path

from labkit.base.signals import ended_by_sigterm
from labkit.errors import InputError
from labkit.tools import console
from labkit.tools.running import request, runner
from labkit.tools.running.events import Event
from labkit.tools.running.watch import Limits


def main() -> int:
    """Run what standard input asks for; return `labkit run`'s exit code."""
    job = json.load(sys.stdin)
    if job["core"] is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {job["core"]})
    checked = request.check(
        [job["lab"]],
        preset=job["preset"],
        device=job["device"],
        parameters=job["parameters"],
        start=Path(job["project"]),
    )
    limits = Limits(**job["limits"])
    with ended_by_sigterm():
        outcome = runner.run_lab(checked.labs[0], checked, Path(job["folder"]), _say, limits)
    return runner.exit_code([outcome])


def _say(event: Event) -> None:
    console.line(json.dumps({"text": event.text, **event.as_json()}))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
