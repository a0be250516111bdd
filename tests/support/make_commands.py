"""`make`, as a person calls it: without the variables of a make that runs the tests."""

import os
import shutil
import subprocess

import pytest

# Flags and variables that a make passes on, and those that nproc obeys, which sets its jobs.
OUTER = (
    "MAKEFLAGS MFLAGS MAKELEVEL ARGS VENV PYTHON PRESET LABS JOBS ALL "
    "OMP_NUM_THREADS OMP_THREAD_LIMIT"
).split()

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def run_make(folder, *arguments, **environment) -> subprocess.CompletedProcess:
    """Run make in ``folder``, with variables set in addition to those of this process."""
    kept = {name: value for name, value in os.environ.items() if name not in OUTER}
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )
