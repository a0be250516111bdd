"""Untrusted archives, read with limits: checks that zipfile and tarfile do not make.

``tarfile``'s ``filter="data"`` is no substitute: it allows links inside the folder, does not cover
.zip, and checks neither sizes nor the end of an archive.
"""

import bz2
import contextlib
import errno
import functools
import gzip
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from labkit.base.files import open_file
from labkit.errors import InputError

# The longest archive in use, ImageNet's validation images, has 50 000. A member takes 1 kB.
MAX_MEMBERS = 200_000

CHUNK = 1 << 20
# Limit of an unpacked .tar: _UNPACKED bytes, or _RATIO times its compressed size if that is more. A
# .tar.gz of 24 MB can hold 23 GB; photographs do not shrink, MNIST's files shrink to a fifth.
_UNPACKED = 256 << 20
_RATIO = 20
# Bytes of a name or a header of a member; and of the directory of a .zip, which is read at once.
_HEADER = 1 << 20
_DIRECTORY = 32 << 20


class Stream(Protocol):
    """A readable stream: a file, or an object that unpacks a file while it is read."""

    def read(self, size: int = -1, /) -> bytes: ...
    def seek(self, place: int, whence: int = 0, /) -> int: ...
    def tell(self) -> int: ...
    def close(self) -> None: ...
    def seekable(self) -> bool: ...
    def readable(self) -> bool: ...


_COMPRESSIONS: dict[bytes, Callable[[BinaryIO], AbstractContextManager[Stream]]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
_DAMAGED = (
    EOFError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    RuntimeError,  # zipfile: encrypted, or a compression it does not know
    # zipfile and tarfile raise these for numbers and names that make no sense.
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
    """One file of a folder or archive.

    Attributes:
        name: its path in the archive.
        open: returns its unpacked bytes as a stream.
        size: unpacked size in bytes that the archive states; None if it states none.
        is_file: False for links, devices and sparse files, which are never opened.
    """

    name: str
    open: Callable[[], AbstractContextManager[Stream]]
    size: int | None = None
    is_file: bool = True


def archive_members(stack: contextlib.ExitStack, path: Path) -> list[Member]:
    """Return the members of a .zip or .tar (also compressed); ``stack`` closes it."""
    try:
        file = stack.enter_context(open_file(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    # A .tar may end with a .zip, which is_zipfile would find.
    if file.peek(2)[:2] == b"PK" and zipfile.is_zipfile(file):
        limited = Limited(file, largest=_DIRECTORY)
        members = _zip_members(stack.enter_context(zipfile.ZipFile(limited)))
    else:
        limited = _unpacked_tar(stack, file)
        try:
            archive = open_tar(limited)
        except tarfile.ReadError as error:
            raise InputError(
                f"{path} is not a whole archive; expected a folder, .zip or .tar"
            ) from error
        members = members_of_tar(stack.enter_context(archive))
    limited.largest = None
    return members


def _unpacked_tar(stack: contextlib.ExitStack, file: BinaryIO) -> "Limited":
    file.seek(0)
    head, size = file.read(6), os.fstat(file.fileno()).st_size
    file.seek(0)
    for magic, unpacking in _COMPRESSIONS.items():
        if head.startswith(magic):
            stream = stack.enter_context(unpacking(file))
            return Limited(stream, max(_UNPACKED, _RATIO * size))
    return Limited(file)


class Limited:
    """A stream for zipfile and tarfile, which trust the lengths that an archive states.

    end      position up to which it may be read or sought; for a stream that is unpacked on the fly
    largest  bytes that may be read at once; None while members are read, whose readers have limits
    """

    def __init__(
        self, stream: Stream, end: int | None = None, largest: int | None = _HEADER
    ) -> None:
        self._stream, self._end, self.largest = stream, end, largest
        self.tell, self.close = stream.tell, stream.close
        self.seekable, self.readable = stream.seekable, stream.readable

    def read(self, count: int = -1) -> bytes:
        if self._end is not None:
            _check(self._stream.tell() + max(count, 0), self._end)
        if self.largest is None or 0 <= count <= self.largest:
            return self._stream.read(count)
        # zipfile reads to the end of the file, from wherever it believes the end record begins.
        content = self._stream.read(self.largest + 1) if count < 0 else None
        if content is None or len(content) > self.largest:
            raise InputError(f"a name or header of more than {self.largest} bytes")
        return content

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        if self._end is not None and whence == os.SEEK_SET:
            _check(place, self._end)
        return self._stream.seek(place, whence)


def _check(place: int, end: int) -> None:
    if place > end + CHUNK:
        raise InputError(f"the archive unpacks to more than {end} bytes; unpack it first")


def open_tar(limited: Limited) -> tarfile.TarFile:
    """Return the uncompressed .tar in a stream, opened for reading."""
    # tarfile's types ask for write(), which reading does not need.
    return tarfile.open(fileobj=cast(BinaryIO, limited), mode="r:")


@contextlib.contextmanager
def damage(what: str) -> Iterator[None]:
    """Turn the exceptions of the archive modules for damaged files into ``InputError``."""
    try:
        yield
    except InputError:
        raise
    except _DAMAGED as error:
        raise InputError(f"{what} cut short or damaged ({error})") from error
    except OSError as error:
        # bz2 raises OSError without a number; zipfile seeks to impossible positions.
        if error.errno in (None, errno.EINVAL):
            raise InputError(f"{what} cut short or damaged ({error})") from error
        raise


@contextlib.contextmanager
def named(label: str) -> Iterator[None]:
    """Put ``label`` before the message of an ``InputError`` that does not contain it."""
    try:
        yield
    except InputError as error:
        if label in str(error):
            raise
        raise InputError(f"{label}: {error}") from error


def _zip_members(archive: zipfile.ZipFile) -> list[Member]:
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise InputError(f"more than {MAX_MEMBERS} members")
    members = []
    for info in infos:
        # zipfile unpacks other compressions in one go: 1 MB of bzip2 may hold 20 GB.
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"member {info.filename!r} has compression {info.compress_type}; expected 0 "
                "(stored) or 8 (deflated)"
            )
        if not info.is_dir():
            is_file = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            stream = functools.partial(archive.open, info)
            members.append(Member(info.filename, stream, info.file_size, is_file))
    return members


def members_of_tar(archive: tarfile.TarFile) -> list[Member]:
    """Return the members of an open .tar, read to its end mark."""
    members = []
    for number, info in enumerate(archive, start=1):
        # Before Python 3.11.14 a negative size makes tarfile read the same header for ever.
        if info.size < 0:
            raise InputError(f"member {info.name!r} has {info.size} bytes")
        if number > MAX_MEMBERS:
            raise InputError(f"more than {MAX_MEMBERS} members")
        if not info.isdir():
            is_file = info.isreg() and not info.issparse()
            stream = functools.partial(_extracted, archive, info)
            members.append(Member(info.name, stream, info.size, is_file))
    _check_end(archive)
    return members


def _extracted(archive: tarfile.TarFile, info: tarfile.TarInfo) -> AbstractContextManager[Stream]:
    stream = archive.extractfile(info)
    if stream is None:
        raise InputError(f"member {info.name!r} is not a file")
    return stream


def _check_end(archive: tarfile.TarFile) -> None:
    """Raise ``InputError`` unless the members end at the archive's end mark, a block of zeros.

    At a truncated or garbled header, tarfile stops as silently as at the end mark. Reading on to
    the end of the file makes gzip verify its checksum.
    """
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise InputError(
            f"the archive is cut short or damaged after {archive.offset} bytes; "
            "expected a member or the end mark"
        )
    while archive.fileobj.read(CHUNK):
        pass
