"""Python code in a process of its own."""

import subprocess
import sys

from labkit.ranks.processes import child_environment


def run_code(code, *arguments, env=None, **options) -> subprocess.CompletedProcess:
    """Run code that imports this labkit, and no module of the working folder."""
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *map(str, arguments)],
        env=child_environment() | (env or {}),
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )
