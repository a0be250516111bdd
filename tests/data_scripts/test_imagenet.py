"""The ImageNet script: official archives or none, whole classes or none."""

import io
import os

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


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("".join(f"{WNIDS[label - 1]}\n" for label in TRUTH))
    return path


def refused(archives, out, message, **options):
    with pytest.raises(InputError, match=message):
        archives.prepare(out, **options)
    assert not out.exists()


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


@pytest.mark.parametrize(
    ("needless", "options", "made"),
    [
        (("val", "devkit"), {"only": "train"}, "train/"),
        (("train",), {"only": "val"}, "val/"),
        (("devkit",), {"labels": True}, ""),
    ],
)
def test_archives_that_are_not_needed_may_be_absent(
    archives, tmp_path, labels, needless, options, made
):
    for which in needless:
        archives.path(which).unlink()
    options = {"labels": labels} if "labels" in options else options
    out = archives.prepare(tmp_path / "out", **options)
    assert tree(out) == {n: c for n, c in archives.expected().items() if n.startswith(made)}


@pytest.mark.parametrize(
    ("options", "wnids"),
    [
        ({"first": 2}, {"n00000001", "n00000002"}),
        ({"classes": "n00000003,n00000001"}, {"n00000003", "n00000001"}),
    ],
)
def test_a_subset_of_the_classes_and_then_the_rest(archives, tmp_path, options, wnids):
    out, whole = archives.prepare(tmp_path / "out", **options), archives.expected()
    assert tree(out) == {n: c for n, c in whole.items() if n.split("/")[1] in wnids}
    assert tree(archives.prepare(out)) == whole


def test_what_differs_is_refused_by_name(archives, tmp_path, labels):
    content = bytearray(archives.path("train").read_bytes())
    content[700] ^= 1
    archives.path("train").write_bytes(content)
    archives.path("val").write_bytes(b"x")
    labels.write_text("n00000001\n" * 6)
    for options, message in (
        ({"classes": "n1", "only": "train"}, "img_train.tar: SHA256 .*; expected"),
        ({"only": "val"}, "img_val.tar: 1 bytes; expected"),
        ({"first": 0}, "first: expected 1 to 3, the number of classes, .*got 0"),
        ({"first": 1, "classes": "n00000001"}, "not together with classes"),
        ({"folders": ("../x", "val")}, "expected two plain names"),
    ):
        refused(archives, tmp_path / "out", message, **options)
    archives = ImageNet(tmp_path / "whole")
    message = "unknown class 'n00000004'; expected one of: n00000001, n"
    refused(archives, tmp_path / "out", message, classes="n00000004")
    message = "labels.txt: 6 labels of 1 classes; expected 6 of 3"
    refused(archives, tmp_path / "out", message, labels=labels)


def test_the_command_hands_its_arguments_on(archives, tmp_path, monkeypatch, labels):
    defaults = archives.script.prepare.__kwdefaults__ | {"known": archives.known}
    monkeypatch.setattr(archives.script.prepare, "__kwdefaults__", defaults)
    arguments = "--only val --classes n00000001,n00000003 --folders a b".split()
    source = ["--source", str(archives.source), "--labels", str(labels)]
    assert archives.script.main([*arguments, *source, "--out", str(tmp_path / "out")]) == 0
    assert sorted(os.listdir(tmp_path / "out" / "b")) == ["n00000001", "n00000003"]
