"""Find, open, read and unpack the files of a folder or an archive.

``opened`` finds files by the last part of their names alone, plain or gzipped, and ignores their
place in the archive. ``listed`` and ``tar_members`` yield all files, for archives in which the name
decides where a file belongs: a name that leaves the folder, a link or anything else that is not a
plain file is refused. Only ``unpack`` writes, to the path that its caller gives.
"""

import contextlib
import functools
import gzip
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from labkit.base.files import open_file
from labkit.data.sources.archives import (
    CHUNK,
    Limited,
    Member,
    Stream,
    archive_members,
    damage,
    members_of_tar,
    named,
    open_tar,
)
from labkit.errors import InputError


@contextlib.contextmanager
def opened(path: str | os.PathLike, names: Collection[str]) -> Iterator[dict[str, Member]]:
    """Open a folder, .zip or .tar (also compressed); yield the member for each of ``names``.

    Members lie at any depth; `name` is preferred to `name.gz`. Links in a .tar are not followed.

    Raises:
        InputError: if the archive cannot be read, or a name is missing or occurs more than once.
    """
    path = Path(path)
    with _members(path) as members:
        chosen = _choose([member for member in members if member.is_file], names, path)
        yield {name: _unzipped(member) for name, member in chosen.items()}


@contextlib.contextmanager
def listed(path: str | os.PathLike) -> Iterator[list[Member]]:
    """Open a folder, .zip or .tar (also compressed); yield all its files, in their order.

    The names are clean relative paths: ``./a//b`` becomes ``a/b``.

    Raises:
        InputError: if the archive cannot be read to its end, or a member is not a plain file or
            directory, occurs twice, or has a name that is absolute or contains a part `..`, a
            backslash or an unprintable character; the message names the member.
    """
    path = Path(path)
    with _members(path) as members:
        if path.is_dir():
            yield _plain(replace(m, name=str(Path(m.name).relative_to(path))) for m in members)
        else:
            with named(str(path)):
                plain = _plain(members)
            yield plain


@contextlib.contextmanager
def tar_members(stream: Stream, label: str) -> Iterator[list[Member]]:
    """Yield the files of an uncompressed .tar in ``stream``, as ``listed`` does.

    It may be a .tar inside another .tar: nothing is written. ``label`` names it in error messages.
    """
    with contextlib.ExitStack() as stack:
        with named(label), damage(f"{label}: the archive is"):
            limited = Limited(stream)
            archive = stack.enter_context(open_tar(limited))
            members = _plain(members_of_tar(archive))
            limited.largest = None
        yield members


def read(member: Member, limit: int) -> bytes:
    """Return the unpacked bytes of ``member``.

    Raises:
        InputError: if there are more than ``limit``, or fewer than the archive states.
    """
    if member.size is not None and member.size > limit:
        raise InputError(f"{member.name}: {member.size} bytes; expected at most {limit}")
    with damage(f"{member.name}:"), member.open() as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{member.name}: unpacks to more than {limit} bytes")
    if member.size is not None and len(content) != member.size:
        raise InputError(f"{member.name}: {len(content)} bytes; expected {member.size}")
    return content


def unpack(member: Member, target: Path, limit: int) -> str:
    """Write the unpacked bytes of ``member`` to ``target``; return their SHA-256.

    After an error, the caller must remove what was written before it.

    Raises:
        InputError: if there are more than ``limit`` bytes, or the member is damaged.
    """
    digest, size = hashlib.sha256(), 0
    with damage(f"{member.name}:"), member.open() as stream, open(target, "wb") as file:
        while block := stream.read(CHUNK):
            size += len(block)
            if size > limit:
                raise InputError(f"{member.name}: unpacks to more than {limit} bytes")
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _members(path: Path) -> Iterator[list[Member]]:
    with contextlib.ExitStack() as stack:
        with named(str(path)), damage(f"{path}: the archive is"):
            members = _folder_members(path) if path.is_dir() else archive_members(stack, path)
        yield members


def _folder_members(folder: Path) -> list[Member]:
    return [
        Member(str(path), functools.partial(open_file, path), path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def _plain(members: Iterable[Member]) -> list[Member]:
    """Return the members with clean names; refuse links, and names that leave the folder."""
    cleaned: dict[str, Member] = {}
    for member in members:
        path = PurePosixPath(member.name)
        if not member.is_file:
            raise InputError(f"member {member.name!r} is a link or a device; expected a file")
        if path.is_absolute() or ".." in path.parts or "\\" in member.name:
            raise InputError(
                f"member {member.name!r} leaves the folder; expected a name like folder/file"
            )
        if not member.name.isprintable() or not path.parts:
            raise InputError(f"member {member.name!r} has no usable name")
        name = str(path)
        if name in cleaned:
            raise InputError(f"member {member.name!r} appears more than once; expected it once")
        cleaned[name] = replace(member, name=name)
    return list(cleaned.values())


def _unzipped(member: Member) -> Member:
    """Return the member; if its name ends in .gz, it opens unpacked."""
    if not member.name.endswith(".gz"):
        return member

    @contextlib.contextmanager
    def unzipping() -> Iterator[Stream]:
        # Closing a GzipFile does not close the stream below it.
        with member.open() as stream, gzip.open(stream) as unzipped:
            yield unzipped

    return replace(member, open=unzipping, size=None)


def _choose(members: Iterable[Member], names: Collection[str], where: Path) -> dict[str, Member]:
    plain: dict[str, list[Member]] = {name: [] for name in names}
    zipped: dict[str, list[Member]] = {name: [] for name in names}
    for member in members:
        last = PurePosixPath(member.name).name
        # Some archives of IDX files spell their names with a dot: train-images.idx3-ubyte.
        name = last.removesuffix(".gz").replace(".idx", "-idx")
        if name in plain:
            (zipped if last.endswith(".gz") else plain)[name].append(member)
    chosen = {name: plain[name] or zipped[name] for name in names}
    missing = [name for name in names if not chosen[name]]
    if missing:
        raise InputError(
            f"{where} holds no {', '.join(missing)}; expected {', '.join(names)}, plain or .gz"
        )
    for name, same in chosen.items():
        if len(same) > 1:
            both = " and ".join(member.name for member in same[:2])
            raise InputError(f"{where} holds {name} more than once ({both}); expected it once")
    return {name: same[0] for name, same in chosen.items()}
