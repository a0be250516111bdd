"""Files wanted by name, out of a folder or an archive, plain or gzipped: found, opened, unpacked.

A member is found by the last part of its name alone. Where an archive says it should be written
plays no part, so no member can be written outside the folder that the caller names.
"""

import contextlib
import gzip
import hashlib
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from labkit.errors import InputError

_CHUNK = 1 << 20
_DAMAGED = (
    EOFError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    RuntimeError,  # zipfile: encrypted, or a compression it does not know
)


@dataclass(frozen=True)
class Member:
    """One file of a folder or archive: its name there, and how to open its unpacked bytes."""

    name: str
    open: Callable[[], AbstractContextManager[BinaryIO]]


@contextlib.contextmanager
def opened(path: str | os.PathLike, names: Collection[str]) -> Iterator[dict[str, Member]]:
    """Open a folder, .zip or .tar (also compressed); give the member for each of ``names``.

    Members lie at any depth; `name` is preferred to `name.gz`. Links in a .tar are not followed.
    Raises ``InputError`` for an archive that cannot be read, and for a name that is missing or
    there more than once.
    """
    path = Path(path)
    with contextlib.ExitStack() as stack:
        try:
            if path.is_dir():
                found = _folder_members(path)
            elif zipfile.is_zipfile(path):
                found = _zip_members(stack.enter_context(zipfile.ZipFile(path)))
            elif tarfile.is_tarfile(path):
                found = _tar_members(stack.enter_context(tarfile.open(path)))
            else:
                raise InputError(f"{path} is not a whole archive; expected a folder, .zip or .tar")
        except _DAMAGED as error:
            raise InputError(f"{path}: the archive is cut short or damaged ({error})") from error
        yield _choose(found, names, path)


def unpack(member: Member, target: Path, limit: int) -> str:
    """Write the unpacked bytes of ``member`` to ``target``; return their SHA-256.

    Raises ``InputError`` for more than ``limit`` bytes, and for a member that is cut short or
    damaged; what was written until then stays for the caller to remove.
    """
    digest, size = hashlib.sha256(), 0
    try:
        with member.open() as stream, open(target, "wb") as file:
            while block := stream.read(_CHUNK):
                size += len(block)
                if size > limit:
                    raise InputError(f"{member.name}: unpacks to more than {limit} bytes")
                digest.update(block)
                file.write(block)
    except _DAMAGED as error:
        raise InputError(f"{member.name}: cut short or damaged ({error})") from error
    return digest.hexdigest()


def _folder_members(folder: Path) -> list[Member]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [
        Member(str(path), lambda path=path: _unzipped(open(path, "rb"), path.name))
        for path in paths
    ]


def _zip_members(archive: zipfile.ZipFile) -> list[Member]:
    return [
        Member(info.filename, lambda info=info: _unzipped(archive.open(info), info.filename))
        for info in archive.infolist()
        if not info.is_dir()
    ]


def _tar_members(archive: tarfile.TarFile) -> list[Member]:
    return [
        Member(info.name, lambda info=info: _unzipped(archive.extractfile(info), info.name))
        for info in archive.getmembers()
        if info.isfile()
    ]


@contextlib.contextmanager
def _unzipped(stream: BinaryIO, name: str) -> Iterator[BinaryIO]:
    with stream:
        if name.endswith(".gz"):
            # Closing a GzipFile does not close the stream it was given.
            with gzip.open(stream) as unzipped:
                yield unzipped
        else:
            yield stream


def _choose(found: Iterable[Member], names: Collection[str], where: Path) -> dict[str, Member]:
    plain: dict[str, list[Member]] = {name: [] for name in names}
    zipped: dict[str, list[Member]] = {name: [] for name in names}
    for member in found:
        last = PurePosixPath(member.name).name
        # Some archives of IDX files spell their names with a dot: train-images.idx3-ubyte.
        name = last.removesuffix(".gz").replace(".idx", "-idx")
        if name in plain:
            (zipped if last.endswith(".gz") else plain)[name].append(member)
    chosen = {name: plain[name] or zipped[name] for name in names}
    missing = [name for name, members in chosen.items() if not members]
    if missing:
        raise InputError(
            f"{where} holds no {', '.join(missing)}; expected {', '.join(names)}, plain or .gz"
        )
    for name, members in chosen.items():
        if len(members) > 1:
            both = " and ".join(member.name for member in members[:2])
            raise InputError(f"{where} holds {name} more than once ({both}); expected it once")
    return {name: members[0] for name, members in chosen.items()}
