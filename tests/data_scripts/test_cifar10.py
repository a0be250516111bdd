"""The CIFAR script: the official set or own images, class by class."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labkit.errors import InputError
from tests.support.data_archives import image, load, published, quiet, tar, tree

CLASSES = {"cifar10": ("cat", "dog", "ship"), "cifar100": ("apple", "bed", "wolf", "worm")}


def records(label_bytes: int, labels, seed: int) -> tuple[bytes, np.ndarray]:
    """Return a .bin file's bytes, channel by channel, row by row, and its images (n, 32, 32, 3)."""
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
        self.dataset, self.script, self.classes = dataset, load("cifar10"), CLASSES[dataset]
        self.known = self.script.DATASETS[dataset] | {"classes": " ".join(self.classes)}
        self.files, self.pixels, self.known["per_class"] = {}, {}, {}
        for split, names in self.known["files"].items():
            for name in names:
                self._add(split, name)
        folder.mkdir()
        self.source = folder / self.known["archive"]["name"]
        self.source.write_bytes(tar(self.files.items(), "w:gz"))
        described = published(self.source.name, self.source.read_bytes())
        self.script.DATASETS[dataset] = self.known | {"archive": described}

    def _add(self, split: str, name: str) -> None:
        seed, per_class = len(self.files), self.known["per_class"]
        per_class[split] = per_class.get(split, 0) + 4
        labels = np.random.default_rng(seed).permutation(4 * [*range(len(self.classes))])
        self.files[name], images = records(self.known["label_bytes"], labels, seed)
        for index, label in enumerate(labels):
            place = f"{split}/{self.classes[label]}/{Path(name).stem}_{index:05d}.png"
            self.pixels[place] = images[index]

    def prepare(self, out, source=None, say=quiet) -> Path:
        return self.script.prepare(self.dataset, source or self.source, out, say)

    def own(self, *more) -> list[tuple[str, bytes]]:
        """Return (name, JPEG) pairs of a user's own images."""
        return [
            (f"{split}/{name}/{number}.jpg", image([len(split), index, number]))
            for split in ("train", "val")
            for index, name in enumerate(self.classes)
            for number in range(2)
        ] + list(more)


@pytest.fixture
def small(tmp_path):
    return Cifar(tmp_path / "source")


def assert_same_images(folder, expected):
    files = tree(folder)
    assert files and files.keys() == expected.keys()
    for name, content in files.items():
        shown = Image.open(io.BytesIO(content))
        assert (shown.format, shown.mode) == ("PNG", "RGB")
        np.testing.assert_array_equal(np.asarray(shown), expected[name], err_msg=name)


def test_the_official_numbers_and_checksums_are_the_published_ones():
    sets = load("cifar10").DATASETS
    assert sets["cifar10"]["archive"]["sums"]["md5"] == "c32a1d4ab5d03f1284b67883e8d87530"
    assert sets["cifar100"]["archive"]["sums"]["md5"] == "03b5dce01913d631647c71ecec9e9cb8"
    for name, count in (("cifar10", 10), ("cifar100", 100)):
        classes = sets[name]["classes"].split()
        # Image folders number their classes in this order.
        assert classes == sorted(set(classes)) and len(classes) == count
        assert sets[name]["per_class"] == {"train": 50_000 // count, "val": 10_000 // count}


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_every_pixel_lands_in_its_class(tmp_path, dataset):
    small, lines = Cifar(tmp_path / "source", dataset), []
    out = small.prepare(tmp_path / "out", small.source.parent, lines.append)
    assert_same_images(out, small.pixels)
    train, val = (sum(name.startswith(split) for name in small.pixels) for split in ("train", "va"))
    number = len(small.classes)
    assert lines[-2:] == [
        f"  {out / 'train'}  {train} images in {number} classes",
        f"  {out / 'val'}  {val} images in {number} classes",
    ]
    assert not any("warning" in line for line in lines)
    small.source.unlink()
    small.prepare(out, "download", lines.append)  # nothing is downloaded
    assert any("already" in line for line in lines)
    name = f"val/{small.classes[0]}"
    (out / name / "mine.png").write_bytes(b"mine")
    with pytest.raises(InputError, match=f"{name} holds .*; expected .*. Remove it, or choose"):
        small.prepare(out, "download")


def test_own_images_and_records_are_taken_as_they_are_and_said(small, tmp_path):
    members, lines, source = small.own(), [], tmp_path / "mine.tar.gz"
    source.write_bytes(tar(members, "w:gz"))
    out = small.prepare(tmp_path / "out", source, lines.append)
    assert tree(out) == dict(members)
    assert f"warning: {source} is not the official CIFAR-10 (cifar-10-binary" in lines[0]
    for again, message in ((source, "out holds images already"), (None, "cat holds 2 files; exp")):
        with pytest.raises(InputError, match=message):
            small.prepare(out, again)
    records = tmp_path / "records"
    records.mkdir()
    for name, whole in small.files.items():
        (records / name).write_bytes(whole)
    assert_same_images(small.prepare(tmp_path / "of records", records), small.pixels)
    for spoiled, message in ((whole[:-1], "36875 bytes; exp"), (whole[3073:], "3 images of .*4")):
        (records / name).write_bytes(spoiled)
        with pytest.raises(InputError, match=message):
            small.prepare(tmp_path / message[:2], records)


def test_what_is_no_cifar_is_refused_and_nothing_is_written(small, tmp_path):
    content = bytearray(small.source.read_bytes())
    content[4] ^= 1  # the time in the gzip header: the content stays intact
    sources = {
        "SHA256 .*; expected": bytes(content),
        "bytes; expected": content[:-512],
        "9.jpg is not a whole JPEG or PNG": tar(small.own(("train/cat/9.jpg", image(1)[:-40]))),
        r"\(32, 31\) RGB; expected": tar(small.own(("train/cat/9.jpg", image(1, (32, 31))))),
        "differ in classes: cats": tar(small.own(("train/cats/9.jpg", image(1)))),
        "9.jpg": tar(small.own(("../9.jpg", image(1)))),
        "holds no CIFAR-10: expected train/CLASS": tar([]),
    }
    for number, (message, content) in enumerate(sources.items()):
        path = small.source if number < 2 else tmp_path / "mine.tar"
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            small.prepare(tmp_path / "deep" / "out", path)
        assert not (tmp_path / "deep").exists()
