"""Files that are written whole, or not at all: under a temporary name beside, then renamed."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.errors import InputError

_PART = ".part-"


@contextmanager
def whole_file(path, what: str) -> Iterator[Path]:
    """Give a temporary path to write to; on leaving, sync the file and rename it to ``path``.

    what  what the file is, for the message: ``cannot write {what} {path}``

    Left by an exception, nothing is renamed and the temporary file is removed; ``path`` is then as
    it was. Its folder is made if it is not there. Raises ``InputError`` where the system refuses.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=_PART, dir=path.parent) as scratch:
            temporary = Path(scratch) / f"part{path.suffix}"
            yield temporary
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write {what} {path}: {error}") from error


def refuse_links(folder) -> None:
    """Raise ``InputError`` for the first thing in ``folder`` that is no ordinary file or folder.

    What is written into a link lands elsewhere, what is read comes from elsewhere, and opening a
    pipe may wait for ever. ``folder`` itself may be a link; one that is not there holds none.
    """
    left = [Path(folder)]
    while left:
        place = left.pop()
        try:
            with os.scandir(place) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError:  # gone, or not readable: that is said where it is needed
            continue
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                left.append(Path(entry.path))
            elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                kind = "a link" if entry.is_symlink() else "no ordinary file"
                raise InputError(
                    f"{entry.path} is {kind}; expected ordinary files and folders in a run's "
                    "folder: remove it"
                )


def remove_unfinished(folder) -> None:
    """Remove what a process that was killed while it wrote has left in ``folder``."""
    for unfinished in Path(folder).glob(f"{_PART}*"):
        shutil.rmtree(unfinished, ignore_errors=True)
