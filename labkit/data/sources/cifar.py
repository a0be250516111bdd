"""The images of CIFAR by class, from the records of the binary version or from the user's files.

A record consists of label bytes and 3 x 32 x 32 pixel bytes. CIFAR-10 has one label byte, CIFAR-100
two: the coarse label, then the fine label. The pixels are the red, the green and the blue plane,
each row by row.
Source: A. Krizhevsky, https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version".
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
from PIL import Image

from labkit.data.sources.archives import Member
from labkit.data.sources.download import Published
from labkit.data.sources.members import read
from labkit.errors import InputError, nearest

SIDE = 32
PIXELS = 3 * SIDE * SIDE
MAX_PNG = 3200  # bytes; an image of pure noise takes 3172
MAX_IMAGE = 1 << 16  # bytes of one image of the user's
MAX_OWN = 1 << 30  # bytes of all the user's images: they are held in memory

# The content of one file: labels (n,) uint8 and images (n, 32, 32, 3) uint8.
Batch = tuple[np.ndarray, np.ndarray]
# (split, class) -> (file name, content) of each image.
Images = dict[tuple[str, str], Iterable[tuple[str, bytes]]]


@dataclass(frozen=True)
class Dataset:
    """A data set: its official archive, and what the files in it must hold.

    Attributes:
        title: its name in messages.
        folder: name of its folder under `datasets`.
        address: address of its publisher.
        archive: the archive at that address.
        files: names of the record files of each split.
        records: number of records in each file of a split.
        names: the file of the archive that lists its classes.
        classes: class names in the order of the labels.
        label_bytes: number of bytes before the 3072 of an image; the last of them is the label.
    """

    title: str
    folder: str
    address: str
    archive: Published
    files: dict[str, tuple[str, ...]]
    records: dict[str, int]
    names: str
    classes: tuple[str, ...] = field(repr=False)
    label_bytes: int = 1

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the files of the archive that are read."""
        return (self.names, *(name for names in self.files.values() for name in names))

    def per_class(self, split: str) -> int:
        """Return how many images of ``split`` each class has."""
        return len(self.files[split]) * self.records[split] // len(self.classes)


def images_of_records(known: Dataset, members: Mapping[str, Member], where: str) -> Images:
    """Return the images of every class as PNG, read from the ``members`` of data set ``known``."""
    names = tuple(read(members[known.names], MAX_IMAGE).decode("utf-8", "replace").split())
    if names != known.classes:
        raise InputError(f"{where}: {known.names} names other classes than {known.title} has")
    images: Images = {}
    for split, files in known.files.items():
        batches = {file: _read_batch(known, members[file], known.records[split]) for file in files}
        labels = np.concatenate([labels for labels, _ in batches.values()])
        counts = np.bincount(labels, minlength=len(names))
        for label, name in enumerate(names):
            if counts[label] != known.per_class(split):
                raise InputError(
                    f"{where}: {counts[label]} images of {name} in {split}; expected "
                    f"{known.per_class(split)}"
                )
            images[split, name] = _as_png(batches, label)
    return images


def images_of_files(known: Dataset, members: list[Member], where: str) -> Images:
    """Return the images of every class unchanged, after checking each."""
    size = sum(member.size or 0 for member in members)
    if size > MAX_OWN:
        raise InputError(f"{where}: {size} bytes of images; expected at most {MAX_OWN}")
    images: dict[tuple[str, str], list[tuple[str, bytes]]] = {
        (split, name): [] for split in known.files for name in known.classes
    }
    roots = set()
    for member in members:
        *root, split, name, file = ("", "", *PurePosixPath(member.name).parts)
        roots.add(tuple(root))
        if (split, name) not in images or len(roots) > 1:
            hint = nearest(name, known.classes) if split in known.files else ""
            raise InputError(
                f"{where}: member {member.name!r}; expected train/CLASS/IMAGE or val/CLASS/IMAGE "
                f"with the {len(known.classes)} classes of {known.title}.{hint}"
            )
        content = read(member, MAX_IMAGE)
        _check_image(content, f"{where}: member {member.name!r}")
        images[split, name].append((file, content))
    empty = ["/".join(key) for key, files in images.items() if not files]
    if empty:
        raise InputError(f"{where} holds no images of {', '.join(empty)}")
    return dict(images)


def _read_batch(known: Dataset, member: Member, records: int) -> Batch:
    """Read a file that must hold exactly ``records`` records with valid labels."""
    length = known.label_bytes + PIXELS
    content = read(member, records * length)
    if len(content) != records * length:
        raise InputError(f"{member.name}: {len(content)} bytes; expected {records * length}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, length)
    labels = rows[:, known.label_bytes - 1]
    if labels.max() >= len(known.classes):
        raise InputError(
            f"{member.name}: label {labels.max()} at record {labels.argmax()}; expected 0 to "
            f"{len(known.classes) - 1}"
        )
    return labels, rows[:, known.label_bytes :].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _as_png(batches: Mapping[str, Batch], label: int) -> Iterator[tuple[str, bytes]]:
    """Yield (file name, PNG) of each image with ``label``: `data_batch_1_00029.png` is number 29.

    PNG keeps every pixel. The names sort in the order of the images.
    """
    for file, (labels, images) in batches.items():
        for index in np.flatnonzero(labels == label):
            packed = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(images[index])).save(packed, "PNG")
            yield f"{file.removesuffix('.bin')}_{index:05d}.png", packed.getvalue()


def _check_image(content: bytes, label: str) -> None:
    """Raise an ``InputError`` that begins with ``label`` unless ``content`` is a whole image.

    A whole image is a JPEG or PNG of 32 x 32 pixels in RGB that can be decoded to its end.
    """
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            width, height, mode = *image.size, image.mode
            if (width, height, mode) == (SIDE, SIDE, "RGB"):
                image.load()
    except Exception as error:  # Pillow raises many types for damaged images
        raise InputError(f"{label} is not a whole JPEG or PNG ({error})") from error
    if (width, height, mode) != (SIDE, SIDE, "RGB"):
        raise InputError(f"{label} is {width} x {height} {mode}; expected {SIDE} x {SIDE} RGB")
