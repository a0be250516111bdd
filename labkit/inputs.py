"""Digests of everything that decides what a lab prints, so that nothing is executed for nothing."""

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit import notebook_rules as rules
from labkit.run import installed_version

# They run the labs, or read what these have left; what a notebook prints does not depend on them.
_NOT_INPUTS = (
    "notebooks.py",
    "notebook_rules.py",
    "notebook_form.py",
    "inputs.py",
    "cli.py",
    "console.py",
)
_NOT_INPUT_FOLDERS = ("commands", "lab_server", "reports", "running", "work")


def of_project(project: Path, notebook: Mapping) -> dict[str, str]:
    """Return the SHA-256 of what the project gives to a lab: its notebook, labkit, the data."""
    return {
        "notebook": rules.source_digest(notebook),
        "labkit": rules.file_digest(
            project, "labkit/**/*", without=(*_NOT_INPUTS, *_NOT_INPUT_FOLDERS)
        ),
        # Stored tables that a notebook shows are in labkit/results, or in benchmarks.
        "data": rules.file_digest(
            project, "data_scripts/**/*", "benchmarks/**/*.csv", "benchmarks/**/*.json"
        ),
    }


def of_run(
    project: Path, notebook: Mapping, preset: str, device: str, parameters: Mapping[str, Any]
) -> dict[str, str]:
    """Return the inputs of one run: the project's, its parameters, and the versions installed.

    A parameter that is the path of a file or folder counts with the names, sizes and times of what
    is there.
    """
    packages = ("mindspore", "numpy", "scipy", "matplotlib")
    versions = {name: installed_version(name) for name in packages}
    places = {
        name: _listing(Path(value).expanduser(), project / "notebooks")
        for name, value in parameters.items()
        if isinstance(value, str) and value
    }
    return of_project(project, notebook) | {
        "parameters": _digest([preset, device, dict(parameters), places]),
        "versions": _digest([platform.python_version(), versions]),
    }


def changed(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the kinds of input that are not what they were."""
    return [kind for kind in now if was.get(kind) != now[kind]]


def _listing(place: Path, base: Path) -> list:
    """Return (name, size, time) of what is at ``place``, seen from ``base``; empty for no path."""
    place = base / place
    if not place.exists():
        return []
    found = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    stats = [(path, path.stat()) for path in found]
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
