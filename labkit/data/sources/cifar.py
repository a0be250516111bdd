"""The binary version of CIFAR: files of records, each of label bytes and 3 x 32 x 32 pixel bytes.

CIFAR-10 has one label byte, CIFAR-100 two: the coarse label, then the fine one. The pixels are the
red, the green and the blue plane, each row by row.
Source: A. Krizhevsky, https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version".
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from PIL import Image

from labkit.data.sources.archives import Member
from labkit.data.sources.members import read
from labkit.errors import InputError

SIDE = 32
PIXELS = 3 * SIDE * SIDE
MAX_PNG = 3200  # bytes; an image of pure noise makes 3172


@dataclass(frozen=True)
class Batch:
    """The records of one file: its name, labels (n,) uint8 and images (n, 32, 32, 3) uint8."""

    name: str
    labels: np.ndarray
    images: np.ndarray


def read_batch(member: Member, records: int, classes: int, label_bytes: int = 1) -> Batch:
    """Read a file that must hold so many ``records`` with labels below ``classes``.

    The label is the last of the ``label_bytes``.

    Raises:
        InputError: when the file has another length, or a label is no class.
    """
    length = label_bytes + PIXELS
    content = read(member, records * length)
    if len(content) != records * length:
        raise InputError(f"{member.name}: {len(content)} bytes; expected {records * length}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, length)
    labels = rows[:, label_bytes - 1]
    if labels.max() >= classes:
        raise InputError(
            f"{member.name}: label {labels.max()} at record {labels.argmax()}; expected 0 to "
            f"{classes - 1}"
        )
    images = rows[:, label_bytes:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return Batch(PurePosixPath(member.name).stem, labels, images)


def as_png(batches: Iterable[Batch], label: int) -> Iterator[tuple[str, bytes]]:
    """Yield (file name, PNG) of each image with ``label``: `data_batch_1_00029.png` is number 29.

    PNG keeps every pixel. The names sort in the order of the images.
    """
    for batch in batches:
        for index in np.flatnonzero(batch.labels == label):
            packed = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(batch.images[index])).save(packed, "PNG")
            yield f"{batch.name}_{index:05d}.png", packed.getvalue()


def check_image(content: bytes, label: str) -> None:
    """Raise ``InputError``, which begins with ``label``, unless ``content`` is a whole image.

    That is a JPEG or PNG of 32 x 32 pixels in RGB that can be decoded to its end.
    """
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            width, height, mode = *image.size, image.mode
            if (width, height, mode) == (SIDE, SIDE, "RGB"):
                image.load()
    except Exception as error:  # Pillow raises what the damage happens to lead to
        raise InputError(f"{label} is no whole JPEG or PNG ({error})") from error
    if (width, height, mode) != (SIDE, SIDE, "RGB"):
        raise InputError(f"{label} is {width} x {height} {mode}; expected {SIDE} x {SIDE} RGB")
