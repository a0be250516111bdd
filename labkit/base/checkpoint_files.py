"""Reading MindSpore's ``.ckpt`` files without MindSpore's reader.

``ms.load_checkpoint`` (2.10) copies a tensor's bytes into memory of the size that its shape says:
64 bytes for an int32 scalar corrupt the heap, 4096 end the process with SIGSEGV, and 8 bytes for a
(300, 400) float32 are taken for a whole tensor. Here every length is first compared with its shape.

The format is the message ``Checkpoint`` of mindspore/train/checkpoint.proto: values of a name and a
tensor (shape, type, bytes). Those above 512 MB come in slices with the same name and shape; at the
end are, where it was asked for, ``crc_num`` and a CRC-32.
"""

import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import mindspore as ms
import numpy as np
from mindspore.common import np_dtype

from labkit.base.input_files import open_file
from labkit.errors import InputError

_TEXT = "str"
_KINDS = {
    **{"Bool": np.bool_, "Float16": np.float16, "Float32": np.float32, "Float64": np.float64},
    **{"Int8": np.int8, "Int16": np.int16, "Int32": np.int32, "Int64": np.int64},
    **{"UInt8": np.uint8, "UInt16": np.uint16, "UInt32": np.uint32, "UInt64": np.uint64},
}
if hasattr(np_dtype, "bfloat16"):  # NumPy is of the version that MindSpore was built with
    _KINDS["BFloat16"] = np_dtype.bfloat16
_CRC, _CRC_BYTES = b"crc_num", 17
_CIPHER = b"\xd8\x5e\x3a\x7f"
# A value of 15 bytes costs 6 kB and 0.2 ms as a Parameter; ResNet-152 has 777 of them.
_MOST_VALUES = 20_000
_MOST_AXES, _LONGEST_NAME, _LONGEST_TEXT = 16, 1024, 1 << 24
_CHUNK = 1 << 20
# Bytes of tensors that are read and not expected: an array of rates may be longer than it was.
_SPARE = 1 << 26


class DamagedCheckpoint(InputError):
    """A checkpoint file that cannot be read to its end."""


@dataclass(frozen=True)
class Unread:
    """A tensor that was not expected, and so was not read: what the file says of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def asnumpy(self) -> NoReturn:
        """Raise ``InputError``: there are no numbers."""
        what = f"{self.name} is {self.dtype} {self.shape}"
        raise InputError(f"the checkpoint is of another network: {what}")


def read(
    path: str | os.PathLike, need_crc: bool = False, expected: Mapping[str, tuple] | None = None
) -> dict[str, Any]:
    """Return the values of a ``.ckpt`` file by name: Parameters, and texts as ``str``.

    A CRC that is there is verified. Equal to what ``ms.load_checkpoint`` returns; refused are
    tensors of 4-bit integers, map tensors and encrypted files.

    Args:
        path: The file.
        need_crc: Refuse a file that does not end with a CRC, as one that has been cut.
        expected: Name -> (type, shape) of the tensors that are needed; None: all. Of others the
            smallest are read, up to 64 MB; the rest, which may be GB of a hole, are ``Unread``.

    Raises:
        DamagedCheckpoint: For a file that is not such a one to its last byte.
        InputError: Where no file is there.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no checkpoint at {path}")
    try:
        with open_file(path) as file:
            entries = _parse(file, need_crc)
            unread = {} if expected is None else _unexpected(entries, expected)
            return {name: unread.get(name) or _value(file, entries[name]) for name in entries}
    except _Malformed as error:
        why = f"is damaged and cannot be read: {error}"
    except (OSError, MemoryError) as error:
        why = f"cannot be read: {error or 'it is larger than the memory'}"
    raise DamagedCheckpoint(f"the checkpoint {path} {why}")


class _Malformed(Exception):
    """What is wrong with a file, in words."""


class _Span(NamedTuple):
    """A text or message of a file: where it begins, and its bytes."""

    start: int
    length: int


@dataclass
class _Entry:
    """One value of the file: what it says of itself, and where its bytes are."""

    name: str
    kind: str
    shape: tuple[int, ...]
    slices: list[_Span]

    @property
    def size(self) -> int:
        return sum(part.length for part in self.slices)


def _parse(file: BinaryIO, need_crc: bool) -> dict[str, _Entry]:
    end = os.fstat(file.fileno()).st_size
    if end > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise _Malformed(f"it has {end} bytes, more than this machine's memory")
    if file.read(len(_CIPHER)) == _CIPHER:
        raise _Malformed("it is encrypted; labkit has no key for it")
    end = _without_crc(file, end, need_crc)
    entries: dict[str, _Entry] = {}
    last = None
    for count, (number, content) in enumerate(_fields(file, _Span(0, end))):
        if number != 1:
            raise _Malformed(f"field {number} in the list of values")
        if count == _MOST_VALUES:
            raise _Malformed(f"it holds more than {_MOST_VALUES} values")
        entry = _entry(file, content)
        if last is not None and entry.name == last.name:
            if (entry.kind, entry.shape) != (last.kind, last.shape):
                raise _Malformed(f"the slices of {last.name!r} differ in type or shape")
            last.slices += entry.slices
        elif entry.name in entries:
            raise _Malformed(f"{entry.name!r} is in it twice")
        else:
            last = entries[entry.name] = entry
    if not entries:
        raise _Malformed("it holds no value")
    for entry in entries.values():
        _check_size(entry)
    letters = sum(entry.size for entry in entries.values() if entry.kind == _TEXT)
    if letters > _LONGEST_TEXT:
        raise _Malformed(f"its texts have {letters} bytes; expected at most {_LONGEST_TEXT}")
    return entries


def _without_crc(file: BinaryIO, end: int, need_crc: bool) -> int:
    """Return where the values end; raise ``_Malformed`` where a CRC does not fit them."""
    file.seek(max(end - _CRC_BYTES, 0))
    tail = file.read(_CRC_BYTES)
    if not tail.startswith(_CRC):
        if need_crc:
            raise _Malformed("it does not end with its CRC")
        return end
    end -= _CRC_BYTES
    file.seek(0)
    checksum = 0
    for start in range(0, end, _CHUNK):
        checksum = zlib.crc32(_exactly(file, min(end - start, _CHUNK)), checksum)
    if checksum != int.from_bytes(tail[len(_CRC) :], "big"):
        raise _Malformed("its CRC does not fit")
    return end


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise _Malformed("it was cut while it was read")
    return data


def _fields(file: BinaryIO, message: object) -> Iterator[tuple[int, int | _Span]]:
    """Yield (number, content) of the fields of a protobuf message; nothing lies beyond its end."""
    if not isinstance(message, _Span):
        raise _Malformed("expected text or a message, not a number")
    place, end = message.start, message.start + message.length
    while place < end:
        key, place = _varint(file, place, end)
        content, place = _varint(file, place, end)
        if key & 7 == 2:
            if content > end - place:
                raise _Malformed(f"{content} bytes are announced where {end - place} are left")
            yield key >> 3, _Span(place, content)
            place += content
        elif key & 7 == 0:
            yield key >> 3, content
        else:
            raise _Malformed(f"neither a number nor text nor a message before byte {place}")


def _varint(file: BinaryIO, place: int, end: int) -> tuple[int, int]:
    """Return the number at a place of a file, and the place behind it."""
    file.seek(place)
    value = 0
    for index, byte in enumerate(file.read(min(10, end - place))):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, place + index + 1
    raise _Malformed(f"no number ends behind byte {place}")


def _text(file: BinaryIO, content: object) -> str:
    if not isinstance(content, _Span):
        raise _Malformed("expected a name, not a number")
    if content.length > _LONGEST_NAME:
        raise _Malformed(f"a name of {content.length} bytes")
    file.seek(content.start)
    try:
        text = _exactly(file, content.length).decode()
    except UnicodeDecodeError as error:
        raise _Malformed("a name that is no text") from error
    if not text.isprintable():
        raise _Malformed(f"the name {text!r}")
    return text


def _entry(file: BinaryIO, message: object) -> _Entry:
    parts: dict[int, int | _Span] = {}
    for number, content in _fields(file, message):
        if number == 3:
            raise _Malformed("it holds a map tensor, which labkit does not read")
        if number not in (1, 2) or number in parts:
            raise _Malformed(f"field {number} in a value")
        parts[number] = content
    name = _text(file, parts[1]) if 1 in parts else ""
    if not name or 2 not in parts:
        raise _Malformed("a value without a name or without a tensor")
    shape: list[int] = []
    tensor: dict[int, int | _Span] = {}
    for number, content in _fields(file, parts[2]):
        if number == 1 and isinstance(content, int) and len(shape) < _MOST_AXES:
            shape.append(content)
        elif number in (2, 3) and number not in tensor:
            tensor[number] = content
        else:
            raise _Malformed(f"field {number} in the tensor {name!r}")
    data = tensor.get(3)
    if 2 not in tensor or not isinstance(data, _Span):
        raise _Malformed(f"{name!r} has no type or no content")
    return _Entry(name, _text(file, tensor[2]), tuple(shape), [data])


def _check_size(entry: _Entry) -> None:
    """Raise ``_Malformed`` unless type, shape and number of bytes belong together."""
    if entry.kind == _TEXT:
        fits = entry.shape == (0,) and 0 < entry.size <= _LONGEST_TEXT and entry.size % 4 == 0
        if fits and len(entry.slices) == 1:
            return
        raise _Malformed(f"{entry.name!r} is a text of {entry.size} bytes")
    if entry.kind not in _KINDS:
        expected = f"expected one of {', '.join(_KINDS)}"
        raise _Malformed(f"{entry.name!r} is of type {entry.kind!r}; {expected}")
    if entry.shape == (0,):  # how old versions of MindSpore write a scalar
        entry.shape = ()
    if not all(0 < length < 1 << 63 for length in entry.shape):
        raise _Malformed(f"{entry.name!r} has the shape {entry.shape}")
    needed = math.prod(entry.shape) * np.dtype(_KINDS[entry.kind]).itemsize
    if entry.size != needed:
        what = f"{entry.kind} {entry.shape} needs {needed}"
        raise _Malformed(f"{entry.name!r} has {entry.size} bytes; {what}")


def _unexpected(entries: Mapping[str, _Entry], expected: Mapping) -> dict[str, Unread]:
    unread, spare = {}, _SPARE
    for entry in sorted(entries.values(), key=lambda entry: entry.size):
        kind, shape = expected.get(entry.name, (None, None))
        if entry.kind != _TEXT and (str(kind), shape) != (entry.kind, entry.shape):
            spare -= entry.size
            if spare < 0:
                unread[entry.name] = Unread(entry.name, entry.kind, entry.shape)
    return unread


def _value(file: BufferedReader, entry: _Entry) -> str | ms.Parameter:
    data = np.empty(entry.size, np.uint8)
    left = data.data
    for part in entry.slices:
        file.seek(part.start)
        if file.readinto(left[: part.length]) != part.length:
            raise _Malformed("it was cut while it was read")
        left = left[part.length :]
    if entry.kind == _TEXT:
        try:
            # NumPy's text has four bytes a character, and zeros at its end.
            return str(data.data, "utf-32-le", "surrogatepass").rstrip("\0")
        except UnicodeDecodeError as error:
            raise _Malformed(f"{entry.name!r} is no text") from error
    if entry.kind == "Bool" and data.max() > 1:
        raise _Malformed(f"{entry.name!r} is neither True nor False in one of its places")
    # from_numpy takes the array itself; Tensor(...) would be a third copy for a moment.
    tensor = ms.Tensor.from_numpy(data.view(_KINDS[entry.kind]).reshape(entry.shape))
    return ms.Parameter(tensor, name=entry.name)
