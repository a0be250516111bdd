"""The ImageNet script: official archives or none, whole classes or none."""

import io

import numpy as np
import pytest
import scipy.io

from labkit.errors import InputError
from tests.support.data_archives import image, load, published, quiet, tar, tree

# Ids 1, 2, 3 in the order of a development kit, which is not alphabetical. Then its labels.
WNIDS = ("n00000003", "n00000001", "n00000002")
TRUTH = (1, 3, 2, 2, 1, 3)
COUNTS = {"n00000001": 3, "n00000002": 2, "n00000003": 4}


def kit(truth=TRUTH) -> bytes:
    """Return a development kit with these labels: its MATLAB file has classes, and a group."""
    fields = (
        "ILSVRC2012_ID WNID words gloss num_children children wordnet_height num_train_images"
    ).split()
    rows = [(n, wnid, "w", "g", 0, np.zeros(0), 0, 4) for n, wnid in enumerate(WNIDS, 1)]
    rows.append((len(rows) + 1, "n00000099", "w", "g", 2, np.array([1, 2]), 1, 0))
    synsets = np.array([[row] for row in rows], dtype=[(name, "O") for name in fields])
    packed = io.BytesIO()
    scipy.io.savemat(packed, {"synsets": synsets})
    text = "".join(f"{label}\n" for label in truth).encode()
    folder = "ILSVRC2012_devkit_t12/data"
    files = {"meta.mat": packed.getvalue(), "ILSVRC2012_validation_ground_truth.txt": text}
    return tar(((f"{folder}/{name}", content) for name, content in files.items()), "w:gz")


def train_image(wnid: str, number: int) -> tuple[str, bytes]:
    """Return the name and content of a training image; one is a PNG, as in ImageNet itself."""
    kind = "PNG" if (wnid, number) == ("n00000002", 1) else "JPEG"
    return f"{wnid}_{number}.JPEG", image(number * 7 + int(wnid[1:]), format=kind)


class ImageNet:
    """ImageNet with three classes, whose archives are the official ones."""

    def __init__(self, folder):
        self.script, self.source = load("imagenet"), folder
        self.known = self.script.ILSVRC2012 | {
            "classes": 3,
            "images": {"train": 9, "val": 6},
            "per_class": {"train": [2, 4], "val": [2, 2]},
            "archives": dict(self.script.ILSVRC2012["archives"]),
        }
        folder.mkdir()
        inner = {w: tar(train_image(w, n) for n in range(count)) for w, count in COUNTS.items()}
        self.put("train", tar((f"{wnid}.tar", content) for wnid, content in inner.items()))
        names = [f"ILSVRC2012_val_{n:08d}.JPEG" for n in range(1, 7)]
        # The order in the archive is not that of the numbers.
        self.put("val", tar((name, image(int(name[15:23]))) for name in reversed(names)))
        self.put("devkit", kit())

    def path(self, which: str):
        return self.source / self.known["archives"][which]["name"]

    def put(self, which: str, content: bytes) -> None:
        self.path(which).write_bytes(content)
        self.known["archives"][which] = published(self.path(which).name, content)

    def prepare(self, out, say=quiet, **options):
        return self.script.prepare(self.source, out, **{"known": self.known, "say": say} | options)

    @staticmethod
    def expected() -> dict[str, bytes]:
        """Return the expected image files, built without the script from COUNTS and TRUTH."""
        files = {}
        for wnid, count in COUNTS.items():
            for n in range(count):
                name, content = train_image(wnid, n)
                files[f"train/{wnid}/{name}"] = content
        for n, label in enumerate(TRUTH, 1):
            name = f"ILSVRC2012_val_{n:08d}.JPEG"
            files[f"val/{WNIDS[label - 1]}/{name}"] = image(int(name[15:23]))
        return files


@pytest.fixture
def archives(tmp_path):
    return ImageNet(tmp_path / "archives")


def test_the_official_numbers_and_checksums_are_the_published_ones():
    known = load("imagenet").ILSVRC2012
    assert known["classes"] == 1000
    assert known["images"] == {"train": 1_281_167, "val": 50_000}
    assert known["per_class"] == {"train": [732, 1300], "val": [50, 50]}
    md5 = {name: archive["sums"]["md5"] for name, archive in known["archives"].items()}
    assert md5 == {
        "train": "1d675b47d978889d74fa0da5fadfb00e",
        "val": "29b22e2961454d5413ddabcf34fc5622",
        "devkit": "fa75699e90414af021442c21a62c3abf",
    }


def test_every_image_lands_in_its_class_unchanged_and_is_counted(archives, tmp_path):
    lines = []
    out = archives.prepare(tmp_path / "out", say=lines.append)
    assert tree(out) == archives.expected()
    assert lines[-2:] == [
        f"  {out / 'train'}  9 images in 3 classes",
        f"  {out / 'val'}  6 images in 3 classes",
    ]
    assert "  train/n00000001  3 images (1 of 3)" in lines
    archives.path("train").unlink()
    archives.prepare(out, say=lines.append)  # a second call needs no archives
    assert "already, complete" in lines[-3]


def test_the_folders_may_have_other_names(archives, tmp_path):
    out = archives.prepare(tmp_path / "out", folders=("ilsvrc", "ilsvrc_eval"))
    assert tree(out) == {
        name.replace("train/", "ilsvrc/", 1).replace("val/n", "ilsvrc_eval/n", 1): content
        for name, content in archives.expected().items()
    }


def test_a_part_needs_its_own_archives_alone_and_the_rest_follows(archives, tmp_path):
    whole, labels = archives.expected(), tmp_path / "labels.txt"
    labels.write_text("".join(f"{WNIDS[label - 1]}\n" for label in TRUTH))
    for which in ("val", "devkit"):
        archives.path(which).rename(tmp_path / which)
    out = archives.prepare(tmp_path / "out", only="train", first=2)
    first = ("train/n00000001/", "train/n00000002/")
    assert tree(out) == {name: content for name, content in whole.items() if name.startswith(first)}
    (tmp_path / "val").rename(archives.path("val"))
    assert tree(archives.prepare(out, labels=labels)) == whole


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
