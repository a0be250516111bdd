"""Digests of all inputs that determine a lab's output, to skip labs that are up to date."""

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
# The target of a link: a line of its own above a heading, written by the same script.
ANCHOR = re.compile(r"^<a id=\"\d\d-[\w-]+\"></a>\n+", re.MULTILINE)
_MOST_FILES = 2_000_000  # ImageNet has 1.3


def source_digest(notebook: Mapping) -> str:
    """Return the SHA-256 of what a person has written: cell types, sources and tags, in order.

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

    Hidden files, caches, and files or folders whose name is in ``without`` do not count.
    """
    ignored = ("__pycache__", *without)
    contents = {}
    for path in {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}:
        parts = path.relative_to(root).parts
        if not any(part in ignored or part.startswith(".") for part in parts):
            contents["/".join(parts)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return text_digest(contents)


def text_digest(value: object) -> str:
    """Return the SHA-256 of a value as JSON; non-ASCII characters are not escaped."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def of_project(project: Path, notebook: Mapping) -> dict[str, str]:
    """Return the SHA-256 of a lab's inputs from the project: its notebook, labkit, the data."""
    return {
        "notebook": source_digest(notebook),
        # The tools run the labs or read their results. Only lab 00 uses one of them, the doctor,
        # whose answers depend on the machine.
        "labkit": file_digest(project, "labkit/**/*", without=("tools",)),
        # Stored tables that a notebook shows are in labkit/results or in benchmarks.
        "data": file_digest(
            project, "data_scripts/**/*", "benchmarks/**/*.csv", "benchmarks/**/*.json"
        ),
    }


def of_run(
    project: Path, notebook: Mapping, preset: str, device: str, parameters: Mapping[str, Any]
) -> dict[str, str]:
    """Return the digests of one run's inputs: the project's, its parameters, installed versions.

    For a parameter that is the path of a file or folder, the names, sizes and times of the files
    there are part of the digest.
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
    """Return the kinds of input that have changed."""
    return [kind for kind in now if was.get(kind) != now[kind]]


def _listing(value: str, base: Path) -> list:
    """Return a digest of names, sizes and times of the files at ``value``, relative to ``base``.

    Empty if nothing exists at that path. A list of ImageNet's files would take 1.4 GB.
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
    """Yield (path, size, time) of a file or a folder's files; no links to folders are followed."""
    for folder, folders, names in os.walk(place) if os.path.isdir(place) else [("", [], [place])]:
        folders.sort()
        names.sort()
        for name in names:
            path = os.path.join(folder, name)
            with suppress(OSError):  # gone, or not readable: the lab will report it
                known = os.stat(path)
                if stat.S_ISREG(known.st_mode):
                    yield path, known.st_size, known.st_mtime_ns


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
