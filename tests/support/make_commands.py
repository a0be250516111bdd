"""`make`, as a person calls it: without what a make around the tests has put there."""

import os
import shutil
import subprocess

import pytest

# Flags and variables that a make hands on, and what nproc obeys, from which it counts its jobs.
OUTER = (
    "MAKEFLAGS MFLAGS MAKELEVEL ARGS VENV PYTHON PRESET LABS JOBS ALL "
    "OMP_NUM_THREADS OMP_THREAD_LIMIT"
).split()

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def run_make(folder, *arguments, **environment) -> subprocess.CompletedProcess:
    """Run make in ``folder``, with variables set beside those of this process."""
    kept = {name: value for name, value in os.environ.items() if name not in OUTER}
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )
