"""A temporary folder beside the final place: files are made there, checked, and then renamed."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from labkit.errors import InputError

PREFIX = ".partial-"
# A killed program leaves its folder behind. After this time no live one can own it.
STALE_SECONDS = 3600.0


@contextlib.contextmanager
def staging(out: Path) -> Iterator[Path]:
    """Make ``out`` and a temporary folder in it; give the temporary one, remove it at the end.

    It is on the same file system as ``out``, so ``os.replace`` from it is atomic. If the body
    raises, folders that were made for ``out`` and are still empty go too. An ``OSError``, here or
    in the body, becomes an ``InputError`` that names ``out``.
    """
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        _remove_stale(out)
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=out) as folder:
            yield Path(folder)
    except BaseException as error:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            raise InputError(
                f"{out} cannot be prepared ({error}); expected a folder that can be written"
            ) from error
        raise


def _remove_stale(out: Path) -> None:
    for folder in out.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(folder)
