"""A small world for each data script: a small archive as the official one, or a user's own images.

A world has ``script``, the module; ``source``, the path of the small official data (None if the
script takes none); and ``prepare(out, ...)``, which supplies the other arguments of the script.
"""

import dataclasses
import functools
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from labkit.data import idx
from tests.support.data_archives import TRUTH, WNIDS, image, kit, load, published, tar, tree
from tests.support.idx_files import write_set

COUNTS = {"n00000001": 3, "n00000002": 2, "n00000003": 4}
_RECORDS = {"train": 12, "val": 6}
_CLASSES = {"cifar10": ("cat", "dog", "ship"), "cifar100": ("apple", "bed", "wolf", "worm")}


def quiet(line: str) -> None:
    """Discard a line of a report."""


def cifar_records(label_bytes: int, labels, seed: int) -> tuple[bytes, np.ndarray]:
    """Return the content of a .bin file and its images (n, 32, 32, 3).

    The bytes are written channel by channel and row by row, as the format specifies.
    """
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    content = bytearray()
    for label, pixels in zip(labels, images, strict=True):
        content += bytes([7] * (label_bytes - 1) + [label])
        for channel in range(3):
            for row in range(32):
                content += bytes(pixels[row, :, channel])
    return bytes(content), images


class Cifar:
    """CIFAR-10 with three classes, or CIFAR-100 with four; ``pixels`` holds images by name."""

    def __init__(self, folder: Path, dataset: str = "cifar10"):
        self.dataset, self.script = dataset, load("cifar10")
        self.real, self.classes = self.script.DATASETS[dataset], _CLASSES[dataset]
        times = 1 if dataset == "cifar10" else 2
        self.records = {split: count * times for split, count in _RECORDS.items()}
        self.files: dict[str, bytes] = {}
        self.pixels: dict[str, np.ndarray] = {}
        for split, names in self.real.files.items():
            for name in names:
                self._add(split, name)
        self.files[self.real.names] = ("\n".join(self.classes) + "\n\n").encode()
        folder.mkdir(exist_ok=True)
        self.source = folder / self.real.archive.name
        self.be_official(self.packed(self.files))

    def _add(self, split: str, name: str) -> None:
        seed, count = len(self.files), self.records[split]
        labels = np.random.default_rng(seed).permutation(np.arange(count) % len(self.classes))
        self.files[name], images = cifar_records(self.real.label_bytes, labels, seed)
        for index, label in enumerate(labels):
            place = f"{split}/{self.classes[label]}/{Path(name).stem}_{index:05d}.png"
            self.pixels[place] = images[index]

    def packed(self, files: dict[str, bytes]) -> bytes:
        """Return the archive of these files."""
        return tar(((f"cifar-batches-bin/{name}", c) for name, c in files.items()), "w:gz")

    def be_official(self, content: bytes, **changes: Any) -> None:
        """Store ``content`` as the archive, and make the script accept it as the official one."""
        self.content = content
        self.source.write_bytes(content)
        self.known = dataclasses.replace(
            self.real,
            archive=published(self.real.archive.name, content),
            records=self.records,
            classes=self.classes,
            **changes,
        )
        self.script.DATASETS[self.dataset] = self.known

    def prepare(self, out, source=None, say=quiet) -> Path:
        return self.script.prepare(self.dataset, source or self.source, out, say)

    def own_members(self, each: int = 2) -> list[tuple[str, bytes]]:
        """Return (name, JPEG) pairs of a user's own images."""
        return [
            (f"{split}/{name}/{number}.jpg", image([len(split), index, number]))
            for split in ("train", "val")
            for index, name in enumerate(self.classes)
            for number in range(each)
        ]

    def own(self, members=None, each: int = 2, name: str = "mine.tar.gz") -> Path:
        """Store an archive of a user's own images; return its path."""
        path = self.source.parent / name
        path.write_bytes(tar(self.own_members(each) if members is None else members, "w:gz"))
        return path


class CifarOwn(Cifar):
    """The same script, given a user's own images."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.mine = self.own(each=20)

    def prepare(self, out, source=None, say=quiet) -> Path:
        return super().prepare(out, source or self.mine, say)


def imagenet_image(wnid: str, number: int) -> tuple[str, bytes]:
    """Return the name and content of a training image; one is a PNG, as in ImageNet itself."""
    kind = "PNG" if (wnid, number) == ("n00000002", 1) else "JPEG"
    return f"{wnid}_{number}.JPEG", image(number * 7 + int(wnid[1:]), format=kind)


class ImageNet:
    """ImageNet with three classes; ``contents`` holds its three archives."""

    def __init__(self, folder: Path):
        self.script, self.source = load("imagenet"), folder
        self.contents = {
            "train": tar(self.train_members()),
            "val": tar(self.val_members()),
            "devkit": kit(),
        }
        folder.mkdir(exist_ok=True)
        for which, content in list(self.contents.items()):
            self.put(which, content)

    @staticmethod
    def inner(wnid: str, count: int) -> bytes:
        """Return the archive of one class."""
        return tar(imagenet_image(wnid, n) for n in range(count))

    def train_members(self) -> list[tuple[str, bytes]]:
        return [(f"{wnid}.tar", self.inner(wnid, count)) for wnid, count in COUNTS.items()]

    @staticmethod
    def val_members() -> list[tuple[str, bytes]]:
        return [(f"ILSVRC2012_val_{n:08d}.JPEG", image(100 + n)) for n in range(1, 7)]

    @property
    def known(self):
        """The data set with these archives as the official ones."""
        real = self.script.ILSVRC2012
        described = {
            which: published(getattr(real, which).name, content)
            for which, content in self.contents.items()
        }
        numbers = {"classes": 3, "train_images": 9, "val_images": 6, "per_class": (2, 4)}
        return dataclasses.replace(real, **described, **numbers)

    def path(self, which: str) -> Path:
        return self.source / getattr(self.script.ILSVRC2012, which).name

    def put(self, which: str, content: bytes) -> None:
        self.contents[which] = content
        self.path(which).write_bytes(content)

    def prepare(self, out, source=None, say=quiet, **options) -> Path:
        options = {"known": self.known, "say": say} | options
        return self.script.prepare(source or self.source, out, **options)

    @staticmethod
    def expected() -> dict[str, bytes]:
        """Return the expected image files, built without the script from COUNTS and TRUTH."""
        files = {}
        for wnid, count in COUNTS.items():
            for n in range(count):
                name, content = imagenet_image(wnid, n)
                files[f"train/{wnid}/{name}"] = content
        for n, label in enumerate(TRUTH, 1):
            name = f"ILSVRC2012_val_{n:08d}.JPEG"
            files[f"val/{WNIDS[label - 1]}/{name}"] = image(100 + n)
        return files


class Mnist:
    """MNIST with 40 and 20 images; ``be_official`` makes them the official ones."""

    def __init__(self, folder: Path):
        self.script, self.source = load("mnist"), folder
        write_mnist(folder)

    def be_official(self, address: str) -> None:
        """Make the script accept the small files as the official ones, published at ``address``."""
        sums = tuple(tree_sums(self.source)[name] for name in self.script.FILES)
        known = self.script.DATASETS["mnist"]
        self.script.DATASETS["mnist"] = dataclasses.replace(
            known, sources={"download": address}, sums=sums
        )

    def prepare(self, out, source=None, say=quiet) -> Path:
        return self.script.prepare("mnist", source or self.source, out, say)

    def installed(self) -> dict[str, bytes]:
        """Return what the folder must hold after ``prepare``."""
        files = tree(self.source)
        return {f"{folder}/{name}": files[name] for name, folder in self.script.FILES.items()}


@functools.cache
def _read_pair(*paths):
    return idx.read_pair(*paths)


def color_digits():
    """Import the script that draws colour digits; it reads MNIST once for all tests."""
    script = load("color_digits")
    script.idx = SimpleNamespace(read_pair=_read_pair)
    return script


class ColorDigits:
    """20 training and 10 validation colour digits, drawn from the bundled MNIST."""

    def __init__(self, folder: Path):
        self.script, self.source = color_digits(), None

    def prepare(self, out, source=None, say=quiet, **options) -> Path:
        return self.script.prepare(**({"train": 20, "val": 10, "out": out, "say": say} | options))


WORLDS = {
    "cifar10": Cifar,
    "own images": CifarOwn,
    "imagenet": ImageNet,
    "mnist": Mnist,
    "color digits": ColorDigits,
}


def write_mnist(folder: Path, seed: int = 0, suffix: str = "") -> Path:
    """Store a small set with MNIST's structure in a single folder; return the folder."""
    random = np.random.default_rng(seed)
    for usage, count in (("train", 40), ("test", 20)):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = random.integers(0, 10, count, dtype=np.uint8)
        write_set(folder, usage, images, labels, suffix)
    return folder


def tree_sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below ``folder``, except temporary ones."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in tree(folder).items()}


def times(folder: Path) -> dict[Path, int]:
    """Return when each file and folder was last written."""
    return {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}


def killed(place: Any, point: str, count: int, call: Callable[[], Any]) -> None:
    """Run ``call`` in a child process that is killed at the ``count``-th call of a function.

    Args:
        place: module or class of the function.
        point: name of the function.
        count: number of the call at which the child is killed, before the function does anything.
        call: what the child runs.
    """
    child = os.fork()
    if not child:
        real, calls = getattr(place, point), []

        def counted(*arguments, **options):
            calls.append(1)
            if len(calls) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        try:
            setattr(place, point, counted)
            call()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the call came to its end, or failed"
