"""Files out of a folder or an archive: found, opened, read or unpacked.

``opened`` finds files by the last part of their names alone, plain or gzipped. Where an archive
says they should be written plays no part. ``listed`` and ``tar_members`` give all files, for
archives whose names say where a file belongs: a name that leaves the folder, a link or anything
else that is no plain file is refused. Nothing here writes but ``unpack``, where the caller says.
"""

import bz2
import contextlib
import dataclasses
import errno
import gzip
import hashlib
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from labkit.base.input_files import open_file
from labkit.errors import InputError

# ImageNet's validation images, the longest archive known here, are 50 000. A member takes 1 kB.
MAX_MEMBERS = 200_000

_CHUNK = 1 << 20
# What a compressed .tar may unpack to: so many bytes, or so many times its size. A .tar.gz of 24 MB
# can hold 23 GB; photographs do not shrink, MNIST's files to a fifth.
_UNPACKED = 256 << 20
_RATIO = 20
# A name or a header of a member; and the directory of a .zip, which is read at once.
_HEADER = 1 << 20
_DIRECTORY = 32 << 20
_COMPRESSIONS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
_DAMAGED = (
    EOFError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    RuntimeError,  # zipfile: encrypted, or a compression it does not know
    # What zipfile and tarfile let through of numbers and names that make no sense.
    IndexError,
    OverflowError,
    ValueError,
    AttributeError,
    KeyError,
    TypeError,
    struct.error,
)


@dataclass(frozen=True)
class Member:
    """One file of a folder or archive: its name, how to open its unpacked bytes, stated size."""

    name: str
    open: Callable[[], AbstractContextManager[BinaryIO]]
    size: int | None = None


@contextlib.contextmanager
def opened(path: str | os.PathLike, names: Collection[str]) -> Iterator[dict[str, Member]]:
    """Open a folder, .zip or .tar (also compressed); give the member for each of ``names``.

    Members lie at any depth; `name` is preferred to `name.gz`. Links in a .tar are not followed.
    Raises ``InputError`` for an archive that cannot be read, and for a name that is missing or
    there more than once.
    """
    with _members(Path(path), _tar_files, _zip_files) as found:
        yield _choose(found, names, Path(path))


@contextlib.contextmanager
def listed(path: str | os.PathLike) -> Iterator[list[Member]]:
    """Open a folder, .zip or .tar (also compressed); give all its files, in their order.

    The names are clean relative paths: ``./a//b`` comes as ``a/b``. Raises ``InputError`` for an
    archive that cannot be read to its end, and, naming the member, for one that is no plain file
    or directory, that is there twice, or whose name is absolute, has a part `..`, a backslash or
    a character that cannot be printed.
    """
    path = Path(path)
    if path.is_dir():
        yield _clean(
            Member(str(one.relative_to(path)), lambda one=one: open(one, "rb"), one.stat().st_size)
            for one in sorted(path.rglob("*"))
            if one.is_file()
        )
    else:
        with _members(path, _tar_plain, _zip_plain) as found:
            yield found


@contextlib.contextmanager
def tar_members(stream: BinaryIO, label: str) -> Iterator[list[Member]]:
    """Give the files of an uncompressed .tar that lies in ``stream``, as ``listed`` does.

    label  what the error messages call it. Works for a .tar inside another: nothing is written.
    """
    with contextlib.ExitStack() as stack:
        with _named(label), _damage(f"{label}: the archive is"):
            limited = _Limited(stream)
            found = _tar_plain(stack.enter_context(tarfile.open(fileobj=limited, mode="r:")))
            limited.largest = None
        yield found


def read(member: Member, limit: int) -> bytes:
    """Return the unpacked bytes of ``member``.

    Raises ``InputError`` for more than ``limit`` bytes and for a member that is cut short.
    """
    if member.size is not None and member.size > limit:
        raise InputError(f"{member.name}: {member.size} bytes; expected at most {limit}")
    with _damage(f"{member.name}:"), member.open() as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{member.name}: unpacks to more than {limit} bytes")
    if member.size is not None and len(content) != member.size:
        raise InputError(f"{member.name}: {len(content)} bytes; expected {member.size}")
    return content


def unpack(member: Member, target: Path, limit: int) -> str:
    """Write the unpacked bytes of ``member`` to ``target``; return their SHA-256.

    Raises ``InputError`` for more than ``limit`` bytes, and for a member that is cut short or
    damaged; what was written until then stays for the caller to remove.
    """
    digest, size = hashlib.sha256(), 0
    with _damage(f"{member.name}:"), member.open() as stream, open(target, "wb") as file:
        while block := stream.read(_CHUNK):
            size += len(block)
            if size > limit:
                raise InputError(f"{member.name}: unpacks to more than {limit} bytes")
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _members(path: Path, from_tar: Callable, from_zip: Callable) -> Iterator[list[Member]]:
    with contextlib.ExitStack() as stack:
        with _named(str(path)), _damage(f"{path}: the archive is"):
            if path.is_dir():
                found = _folder_files(path)
            else:
                found = _archived(stack, path, from_tar, from_zip)
        yield found


def _archived(stack: contextlib.ExitStack, path: Path, from_tar, from_zip) -> list[Member]:
    try:
        file = stack.enter_context(open_file(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    if zipfile.is_zipfile(file):
        limited = _Limited(file, largest=_DIRECTORY)
        found = from_zip(stack.enter_context(zipfile.ZipFile(limited)))
    else:
        file.seek(0)
        head, size = file.read(6), os.fstat(file.fileno()).st_size
        file.seek(0)
        unpack = next((one for magic, one in _COMPRESSIONS.items() if head.startswith(magic)), None)
        stream = stack.enter_context(unpack(file)) if unpack else file
        limited = _Limited(stream, max(_UNPACKED, _RATIO * size) if unpack else None)
        try:
            archive = tarfile.open(fileobj=limited, mode="r:")
        except tarfile.ReadError as error:
            raise InputError(
                f"{path} is not a whole archive; expected a folder, .zip or .tar"
            ) from error
        found = from_tar(stack.enter_context(archive))
    limited.largest = None
    return found


class _Limited:
    """A stream for zipfile and tarfile, which believe whatever an archive says of its lengths.

    end      how far it may be read or sought, for a stream that is unpacked on the way
    largest  bytes that may be read at once; None where members are read, whose readers have limits
    """

    def __init__(self, stream: BinaryIO, end: int | None = None, largest: int | None = _HEADER):
        self._stream, self._end, self.largest = stream, end, largest
        self.tell, self.close = stream.tell, stream.close
        self.seekable, self.readable = stream.seekable, stream.readable

    def read(self, count: int = -1) -> bytes:
        if self._end is not None:
            self._check(self._stream.tell() + max(count, 0))
        if self.largest is None or 0 <= count <= self.largest:
            return self._stream.read(count)
        # zipfile reads the end of the file, wherever it takes that to begin.
        content = self._stream.read(self.largest + 1) if count < 0 else None
        if content is None or len(content) > self.largest:
            raise InputError(f"a name or header of more than {self.largest} bytes")
        return content

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        if self._end is not None and whence == os.SEEK_SET:
            self._check(place)
        return self._stream.seek(place, whence)

    def _check(self, place: int) -> None:
        if place > self._end + _CHUNK:
            raise InputError(f"the archive unpacks to more than {self._end} bytes; unpack it first")


@contextlib.contextmanager
def _damage(what: str) -> Iterator[None]:
    """Turn what the archive modules raise for damaged files into ``InputError``."""
    try:
        yield
    except InputError:
        raise
    except _DAMAGED as error:
        raise InputError(f"{what} cut short or damaged ({error})") from error
    except OSError as error:
        # bz2 raises one without a number, zipfile seeks to where no file can go.
        if error.errno in (None, errno.EINVAL):
            raise InputError(f"{what} cut short or damaged ({error})") from error
        raise


@contextlib.contextmanager
def _named(label: str) -> Iterator[None]:
    """Put ``label`` before the words of an ``InputError`` that lack it."""
    try:
        yield
    except InputError as error:
        if label in str(error):
            raise
        raise InputError(f"{label}: {error}") from error


def _folder_files(folder: Path) -> list[Member]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [
        Member(str(path), lambda path=path: _unzipped(open(path, "rb"), path.name))
        for path in paths
    ]


def _zip_infos(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise InputError(f"more than {MAX_MEMBERS} members")
    for info in infos:
        # zipfile unpacks the others in one go: 1 MB of bzip2 may hold 20 GB.
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"member {info.filename!r} has compression {info.compress_type}; expected 0 "
                "(stored) or 8 (deflated)"
            )
    return infos


def _zip_files(archive: zipfile.ZipFile) -> list[Member]:
    return [
        Member(info.filename, lambda info=info: _unzipped(archive.open(info), info.filename))
        for info in _zip_infos(archive)
        if not info.is_dir()
    ]


def _zip_plain(archive: zipfile.ZipFile) -> list[Member]:
    infos = _zip_infos(archive)
    for info in infos:
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise InputError(f"member {info.filename!r} is a link or a device; expected a file")
    return _clean(
        Member(info.filename, lambda info=info: archive.open(info), info.file_size)
        for info in infos
        if not info.is_dir()
    )


def _tar_files(archive: tarfile.TarFile) -> list[Member]:
    return [
        Member(info.name, lambda info=info: _unzipped(archive.extractfile(info), info.name))
        for info in _tar_infos(archive)
        if info.isfile() and not info.issparse()
    ]


def _tar_infos(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for number, info in enumerate(archive, start=1):
        # Before Python 3.11.14 a negative size makes tarfile read the same header for ever.
        if info.size < 0:
            raise InputError(f"member {info.name!r} has {info.size} bytes")
        if number > MAX_MEMBERS:
            raise InputError(f"more than {MAX_MEMBERS} members")
        yield info


def _tar_plain(archive: tarfile.TarFile) -> list[Member]:
    infos = []
    for info in _tar_infos(archive):
        if not (info.isreg() or info.isdir()) or info.issparse():
            raise InputError(f"member {info.name!r} is a link or a device; expected a file")
        infos.append(info)
    _check_end(archive)
    return _clean(
        Member(info.name, lambda info=info: archive.extractfile(info), info.size)
        for info in infos
        if not info.isdir()
    )


def _check_end(archive: tarfile.TarFile) -> None:
    """Raise ``InputError`` unless the archive goes on to its end mark: tarfile stops silently.

    It stops at a header that is cut short or garbled as it does at the mark, a block of zeros.
    Reading on to the end of the file makes gzip check its checksum.
    """
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise InputError(
            f"the archive is cut short or damaged after {archive.offset} bytes; "
            "expected a member or the end mark"
        )
    while archive.fileobj.read(_CHUNK):
        pass


def _clean(found: Iterable[Member]) -> list[Member]:
    """Return the members by clean names; raise ``InputError`` for one that leaves the folder."""
    cleaned: dict[str, Member] = {}
    for member in found:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or "\\" in member.name:
            raise InputError(
                f"member {member.name!r} leaves the folder; expected a name like folder/file"
            )
        if not member.name.isprintable() or not path.parts:
            raise InputError(f"member {member.name!r} has no usable name")
        name = str(path)
        if name in cleaned:
            raise InputError(f"member {member.name!r} is there more than once; expected it once")
        cleaned[name] = dataclasses.replace(member, name=name)
    return list(cleaned.values())


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
