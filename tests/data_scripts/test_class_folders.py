"""The CIFAR and ImageNet scripts: official archives, own images, and whole classes or none."""

import io
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from labkit.errors import InputError
from tests.support.data_archives import image, load, published, tar, tree
from tests.support.image_files import encode

MD5 = {
    "cifar10": "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar100": "03b5dce01913d631647c71ecec9e9cb8",
    "train": "1d675b47d978889d74fa0da5fadfb00e",
    "val": "29b22e2961454d5413ddabcf34fc5622",
    "devkit": "fa75699e90414af021442c21a62c3abf",
}


def test_the_official_numbers_and_checksums_are_the_published_ones():
    sets = load("_common").published("cifar10", "cifar100", "imagenet")
    imagenet = sets.pop("imagenet")
    archives = {name: known["archive"] for name, known in sets.items()} | imagenet["archives"]
    assert {name: archive["sums"]["md5"] for name, archive in archives.items()} == MD5
    for name, count in (("cifar10", 10), ("cifar100", 100)):
        classes = sets[name]["classes"].split()
        # Image folders number their classes in this order.
        assert classes == sorted(set(classes)) and len(classes) == count
        assert sets[name]["per_class"] == {"train": 50_000 // count, "val": 10_000 // count}
    assert imagenet["classes"] == 1000
    assert imagenet["images"] == {"train": 1_281_167, "val": 50_000}
    assert imagenet["per_class"] == {"train": [732, 1300], "val": [50, 50]}


def records(label_bytes, labels, seed):
    """Return a .bin file's bytes, channel by channel, row by row, and its images as PNG files."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    content, files = bytearray(), []
    for label, pixels in zip(labels, images, strict=True):
        content += bytes([7] * (label_bytes - 1) + [label])
        for channel in range(3):
            for row in range(32):
                content += bytes(pixels[row, :, channel])
        files.append(encode(Image.fromarray(pixels), "PNG"))
    return bytes(content), files


class Cifar:
    """CIFAR-10 with three classes, or CIFAR-100 with four; ``whole``: its images by name."""

    CLASSES = {"cifar10": ("cat", "dog", "ship"), "cifar100": ("apple", "bed", "wolf", "worm")}

    def __init__(self, folder, dataset="cifar10"):
        self.dataset, self.script, self.classes = dataset, load("cifar10"), self.CLASSES[dataset]
        known = self.script.DATASETS[dataset] | {"classes": " ".join(self.classes)}
        self.files, self.whole, known["per_class"] = {}, {}, {}
        for split, names in known["files"].items():
            known["per_class"][split] = 4 * len(names)
            for name in names:
                seed = len(self.files)
                labels = np.random.default_rng(seed).permutation(4 * [*range(len(self.classes))])
                self.files[name], images = records(known["label_bytes"], labels, seed)
                for index, (label, content) in enumerate(zip(labels, images, strict=True)):
                    place = f"{split}/{self.classes[label]}/{Path(name).stem}_{index:05d}.png"
                    self.whole[place] = content
        folder.mkdir()
        self.source = folder / known["archive"]["name"]
        self.source.write_bytes(tar(self.files.items(), "w:gz"))
        known["archive"] = published(self.source.name, self.source.read_bytes())
        self.script.DATASETS[dataset] = known

    def prepare(self, out, source=None, say=print):
        return self.script.prepare(self.dataset, source or self.source.parent, out, say)

    def own(self, *more):
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
    assert tree(small.prepare(tmp_path / "of records", records)) == small.whole
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


# Ids 1, 2, 3 in the order of a development kit, which is not alphabetical. Then its labels.
WNIDS = ("n00000003", "n00000001", "n00000002")
TRUTH = (1, 3, 2, 2, 1, 3)
COUNTS = {"n00000001": 3, "n00000002": 2, "n00000003": 4}
LABELS = "".join(f"{WNIDS[label - 1]}\n" for label in TRUTH)


def kit():
    """Return a development kit with these labels: its MATLAB file has classes, and a group."""
    fields = (
        "ILSVRC2012_ID WNID words gloss num_children children wordnet_height num_train_images"
    ).split()
    rows = [(n, wnid, "w", "g", 0, np.zeros(0), 0, 4) for n, wnid in enumerate(WNIDS, 1)]
    rows.append((len(rows) + 1, "n00000099", "w", "g", 2, np.array([1, 2]), 1, 0))
    synsets = np.array([[row] for row in rows], dtype=[(name, "O") for name in fields])
    packed, folder = io.BytesIO(), "ILSVRC2012_devkit_t12/data"
    scipy.io.savemat(packed, {"synsets": synsets})
    text = "".join(f"{label}\n" for label in TRUTH).encode()
    files = {"meta.mat": packed.getvalue(), "ILSVRC2012_validation_ground_truth.txt": text}
    return tar(((f"{folder}/{name}", content) for name, content in files.items()), "w:gz")


def train_image(wnid, number):
    """Return the name and content of a training image; one is a PNG, as in ImageNet itself."""
    kind = "PNG" if (wnid, number) == ("n00000002", 1) else "JPEG"
    return f"{wnid}_{number}.JPEG", image(number * 7 + int(wnid[1:]), format=kind)


class ImageNet:
    """ImageNet with three classes, whose archives are the official ones; ``whole``: its files."""

    def __init__(self, folder):
        self.script, self.source, self.whole = load("imagenet"), folder, {}
        self.known = self.script.ILSVRC2012 | {
            "classes": 3,
            "images": {"train": 9, "val": 6},
            "per_class": {"train": [2, 4], "val": [2, 2]},
            "archives": dict(self.script.ILSVRC2012["archives"]),
        }
        folder.mkdir()
        inner = {w: [train_image(w, n) for n in range(count)] for w, count in COUNTS.items()}
        self.put("train", tar((f"{wnid}.tar", tar(files)) for wnid, files in inner.items()))
        for wnid, files in inner.items():
            self.whole |= {f"train/{wnid}/{name}": content for name, content in files}
        images = {f"ILSVRC2012_val_{n:08d}.JPEG": image(n) for n in range(1, 7)}
        for (name, content), wnid in zip(images.items(), LABELS.split(), strict=True):
            self.whole[f"val/{wnid}/{name}"] = content
        # The order in the archive is not that of the numbers.
        self.put("val", tar(reversed(images.items())))
        self.put("devkit", kit())

    def path(self, which):
        return self.source / self.known["archives"][which]["name"]

    def put(self, which, content):
        self.path(which).write_bytes(content)
        self.known["archives"][which] = published(self.path(which).name, content)

    def prepare(self, out, source=None, **options):
        return self.script.prepare(source or self.source, out, **{"known": self.known} | options)


@pytest.fixture
def archives(tmp_path):
    return ImageNet(tmp_path / "archives")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "imagenet"])
def test_every_image_lands_in_its_class_unchanged_and_is_counted(tmp_path, name):
    folder, lines = tmp_path / "archives", []
    archives = ImageNet(folder) if name == "imagenet" else Cifar(folder, name)
    out = archives.prepare(tmp_path / "out", say=lines.append)
    assert tree(out) == archives.whole
    names = sorted(archives.whole)
    for usage, line in zip(("train", "val"), lines[-2:], strict=True):
        count = sum(name.startswith(usage) for name in names)
        classes = len({name.split("/")[1] for name in names})
        assert line == f"  {out / usage}  {count} images in {classes} classes"
    assert not any("warning" in line for line in lines)
    archives.prepare(out, "download", say=lines.append)  # a second call needs no archives
    assert "already, complete" in lines[-3]
    last = Path(names[-1]).parent
    (out / last / "mine.png").write_bytes(b"mine")
    with pytest.raises(InputError, match=f"{last} holds .*; expected .*. Remove it, or choose"):
        archives.prepare(out)


def test_the_folders_may_have_other_names(archives, tmp_path):
    out = archives.prepare(tmp_path / "out", folders=("ilsvrc", "ilsvrc_eval"))
    assert tree(out) == {
        name.replace("train/", "ilsvrc/", 1).replace("val/n", "ilsvrc_eval/n", 1): content
        for name, content in archives.whole.items()
    }


def test_a_part_needs_its_own_archives_alone_and_the_rest_follows(archives, tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text(LABELS)
    for which in ("val", "devkit"):
        archives.path(which).rename(tmp_path / which)
    out = archives.prepare(tmp_path / "out", only="train", first=2)
    first = ("train/n00000001/", "train/n00000002/")
    assert tree(out) == {n: content for n, content in archives.whole.items() if n.startswith(first)}
    (tmp_path / "val").rename(archives.path("val"))
    assert tree(archives.prepare(out, labels=labels)) == archives.whole


def test_what_differs_is_refused_by_name(archives, tmp_path):
    spoiled, labels_of_one = ImageNet(tmp_path / "spoiled"), tmp_path / "one.txt"
    content = bytearray(spoiled.path("train").read_bytes())
    content[700] ^= 1
    spoiled.path("train").write_bytes(content)
    spoiled.path("val").write_bytes(b"x")
    labels_of_one.write_text("n00000001\n" * 6)
    for given, options, message in (
        (spoiled, {}, "img_train.tar: SHA256 .*; expected"),
        (spoiled, {"only": "val"}, "img_val.tar: 1 bytes; expected"),
        (archives, {"first": 4}, "first: expected an integer >= 1 and <= 3, got 4"),
        (archives, {"folders": ("../x", "val")}, "expected two plain names"),
        (archives, {"labels": labels_of_one}, "one.txt: 6 labels of 1 classes; expected 6 of 3"),
    ):
        with pytest.raises(InputError, match=message):
            given.prepare(tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
