"""A temporary folder beside the final place: files are made there, checked, and then renamed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from labkit.errors import InputError

# A name that other programs do not give: what a killed one left under it is removed.
PREFIX = ".labkit-partial-"
# A killed program leaves its folder behind. After this time no live one can own it.
STALE_SECONDS = 3600.0

_BLOCK = 4096  # bytes that a file system gives out at once


@contextlib.contextmanager
def staging(out: Path, alone: bool = False) -> Iterator[Path]:
    """Make ``out`` and a temporary folder in it; give the temporary one, remove it at the end.

    It is on the same file system as ``out``, so ``os.replace`` from it is atomic. If the body
    raises, folders that were made for ``out`` and are still empty go too. An ``OSError``, here or
    in the body, becomes an ``InputError`` that names ``out``.

    alone  hold a lock on ``out`` meanwhile, for programs that fill it in several steps. A second
           one is refused with ``InputError``, and what a killed one left is removed at once.
    """
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            locked = alone and stack.enter_context(_locked(out))
            _remove_stale(out, 0.0 if locked else STALE_SECONDS)
            yield Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX, dir=out)))
    except BaseException as error:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            raise InputError(
                f"{out} cannot be prepared ({error}); expected a folder that can be written"
            ) from error
        raise


def refuse_full(out: Path, size: int, files: int) -> None:
    """Raise ``InputError`` unless ``files`` files of ``size`` bytes in all have room at ``out``.

    ``out`` need not be there yet. Half a block a file is added for the rounding to whole blocks.
    """
    place = next(folder for folder in (out, *out.parents) if folder.exists())
    needed, disk = size + files * _BLOCK // 2, os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise InputError(
            f"{out} needs {needed / 1e9:.2f} GB; {free / 1e9:.2f} GB are free. Make room, or "
            "choose another folder with --out"
        )
    # Some file systems count no files: f_files is 0.
    if disk.f_files and files > disk.f_favail:
        raise InputError(f"{out} needs {files} files; its file system has {disk.f_favail} left")


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[bool]:
    """Hold a lock on ``out``; give False where the file system has none for folders (NFS)."""
    handle = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except BlockingIOError as error:
            raise InputError(f"another program is preparing {out}; wait for it") from error
        except OSError:
            locked = False
        yield locked
    finally:
        os.close(handle)


def _remove_stale(out: Path, seconds: float) -> None:
    for folder in out.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime >= seconds:
                shutil.rmtree(folder)
