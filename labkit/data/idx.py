"""IDX files, the format of MNIST and Fashion-MNIST: strict reading and cheap checks.

An IDX file is a header of big-endian 32-bit numbers, then unsigned bytes and nothing else:
`2051, count, rows, columns` for images, `2049, count` for labels. Files may be gzipped (`.gz`).
Source of the format: the MNIST pages of Y. LeCun, C. Cortes and C. Burges.

Every fault raises ``InputError``, which names the file, the fault and what was expected. NumPy is
the only dependency.
"""

import contextlib
import gzip
import io
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from labkit.base import arguments
from labkit.base.files import open_file
from labkit.errors import InputError

# The low byte of the magic number is the number of dimensions; 0x08 stands for unsigned bytes.
IMAGES_MAGIC = 2051
LABELS_MAGIC = 2049
CLASSES = 10
# A gzip file of 1 MB can unpack to 1 GB: refuse a header that promises more than real sets hold.
# EMNIST's largest set, 697 932 images of 28 x 28, has 547 MB.
MAX_BYTES = 900_000_000
_MOST = {IMAGES_MAGIC: MAX_BYTES, LABELS_MAGIC: 50_000_000}

_PART = 1 << 20  # bytes that are unpacked or checked at a time
_DIMENSIONS = {IMAGES_MAGIC: 3, LABELS_MAGIC: 1}
_CONTENT = {IMAGES_MAGIC: "images", LABELS_MAGIC: "labels"}
_GZIP_FAULTS = (EOFError, gzip.BadGzipFile, zlib.error)


def read_images(path: str | os.PathLike) -> np.ndarray:
    """Return the images of an IDX file: uint8, (count, rows, columns)."""
    return _read(arguments.path("path", path), IMAGES_MAGIC)


def read_labels(path: str | os.PathLike) -> np.ndarray:
    """Return the labels of an IDX file: uint8, (count,), each below ``CLASSES``."""
    labels = _read(arguments.path("path", path), LABELS_MAGIC)
    if labels.max() >= CLASSES:
        first, count = _wrong_labels(labels)
        raise InputError(
            f"{path}: label {labels[first]} at position {first} "
            f"({count} such labels); expected 0 to {CLASSES - 1}"
        )
    return labels


def _wrong_labels(labels: np.ndarray) -> tuple[int, int]:
    """Return the position of the first label that is not a class, and the number of such labels.

    The labels are checked in parts: all positions at once took 2.6 GB for a gzip file of 261 kB
    with only wrong labels.
    """
    first, count = -1, 0
    for start in range(0, labels.size, _PART):
        above = labels[start : start + _PART] >= CLASSES
        if first < 0 and above.any():
            first = start + int(above.argmax())
        count += int(np.count_nonzero(above))
    return first, count


def read_pair(
    images_path: str | os.PathLike, labels_path: str | os.PathLike
) -> tuple[np.ndarray, np.ndarray]:
    """Return images, uint8 (count, rows, columns), and labels, uint8 (count,), of one set."""
    images, labels = read_images(images_path), read_labels(labels_path)
    _same_length(images_path, len(images), labels_path, len(labels))
    return images, labels


def check_pair(
    images_path: str | os.PathLike,
    labels_path: str | os.PathLike,
    size: tuple[int, int] | None = None,
) -> tuple[int, int, int]:
    """Check two IDX files that belong together; return the images' (count, rows, columns).

    The checks are those of `read_pair`, and of (rows, columns) if ``size`` is given. For a plain
    file only the length is checked and no pixel read: 0.1 ms instead of 30 ms for the 60 000
    images of MNIST.
    """
    images_path = Path(images_path)
    if images_path.suffix == ".gz":
        shape = read_images(images_path).shape
    else:
        with _opened(images_path) as file:
            shape = _shape(file, images_path, IMAGES_MAGIC)
    if size is not None and shape[1:] != size:
        raise InputError(
            f"{images_path}: images of {shape[1]} x {shape[2]}; expected {size[0]} x {size[1]}"
        )
    _same_length(images_path, shape[0], labels_path, len(read_labels(labels_path)))
    count, rows, columns = shape
    return count, rows, columns


def _read(path: Path, magic: int) -> np.ndarray:
    with _opened(path) as file:
        shape = _shape(file, path, magic)
        content, had = np.empty(math.prod(shape), np.uint8), 0
        # Read into place: joining what ``read`` returns would hold the content twice for a moment.
        while count := file.readinto(content.data[had : had + _PART]):
            had += count
        # Reading one extra byte detects excess bytes without reading all of them.
        more = had == content.size and file.read(1)
    if had != content.size or more:
        size = f"more than {content.size}" if more else f"only {had}"
        raise _wrong_size(path, magic, shape, size)
    content.flags.writeable = False
    return content.reshape(shape)


def _shape(file: io.BufferedIOBase, path: Path, magic: int) -> tuple[int, ...]:
    """Read the header; the length of a plain file must agree with it."""
    shape = _header(file, path, magic)
    if not isinstance(file, gzip.GzipFile):
        size = os.fstat(file.fileno()).st_size - file.tell()
        if size != math.prod(shape):
            raise _wrong_size(path, magic, shape, str(size))
    return shape


def _header(file: io.BufferedIOBase, path: Path, magic: int) -> tuple[int, ...]:
    size = 4 * (1 + _DIMENSIONS[magic])
    raw = file.read(size)
    number = int.from_bytes(raw[:4], "big")
    if len(raw) >= 4 and number != magic:
        hint = f" (a file of {_CONTENT[number]})" if number in _CONTENT else ""
        if raw[:2] == b"\x1f\x8b":
            hint = " (a gzip file; its name should end in .gz)"
        raise InputError(
            f"{path}: magic number {number}{hint}; expected {magic} for IDX {_CONTENT[magic]}"
        )
    if len(raw) < size:
        raise InputError(f"{path}: {len(raw)} bytes in all; expected a header of {size} bytes")
    shape = tuple(int(number) for number in np.frombuffer(raw, dtype=">u4")[1:])
    if not 0 < math.prod(shape) <= _MOST[magic]:
        raise InputError(
            f"{path}: the header says {' x '.join(map(str, shape))} bytes; "
            f"expected at least 1 and at most {_MOST[magic]}"
        )
    return shape


def _wrong_size(path: Path, magic: int, shape: tuple[int, ...], size: str) -> InputError:
    return InputError(
        f"{path}: {size} bytes follow the header; expected {math.prod(shape)}, "
        f"because the header says {shape[0]} {_CONTENT[magic]}"
        + (f" of {shape[1]} x {shape[2]}" if len(shape) == 3 else "")
    )


def _same_length(
    images_path: str | os.PathLike, images: int, labels_path: str | os.PathLike, labels: int
) -> None:
    if images != labels:
        raise InputError(
            f"{images_path} has {images} images and {labels_path} has {labels} labels; "
            "expected one label for each image"
        )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """Yield the file, unpacked if it is gzipped; raise ``InputError`` if it cannot be read."""
    try:
        with open_file(path) as file:
            if path.suffix == ".gz":
                with gzip.open(file, "rb") as unzipped:
                    yield unzipped
            else:
                yield file
    except _GZIP_FAULTS as error:
        raise InputError(f"{path}: the gzip file is cut short or damaged ({error})") from error
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}); expected an IDX file"
        ) from error
