"""Find a prepared data set, preparing it first from the bundled files where it is not there yet."""

import subprocess
import sys
from pathlib import Path

from labkit.errors import InputError, refuse_unknown
from labkit.labs import find_project

_SCRIPTS = {"mnist": ("mnist.py", "MNIST_Data"), "fashion-mnist": ("mnist.py", "Fashion_MNIST")}


def prepare(name: str) -> Path:
    """Return the folder of data set ``name`` in the project, with train/ and test/ in it.

    The script under ``data_scripts`` verifies what is there and unpacks what is not. Raises
    ``InputError`` for an unknown name, outside a project, and with the script's own words.
    """
    refuse_unknown("data set", name, _SCRIPTS)
    script, folder = _SCRIPTS[name]
    project = find_project()
    command = [sys.executable, str(project / "data_scripts" / script), "--dataset", name]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    if done.returncode:
        raise InputError(done.stderr.strip() or f"{name} cannot be prepared: {done.stdout.strip()}")
    return project / "datasets" / folder
