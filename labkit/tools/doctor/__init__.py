"""`labkit doctor`: what bites people on a new machine, each with the remedy."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from labkit.base.project import project_root
from labkit.errors import refuse_unknown
from labkit.tools.doctor import data, environment, installed, machine, measured
from labkit.tools.doctor.check import INSTALL
from labkit.tools.doctor.check import Check as Check


def run(root: Path | None = None) -> list[Check]:
    """Return all checks for the project ``root`` (default: around here); takes under 10 s."""
    return [check() for check in checks(root)]


def checks(root: Path | None = None, names: Sequence[str] = ()) -> list[Callable[[], Check]]:
    """Return the checks as functions still to be called, the quick ones first.

    names  which ones, spelled as ``known`` returns them; none: all

    What is measured in processes of its own starts now and runs while the others are called.
    Raises ``InputError`` for an unknown name.
    """
    for name in names:
        refuse_unknown("check", name, known())
    root = root or project_root() or Path.cwd()
    table = _table(root, measured.Measurements())
    chosen = {name: table[name] for name in (dict.fromkeys(names) if names else table)}
    for check in chosen.values():
        if isinstance(check, measured.Measured):
            check.begin()
    return [functools.partial(_finding, name, check) for name, check in chosen.items()]


def _finding(name: str, check: Callable[[], Check]) -> Check:
    """Return what ``check`` found; one that cannot be made (a package is missing) has failed."""
    try:
        return check()
    except Exception as error:  # whatever a broken installation raises
        return Check(name, False, f"cannot be looked at: {type(error).__name__}: {error}", INSTALL)


def known() -> list[str]:
    """Return the names of all checks, as the command takes them."""
    return list(_table(Path(), measured.Measurements()))


def _table(root: Path, measurements: measured.Measurements) -> dict[str, Callable[[], Check]]:
    return {
        "platform": machine.platform,
        "python": installed.python,
        "labkit": lambda: installed.checkout(root),
        "packages": lambda: installed.packages(root),
        "msrun": installed.msrun,
        "kernel": installed.kernel,
        "environment": environment.environment,
        "disk": lambda: machine.disk(root),
        "folders": lambda: machine.folders(root),
        "temp-folder": machine.temporary,
        "memory": machine.memory,
        "loopback": machine.loopback,
        "msrun-port": machine.msrun_port,
        "jupyter-port": machine.jupyter_port,
        "data": lambda: data.data(root),
        "numpy": measured.Measured(measurements, measured.numpy),
        "devices": measured.Measured(measurements, measured.devices),
        "convolution": measured.Measured(measurements, measured.convolution, both=True),
    }
