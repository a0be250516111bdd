"""Shared parts of the data scripts: the command line, a staging folder, a check of free space."""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from labkit.base.arguments import Parser
from labkit.base.files import locked, remove_unfinished
from labkit.data.sources.download import PART, Published
from labkit.errors import InputError

_BLOCK = 4096  # bytes that a file system allocates at once


def new_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser that shows ``description``, the script's docstring, as it is written."""
    return Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def exit_code(script: str, prepare: Callable[..., Path], options: argparse.Namespace) -> int:
    """Call ``prepare``; return 0, or print the message of an ``InputError`` and return 2."""
    try:
        prepare(**vars(options))
    except InputError as error:
        print(f"{Path(script).name}: {error}", file=sys.stderr)
        return 2
    return 0


@contextlib.contextmanager
def staging(out: Path) -> Iterator[Path]:
    """Make ``out``, lock it, and yield a temporary folder in it, which is removed at the end.

    What a killed program has left there is removed first. If the body raises, folders that were
    made for ``out`` and are still empty are removed too.

    Raises:
        InputError: if ``out`` cannot be written (an ``OSError``, here or in the body), or another
            program has locked it.
    """
    made = [folder for folder in (out, *out.parents) if not os.path.exists(folder)]
    try:
        out.mkdir(parents=True, exist_ok=True)
        with locked(out, "the preparation of a data set"):
            remove_unfinished(out)
            with tempfile.TemporaryDirectory(prefix=".part-", dir=out) as staged:
                yield Path(staged)
    except BaseException as error:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            raise InputError(
                f"{out} cannot be prepared ({error}); expected a folder that can be written"
            ) from error
        raise


def unreceived(published: Published, folder: Path) -> int:
    """Return how many bytes a download of ``published`` into ``folder`` must still receive."""
    target = folder / published.name
    if target.exists():
        return 0
    part = Path(f"{target}{PART}")
    return max(published.size - (part.stat().st_size if part.exists() else 0), 0)


def refuse_full(out: Path, size: int, files: int) -> None:
    """Raise ``InputError`` unless ``out`` has room for ``files`` files of ``size`` bytes in all.

    ``out`` need not exist yet. Half a block per file is added for the rounding to whole blocks.
    """
    place = next(folder for folder in (out, *out.parents) if os.path.exists(folder))
    needed, disk = size + files * _BLOCK // 2, os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise InputError(
            f"{out} needs {needed / 1e9:.2f} GB; {free / 1e9:.2f} GB are free. Make room, or "
            "choose another folder with --out"
        )
    # Some file systems do not count files: f_files is 0.
    if disk.f_files and files > disk.f_favail:
        raise InputError(f"{out} needs {files} files; its file system has {disk.f_favail} left")
