"""Python code in a process of its own."""

import subprocess
import sys

from labkit.ranks.launch import child_environment

SECONDS = 120  # after which ``run_code`` ends its process


def run_code(code, *arguments, env=None, **options) -> subprocess.CompletedProcess:
    """Run code that imports this labkit, and no module of the working folder.

    env    variables to set in addition to this process's own; None unsets one
    """
    variables = child_environment() | (env or {})
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *map(str, arguments)],
        env={name: value for name, value in variables.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        **options,
    )
