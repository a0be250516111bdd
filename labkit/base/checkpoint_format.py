"""The layout of MindSpore's ``.ckpt`` files, parsed without MindSpore's reader.

``ms.load_checkpoint`` (2.10) copies a tensor's bytes into memory of the size that its shape says:
64 bytes for an int32 scalar corrupt the heap, 4096 end the process with SIGSEGV, and 8 bytes for a
(300, 400) float32 pass for a whole tensor. This module first compares every length with its shape.

The format is the message ``Checkpoint`` of mindspore/train/checkpoint.proto: values, each with a
name and a tensor (shape, type, bytes). A tensor above 512 MB is stored in slices with the same name
and shape. The file ends with ``crc_num`` and a CRC-32 if they were requested.
"""

import math
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np
from mindspore.common import np_dtype

TEXT = "str"
KINDS = {
    **{"Bool": np.bool_, "Float16": np.float16, "Float32": np.float32, "Float64": np.float64},
    **{"Int8": np.int8, "Int16": np.int16, "Int32": np.int32, "Int64": np.int64},
    **{"UInt8": np.uint8, "UInt16": np.uint16, "UInt32": np.uint32, "UInt64": np.uint64},
}
if hasattr(np_dtype, "bfloat16"):  # if NumPy has the version that MindSpore was built with
    KINDS["BFloat16"] = np_dtype.bfloat16
_CRC, _CRC_BYTES = b"crc_num", 17
_CIPHER = b"\xd8\x5e\x3a\x7f"
# A value of 15 bytes costs 6 kB and 0.2 ms as a Parameter; ResNet-152 has 777 of them.
_MOST_VALUES = 20_000
_MOST_AXES, _LONGEST_NAME, _LONGEST_TEXT = 16, 1024, 1 << 24
_CHUNK = 1 << 20


class Malformed(Exception):
    """A malformed file; the message says what is wrong with it."""


class Span(NamedTuple):
    """A text or message in a file: where it begins, and its length in bytes."""

    start: int
    length: int


@dataclass
class Entry:
    """One value of the file: its declared name, type and shape, and where its bytes are."""

    name: str
    kind: str
    shape: tuple[int, ...]
    slices: list[Span]

    @property
    def size(self) -> int:
        """The number of bytes in all slices."""
        return sum(part.length for part in self.slices)


def parse(file: BinaryIO, need_crc: bool) -> dict[str, Entry]:
    """Return a file's entries by name, without reading values; see ``checkpoint_files.read``.

    Raises:
        Malformed: if the file is not a complete checkpoint.
    """
    end = os.fstat(file.fileno()).st_size
    if end > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise Malformed(f"it has {end} bytes, more than this machine's memory")
    if file.read(len(_CIPHER)) == _CIPHER:
        raise Malformed("it is encrypted; labkit has no key for it")
    end = _without_crc(file, end, need_crc)
    entries: dict[str, Entry] = {}
    last = None
    for count, (number, content) in enumerate(_fields(file, Span(0, end))):
        if number != 1:
            raise Malformed(f"field {number} in the list of values")
        if count == _MOST_VALUES:
            raise Malformed(f"it holds more than {_MOST_VALUES} values")
        entry = _entry(file, content)
        if last is not None and entry.name == last.name:
            if (entry.kind, entry.shape) != (last.kind, last.shape):
                raise Malformed(f"the slices of {last.name!r} differ in type or shape")
            last.slices += entry.slices
        elif entry.name in entries:
            raise Malformed(f"{entry.name!r} is in it twice")
        else:
            last = entries[entry.name] = entry
    if not entries:
        raise Malformed("it holds no value")
    for entry in entries.values():
        _check_size(entry)
    letters = sum(entry.size for entry in entries.values() if entry.kind == TEXT)
    if letters > _LONGEST_TEXT:
        raise Malformed(f"its texts have {letters} bytes; expected at most {_LONGEST_TEXT}")
    return entries


def _without_crc(file: BinaryIO, end: int, need_crc: bool) -> int:
    """Return where the values end; raise ``Malformed`` if a CRC does not match them."""
    file.seek(max(end - _CRC_BYTES, 0))
    tail = file.read(_CRC_BYTES)
    if not tail.startswith(_CRC):
        if need_crc:
            raise Malformed("it does not end with its CRC")
        return end
    end -= _CRC_BYTES
    file.seek(0)
    checksum = 0
    for start in range(0, end, _CHUNK):
        checksum = zlib.crc32(_exactly(file, min(end - start, _CHUNK)), checksum)
    if checksum != int.from_bytes(tail[len(_CRC) :], "big"):
        raise Malformed("its CRC does not fit")
    return end


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise Malformed("it was cut while it was read")
    return data


def _fields(file: BinaryIO, message: object) -> Iterator[tuple[int, int | Span]]:
    """Yield (number, content) of a protobuf message's fields; none may extend beyond its end."""
    if not isinstance(message, Span):
        raise Malformed("expected text or a message, not a number")
    place, end = message.start, message.start + message.length
    while place < end:
        key, place = _varint(file, place, end)
        content, place = _varint(file, place, end)
        if key & 7 == 2:
            if content > end - place:
                raise Malformed(f"{content} bytes are announced where {end - place} are left")
            yield key >> 3, Span(place, content)
            place += content
        elif key & 7 == 0:
            yield key >> 3, content
        else:
            raise Malformed(f"neither a number nor text nor a message before byte {place}")


def _varint(file: BinaryIO, place: int, end: int) -> tuple[int, int]:
    """Return the number at a place in a file, and the place after it."""
    file.seek(place)
    value = 0
    for index, byte in enumerate(file.read(min(10, end - place))):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, place + index + 1
    raise Malformed(f"no number ends behind byte {place}")


def _text(file: BinaryIO, content: object) -> str:
    if not isinstance(content, Span):
        raise Malformed("expected a name, not a number")
    if content.length > _LONGEST_NAME:
        raise Malformed(f"a name of {content.length} bytes")
    file.seek(content.start)
    try:
        text = _exactly(file, content.length).decode()
    except UnicodeDecodeError as error:
        raise Malformed("a name that is not text") from error
    if not text.isprintable():
        raise Malformed(f"the name {text!r}")
    return text


def _entry(file: BinaryIO, message: object) -> Entry:
    parts: dict[int, int | Span] = {}
    for number, content in _fields(file, message):
        if number == 3:
            raise Malformed("it holds a map tensor, which labkit does not read")
        if number not in (1, 2) or number in parts:
            raise Malformed(f"field {number} in a value")
        parts[number] = content
    name = _text(file, parts[1]) if 1 in parts else ""
    if not name or 2 not in parts:
        raise Malformed("a value without a name or without a tensor")
    shape: list[int] = []
    tensor: dict[int, int | Span] = {}
    for number, content in _fields(file, parts[2]):
        if number == 1 and isinstance(content, int) and len(shape) < _MOST_AXES:
            shape.append(content)
        elif number in (2, 3) and number not in tensor:
            tensor[number] = content
        else:
            raise Malformed(f"field {number} in the tensor {name!r}")
    data = tensor.get(3)
    if 2 not in tensor or not isinstance(data, Span):
        raise Malformed(f"{name!r} has no type or no content")
    return Entry(name, _text(file, tensor[2]), tuple(shape), [data])


def _check_size(entry: Entry) -> None:
    """Raise ``Malformed`` unless type, shape and number of bytes are consistent."""
    if entry.kind == TEXT:
        fits = entry.shape == (0,) and 0 < entry.size <= _LONGEST_TEXT and entry.size % 4 == 0
        if fits and len(entry.slices) == 1:
            return
        raise Malformed(f"{entry.name!r} is a text of {entry.size} bytes")
    if entry.kind not in KINDS:
        expected = f"expected one of {', '.join(KINDS)}"
        raise Malformed(f"{entry.name!r} is of type {entry.kind!r}; {expected}")
    if entry.shape == (0,):  # a scalar, as old versions of MindSpore write it
        entry.shape = ()
    if not all(0 < length < 1 << 63 for length in entry.shape):
        raise Malformed(f"{entry.name!r} has the shape {entry.shape}")
    needed = math.prod(entry.shape) * np.dtype(KINDS[entry.kind]).itemsize
    if entry.size != needed:
        what = f"{entry.kind} {entry.shape} needs {needed}"
        raise Malformed(f"{entry.name!r} has {entry.size} bytes; {what}")
