"""Files: written whole, under a temporary name, or not at all; read, or one clear line why not."""

import contextlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from labkit.base import arguments
from labkit.errors import InputError

_PART = ".part-"


@contextmanager
def whole_file(path: str | os.PathLike, what: str, parents: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; on leaving, sync the file and rename it to ``path``.

    On an exception, the temporary file is removed and ``path`` stays as it was.

    Args:
        path: where the file will be.
        what: what the file is, for the message: ``cannot write {what} {path}``.
        parents: create its folder if it does not exist.

    Raises:
        InputError: if the file cannot be written.
    """
    path = arguments.path("path", path)
    temporary = path.parent / f"{_PART}{secrets.token_hex(4)}{path.suffix}"
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        raise InputError(f"cannot write {what} {path}: {error}") from error


def write_text(path: str | os.PathLike, text: str, what: str, parents: bool = True) -> None:
    """Write a text file in UTF-8, as ``whole_file`` does."""
    with whole_file(path, what, parents) as temporary:
        # A lone surrogate (from a path that is not UTF-8) is escaped as in JSON.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(
    path: str | os.PathLike,
    value: Any,
    what: str,
    *,
    indent: int | None = 1,
    allow_nan: bool = True,
    parents: bool = True,
) -> None:
    """Write ``value`` as a JSON file in UTF-8, as ``whole_file`` does.

    Args:
        path: where the file will be.
        value: any value that ``json.dumps`` accepts.
        what: what the file is, for the message.
        indent: spaces per level; None for one line.
        allow_nan: write NaN and infinity, which strict JSON parsers reject; else ``ValueError``.
        parents: create its folder if it does not exist.
    """
    text = json.dumps(value, indent=indent, allow_nan=allow_nan, ensure_ascii=False) + "\n"
    write_text(path, text, what, parents)


def remove_unfinished(folder: str | os.PathLike) -> None:
    """Remove what killed processes have left in ``folder``, which this process has locked."""
    for unfinished in Path(folder).glob(f"{_PART}*"):
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        else:
            unfinished.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Flush the names in ``folder`` to disk: until then, a power cut loses a rename."""
    with contextlib.suppress(OSError):  # not every file system supports it
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def locked(folder: str | os.PathLike, what: str) -> Iterator[None]:
    """Create ``folder`` and hold its lock; the system releases it when the process ends.

    Raises:
        InputError: if another process holds it, or the folder cannot be made.
    """
    folder = Path(folder)
    make_folder(folder)
    lock = FileLock(folder / ".lock", blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise InputError(f"{folder} is in use by another process: {what} writes there") from error
    try:
        yield
    finally:
        # While it is held: a process that has just opened it sees that it is gone, and tries again.
        (folder / ".lock").unlink(missing_ok=True)
        lock.release()


def make_folder(folder: Path) -> None:
    """Create a folder if needed; raise ``InputError`` unless files can be created in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error}") from error


def natural_order(path: str | os.PathLike) -> list[int | str]:
    """Return a key that sorts file names by the numbers in them: step-9 before step-10."""
    parts = re.split(r"([0-9]+)", Path(path).name)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]
