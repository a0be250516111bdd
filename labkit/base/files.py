"""Files: written whole, under a temporary name, or not at all; and folders with one writer."""

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

from labkit.base import arguments, machine
from labkit.errors import InputError

_PART = ".part-"


@contextmanager
def whole_file(path: str | os.PathLike, what: str) -> Iterator[Path]:
    """Yield a temporary path to write to; on leaving, sync the file and rename it to ``path``.

    Its folder is created if needed. On an exception ``path`` stays as it was; an ``InputError``
    says ``cannot write {what} {path}`` if that is so.
    """
    path = arguments.local_path(what, path)
    temporary = path.parent / f"{_PART}{secrets.token_hex(4)}{path.suffix}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        machine.sync(temporary)
        os.replace(temporary, path)
        machine.sync(path.parent)  # until then, a power cut loses the new name
    except OSError as error:
        raise InputError(f"cannot write {what} {path}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_text(path: str | os.PathLike, text: str, what: str) -> None:
    """Write a text file in UTF-8, as ``whole_file`` does."""
    with whole_file(path, what) as temporary:
        # A lone surrogate (from a path that is not UTF-8) is escaped as in JSON.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: str | os.PathLike, value: Any, what: str, **options: Any) -> None:
    """Write ``value`` as a JSON file as ``whole_file`` does; ``options`` are json.dumps's."""
    text = json.dumps(value, **{"indent": 1, "ensure_ascii": False, **options})
    write_text(path, text + "\n", what)


def remove_unfinished(folder: str | os.PathLike) -> None:
    """Remove what killed processes have left in ``folder``, which this process has locked."""
    for unfinished in Path(folder).glob(f"{_PART}*"):
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        else:
            unfinished.unlink()


@contextmanager
def locked(folder: str | os.PathLike, what: str) -> Iterator[None]:
    """Create ``folder`` and hold its lock, or raise ``InputError``; it ends with the process."""
    folder = make_folder(folder)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise InputError(f"{folder} is in use by another process: {what} writes there") from error
    try:
        yield
    finally:
        # While it is held: a process that has just opened it sees that it is gone, and tries again.
        with contextlib.suppress(OSError):  # Windows removes no open file: there it stays
            (folder / ".lock").unlink()
        lock.release()


def make_folder(path: str | os.PathLike) -> Path:
    """Create a folder if needed; raise ``InputError`` unless files can be created in it."""
    folder = arguments.local_path("folder", path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error}") from error
    return folder


def natural_order(path: str | os.PathLike) -> list[int | str]:
    """Return a key that sorts file names by the numbers in them: step-9 before step-10."""
    parts = re.split(r"([0-9]+)", Path(path).name)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]
