"""Digests of everything that decides what a lab prints, so that nothing is executed for nothing."""

import hashlib
import json
import os
import platform
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.errors import InputError
from labkit.labs.run import installed_version
from labkit.tools.notebook_files import tags

NAVIGATION = "navigation"  # a cell that scripts/notebooks/navigation.py writes
# A place that a link leads to: a line of its own above a heading, written by the same program.
ANCHOR = re.compile(r"^<a id=\"\d\d-[\w-]+\"></a>\n+", re.MULTILINE)
_MOST_FILES = 2_000_000  # ImageNet has 1.3


def source_digest(notebook: Mapping) -> str:
    """Return the SHA-256 of what a person writes: cell types, sources and tags, in order.

    Cells and anchors of ``scripts/notebooks/navigation.py`` do not count: they print nothing.
    """
    cells = [cell for cell in notebook["cells"] if NAVIGATION not in tags(cell)]
    written = (
        ANCHOR.sub("", cell["source"]) if cell["cell_type"] == "markdown" else cell["source"]
        for cell in cells
    )
    return text_digest(
        [(cell["cell_type"], text, tags(cell)) for cell, text in zip(cells, written, strict=True)]
    )


def file_digest(root: Path, *patterns: str, without: Iterable[str] = ()) -> str:
    """Return the SHA-256 of the names and bytes of the files under ``root`` that match a pattern.

    Hidden files, caches, and files called one of ``without`` do not count.
    """
    ignored = ("__pycache__", *without)
    contents = {}
    for path in {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}:
        parts = path.relative_to(root).parts
        if not any(part in ignored or part.startswith(".") for part in parts):
            contents["/".join(parts)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return text_digest(contents)


def text_digest(value: object) -> str:
    """Return the SHA-256 of a value as JSON, letters as they are."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def of_project(project: Path, notebook: Mapping) -> dict[str, str]:
    """Return the SHA-256 of what the project gives to a lab: its notebook, labkit, the data."""
    return {
        "notebook": source_digest(notebook),
        # tools run the labs, or read what these have left. Of them lab 00 alone sees something, the
        # doctor, whose answers are the machine's.
        "labkit": file_digest(project, "labkit/**/*", without=("tools",)),
        # Stored tables that a notebook shows are in labkit/results, or in benchmarks.
        "data": file_digest(
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
        name: _listing(value, project / "notebooks")
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


def _listing(value: str, base: Path) -> list:
    """Return a digest of names, sizes and times of what is at ``value``, seen from ``base``.

    Empty for a text that is no path of anything. A list of ImageNet's files would take 1.4 GB.
    """
    place = os.path.join(base, os.path.expanduser(value))
    if not os.path.exists(place):
        return []
    digest = hashlib.sha256()
    for number, (path, size, time) in enumerate(_files(place)):
        if number >= _MOST_FILES:
            raise InputError(f"{value} holds more than {_MOST_FILES} files; expected a data set")
        digest.update(f"{len(path)} {path} {size} {time}\n".encode("utf-8", "surrogateescape"))
    return [digest.hexdigest()]


def _files(place: str) -> Iterator[tuple[str, int, int]]:
    """Yield (path, size, time) of a file, or of the files in a folder; links lead to files only."""
    for folder, folders, names in os.walk(place) if os.path.isdir(place) else [("", [], [place])]:
        folders.sort()
        names.sort()
        for name in names:
            path = os.path.join(folder, name)
            with suppress(OSError):  # gone since, or not ours to read: the lab will say so
                known = os.stat(path)
                if stat.S_ISREG(known.st_mode):
                    yield path, known.st_size, known.st_mtime_ns


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
