"""One run of a sweep, in a process of its own, which reads as JSON what it is to run.

It tells its events as JSON lines on standard output, and nothing else there.
"""

import json
import os
import sys
from pathlib import Path

from labkit.base.signals import ended_by_sigterm
from labkit.errors import InputError
from labkit.tools import console
from labkit.tools.running import request, runner
from labkit.tools.running.watch import Limits


def main() -> int:
    """Run what standard input asks for; return `labkit run`'s exit code."""
    asked = json.load(sys.stdin)
    if asked["core"] is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {asked["core"]})
    wanted = request.check(
        [asked["lab"]],
        preset=asked["preset"],
        device=asked["device"],
        parameters=asked["parameters"],
        start=Path(asked["project"]),
    )
    lab = wanted.labs[0]
    with ended_by_sigterm():
        outcome = runner.run_lab(
            lab, wanted, Path(asked["folder"]), _tell, Limits(**asked["limits"])
        )
    return runner.exit_code([outcome])


def _tell(event) -> None:
    console.line(json.dumps({"text": event.text, **event.as_json()}))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
