"""Find a prepared data set, or prepare it: from bundled files, Fashion-MNIST from a download."""

import os
import subprocess
import sys
from pathlib import Path

from labkit.base.project import find_project, own_checkout
from labkit.errors import InputError, refuse_unknown

_MNIST = {"mnist": "MNIST_Data", "fashion-mnist": "Fashion_MNIST"}
_COLOR_DIGITS = {"size": 32, "train": 6000, "val": 1000, "seed": 1}


def prepare(name: str, **options: int) -> Path:
    """Return the folder of data set ``name`` in the checkout, with train/ and test/ or val/ in it.

    The script under ``data_scripts`` verifies existing files and makes missing ones. It belongs to
    the checkout that labkit is imported from or, for an installed copy, to the user's own checkout
    around the working folder.

    Args:
        name: "mnist", "fashion-mnist", "color-digits", or "shakespeare", which is used as it lies
            there: train, validation and test are one file each.
        **options: for "color-digits", each combination in a folder of its own: ``size`` in pixels
            (default 32), ``train`` and ``val``, numbers of images (6000, 1000), ``seed`` (1).

    Raises:
        InputError: if the name or an option is unknown, there is no such checkout, or the script
            fails; the message is then the script's.
    """
    refuse_unknown("data set", name, (*_MNIST, "color-digits", "shakespeare"))
    known = _COLOR_DIGITS if name == "color-digits" else {}
    for option in options:
        refuse_unknown(f"option of {name}", option, known)
    project = own_checkout() or find_project()
    if name == "shakespeare":
        return project / "data_scripts" / "bundled" / "shakespeare"
    if name == "color-digits":
        chosen = known | options
        script, folder = "color_digits.py", color_digits_folder(**chosen)
        arguments = [f"--{option}={value}" for option, value in chosen.items()]
    else:
        script, folder, arguments = "mnist.py", _MNIST[name], ["--dataset", name]
    command = [sys.executable, str(project / "data_scripts" / script), *arguments]
    # With it Python would not find what the scripts share, in the folder of the script.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)
    if done.returncode:
        raise InputError(done.stderr.strip() or f"{name} cannot be prepared: {done.stdout.strip()}")
    return project / "datasets" / folder


def color_digits_folder(size: int = 32, train: int = 6000, val: int = 1000, seed: int = 1) -> str:
    """Return the folder's name for these parameters, such as ``color_digits_32px_6000_1000``."""
    last = "" if seed == _COLOR_DIGITS["seed"] else f"_seed{seed}"
    return f"color_digits_{size}px_{train}_{val}{last}"
