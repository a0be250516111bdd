"""Reading MindSpore's ``.ckpt`` files without MindSpore's reader: values, or where they lie."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, NoReturn

import mindspore as ms
import numpy as np

from labkit.base import arguments
from labkit.base.checkpoint_format import KINDS, TEXT, Entry, Malformed, parse
from labkit.base.input_files import Place, open_file
from labkit.errors import InputError

# Bytes of unexpected tensors that are read: an array of rates may be longer than it was.
_SPARE = 1 << 26


class DamagedCheckpoint(InputError):
    """A checkpoint file that cannot be read to its end."""


@dataclass(frozen=True)
class Unread:
    """A tensor that was not expected and so was not read, as the file describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def asnumpy(self) -> NoReturn:
        """Raise ``InputError``: there are no numbers."""
        what = f"{self.name} is {self.dtype} {self.shape}"
        raise InputError(f"the checkpoint is of another network: {what}")


def read(
    path: str | os.PathLike,
    need_crc: bool = False,
    expected: Mapping[str, tuple] | None = None,
    rename: Callable[[str], str] | None = None,
) -> dict[str, Any]:
    """Return the values of a ``.ckpt`` file by name: Parameters, and texts as ``str``.

    The values equal those of ``ms.load_checkpoint``. A CRC, if present, is verified. Tensors of
    4-bit integers, map tensors and encrypted files are refused.

    Args:
        path: The file.
        need_crc: Refuse a file that does not end with a CRC, such as a truncated one.
        expected: Name -> (type, shape) of the tensors that are needed; None: all. Of the others,
            the smallest are read, up to 64 MB; the rest, which may be GB of zeros in a sparse file,
            are ``Unread``.
        rename: Name in the file -> name of the value.

    Raises:
        DamagedCheckpoint: If the file is not a ``.ckpt`` file to its last byte.
        InputError: If there is no such file.
    """
    with _opened(path, need_crc, rename) as (file, entries):
        unread = {} if expected is None else _unexpected(entries, expected)
        return {name: unread.get(name) or _value(file, entries[name]) for name in entries}


def places(path: str | os.PathLike, rename: Callable[[str], str] | None = None) -> dict[str, Place]:
    """Return where the tensors of a ``.ckpt`` file lie, by name; a CRC, if present, is verified.

    Args:
        path: The file.
        rename: As for ``read``.

    Raises:
        DamagedCheckpoint: As for ``read``, and for a tensor in several slices (above 512 MB).
        InputError: If there is no such file.
    """
    with _opened(path, False, rename) as (_, entries):
        tensors = {}
        for name, entry in entries.items():
            if len(entry.slices) > 1:
                raise Malformed(f"{name!r} lies in {len(entry.slices)} slices")
            tensors[name] = Place(entry.kind, entry.shape, entry.slices[0].start)
        return tensors


@contextlib.contextmanager
def _opened(
    path: str | os.PathLike, need_crc: bool, rename: Callable[[str], str] | None
) -> Iterator[tuple[Any, dict[str, Entry]]]:
    """Yield the file and its entries; raise ``DamagedCheckpoint`` for anything wrong with it."""
    path = arguments.path("path", path)
    if not os.path.isfile(path):
        raise InputError(f"no checkpoint at {path}")
    try:
        with open_file(path) as file:
            yield file, _renamed(parse(file, need_crc), rename)
        return
    except Malformed as error:
        why = f"is damaged and cannot be read: {error}"
    except (OSError, MemoryError) as error:
        why = f"cannot be read: {error or 'it is larger than the memory'}"
    raise DamagedCheckpoint(f"the checkpoint {path} {why}")


def _renamed(entries: dict[str, Entry], rename: Callable[[str], str] | None) -> dict[str, Entry]:
    if rename is None:
        return entries
    renamed = {rename(name): entry for name, entry in entries.items()}
    if len(renamed) < len(entries):
        raise Malformed("two of its values get one name")
    for name, entry in renamed.items():
        entry.name = name
    return renamed


def _unexpected(entries: Mapping[str, Entry], expected: Mapping) -> dict[str, Unread]:
    unread, spare = {}, _SPARE
    for entry in sorted(entries.values(), key=lambda entry: entry.size):
        kind, shape = expected.get(entry.name, (None, None))
        if entry.kind != TEXT and (str(kind), shape) != (entry.kind, entry.shape):
            spare -= entry.size
            if spare < 0:
                unread[entry.name] = Unread(entry.name, entry.kind, entry.shape)
    return unread


def _value(file: BufferedReader, entry: Entry) -> str | ms.Parameter:
    data = np.empty(entry.size, np.uint8)
    left = data.data
    for part in entry.slices:
        file.seek(part.start)
        if file.readinto(left[: part.length]) != part.length:
            raise Malformed("it was cut while it was read")
        left = left[part.length :]
    if entry.kind == TEXT:
        try:
            # NumPy's text has four bytes per character, and zeros at its end.
            return str(data.data, "utf-32-le", "surrogatepass").rstrip("\0")
        except UnicodeDecodeError as error:
            raise Malformed(f"{entry.name!r} is not text") from error
    if entry.kind == "Bool" and data.max() > 1:
        raise Malformed(f"{entry.name!r} is neither True nor False in one of its places")
    # from_numpy uses the array itself; Tensor(...) would briefly need a third copy.
    tensor = ms.Tensor.from_numpy(data.view(KINDS[entry.kind]).reshape(entry.shape))
    return ms.Parameter(tensor, name=entry.name)
