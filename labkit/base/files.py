"""Files that are written whole, or not at all: under a temporary name beside, then renamed."""

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit.base import arguments, locks
from labkit.errors import InputError

_PART = ".part-"
# Of one that is being written: process, its start in 1/100 s, process space, boot, host, chance.
_OWNED = re.compile(r"\.part-(\d+)-(\d+)-(\w+)-(\w+)-(.+)-[^-]*", re.DOTALL)
# Where it is not seen whether the process that writes is alive: it has not written for so long.
_STALE_SECONDS = 24 * 3600.0


@contextmanager
def whole_file(path: str | os.PathLike, what: str, parents: bool = True) -> Iterator[Path]:
    """Give a temporary path to write to; on leaving, sync the file and rename it to ``path``.

    Left by an exception, nothing is renamed and the temporary file is removed; ``path`` is then as
    it was.

    Args:
        path: Where the file will be.
        what: What the file is, for the message: ``cannot write {what} {path}``.
        parents: Make its folder if it is not there.

    Raises:
        InputError: Where the system refuses.
    """
    path = arguments.path("path", path)
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        os.stat(path.parent)  # names the folder where it is gone
        with scratch_folder(path.parent) as scratch:
            temporary = scratch / f"part{path.suffix}"
            yield temporary
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise InputError(f"cannot write {what} {path}: {error}") from error


def write_text(path: str | os.PathLike, text: str, what: str, parents: bool = True) -> None:
    """Write a text file in UTF-8, complete or not at all; arguments as in ``whole_file``.

    Raises:
        InputError: Where the system refuses.
    """
    with whole_file(path, what, parents) as temporary:
        # Half of a pair of surrogates (a path that is no UTF-8) is spelled as JSON does.
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
    """Write ``value`` as a JSON file in UTF-8, complete or not at all; see ``whole_file``.

    Args:
        path: Where the file will be.
        value: What ``json.dumps`` takes.
        what: What the file is, for the message.
        indent: Spaces of each level; None for one line.
        allow_nan: Write NaN and infinity, which strict readers of JSON refuse.
        parents: Make its folder if it is not there.

    Raises:
        InputError: Where the system refuses.
        ValueError: For NaN and infinity that are not allowed; ``path`` is then as it was.
    """
    text = json.dumps(value, indent=indent, allow_nan=allow_nan, ensure_ascii=False) + "\n"
    write_text(path, text, what, parents)


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Give a temporary folder in ``parent``; what ended processes left of theirs there is removed.

    It is on the file system of ``parent``: ``os.replace`` from one to the other is atomic.
    """
    remove_unfinished(parent, only_ended=True)
    with tempfile.TemporaryDirectory(prefix=_own_prefix(), dir=parent) as scratch:
        yield Path(scratch)


def no_link(path: str | os.PathLike, flags: int) -> int:
    """Open a file for ``open(..., opener=no_link)``: no link, which leads elsewhere, and no pipe.

    What is written into a planted link lands elsewhere; opening a pipe may wait for ever. Either
    raises ``OSError`` (ELOOP, ENXIO).
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def refuse_links(folder: str | os.PathLike) -> None:
    """Raise ``InputError`` for the first thing in ``folder`` that is no ordinary file or folder.

    What is written into a link lands elsewhere, what is read comes from elsewhere, and opening a
    pipe may wait for ever. ``folder`` itself may be a link; one that is not there holds none.
    """
    left = [Path(folder)]
    while left:
        place = left.pop()
        try:
            with os.scandir(place) as entries:
                by_name = sorted(entries, key=lambda entry: entry.name)
        except OSError:  # gone, or not readable: that is said where it is needed
            continue
        for entry in by_name:
            if entry.is_dir(follow_symlinks=False):
                left.append(Path(entry.path))
            elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                kind = "a link" if entry.is_symlink() else "no ordinary file"
                raise InputError(
                    f"{entry.path} is {kind}; expected ordinary files and folders in a run's "
                    "folder: remove it"
                )


def remove_unfinished(folder: str | os.PathLike, only_ended: bool = False) -> None:
    """Remove what processes that were killed while they wrote have left in ``folder``.

    Nothing that a live process of this machine is writing; where that cannot be seen (of another
    host, or of a labkit that did not note its process), only what is a day old; with
    ``only_ended``, as in a folder that may be anybody's, none of it.
    """
    for unfinished in Path(folder).glob(f"{_PART}*"):
        with contextlib.suppress(OSError):
            if _is_left_over(unfinished, only_ended):
                shutil.rmtree(unfinished)


def _sync_folder(folder: str | os.PathLike) -> None:
    """Have the names in ``folder`` on the disk: a rename is lost in a power cut until then."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return  # a folder that may be written and not be listed
    try:
        # Not every file system can (EINVAL); the file is there, and its bytes are on the disk.
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def _own_prefix() -> str:
    own = locks.owner()
    created = round(100 * (own["created"] or 0))
    return f"{_PART}{own['pid']}-{created}-{own['space']}-{own['boot']}-{own['host']}-"


def _is_left_over(unfinished: Path, only_ended: bool) -> bool:
    ended = None
    if owned := _OWNED.fullmatch(unfinished.name):
        pid, created, space, boot, host = owned.groups()
        # "None" and a start at 0 are of a process that could not read them.
        named = {"host": host, "boot": None if boot == "None" else boot, "pid": int(pid)}
        named |= {"space": int(space) if space.isdigit() else None}
        ended = locks.has_ended(named | {"created": int(created) / 100 or None})
    if ended is None and not only_ended:
        newest = max(part.lstat().st_mtime for part in (unfinished, *unfinished.glob("*")))
        return time.time() - newest > _STALE_SECONDS
    return bool(ended)


def make_folder(folder: Path) -> None:
    """Make a folder, or make sure that files can be made in it; else ``InputError``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error}") from error


def natural_order(path: str | os.PathLike) -> list[int | str]:
    """Return a key that sorts file names by the numbers in them: step-9 before step-10."""
    parts = re.split(r"([0-9]+)", Path(path).name)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]


def refusal(folder: str | os.PathLike) -> str:
    """Return why ``folder`` cannot be written to or made, or an empty text; leaves no trace."""
    existing = Path(folder).absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if not os.path.isdir(existing):
        dangles = os.path.islink(existing) and not os.path.exists(existing)
        target = f": a link to {os.readlink(existing)}, which is not there" if dangles else ""
        return f"{existing} is not a folder{target}"
    try:
        # Asking the permissions is not enough: root may write anywhere, and not in /proc.
        with tempfile.TemporaryFile(dir=existing):
            return ""
    except OSError as error:
        return f"{error.strerror} in {existing}"
