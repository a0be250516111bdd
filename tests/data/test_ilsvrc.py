"""The archives of ImageNet: classes by name, images by number, labels in the kit's own order."""

import io
import os
import sys

import pytest

from labkit.data.sources import ilsvrc
from labkit.data.sources.archives import Member
from labkit.errors import InputError
from tests.support.data_archives import TRUTH, WNIDS, image, kit, meta, tar

LABELS = ["n00000003", "n00000002", "n00000001", "n00000001", "n00000003", "n00000002"]


def member(name, content=b"") -> Member:
    return Member(name, lambda: io.BytesIO(content), len(content))


@pytest.fixture
def devkit(tmp_path):
    def store(content):
        (tmp_path / "kit.tar.gz").write_bytes(content)
        return tmp_path / "kit.tar.gz"

    return store


def test_the_kit_numbers_the_classes_in_its_own_order(devkit):
    assert ilsvrc.labels_of_devkit(devkit(kit()), 6, 3) == LABELS


BAD_KITS = {
    "label 0": (kit((0, *TRUTH[1:])), "'0' in line 1; expected 1 to 3"),
    "a group": (kit((*TRUTH[:-1], 4)), "'4' in line 6; expected 1 to 3"),
    "no number": (kit(("x", *TRUTH[1:])), "'x' in line 1"),
    "minus": (kit((-1, *TRUTH[1:])), "'-1' in line 1"),
    "too few": (kit(TRUTH[:-1]), "5 labels; expected 6"),
    "uneven": (kit((1, 1, 1, 2, 2, 3)), "3 classes, 3 images of n00000003; expected 3 .* with 2"),
    "no MATLAB": (kit(mat=b"no MATLAB file" * 20), "meta.mat cannot be read"),
    "empty": (kit(mat=b""), "meta.mat cannot be read"),
    "fewer classes": (kit(mat=meta(WNIDS[:2])), "meta.mat names 2 classes; expected 3"),
    "no wnid": (kit(mat=meta((*WNIDS[:2], "../x"))), "meta.mat names 3 classes; expected 3"),
    "one wnid twice": (kit(mat=meta((*WNIDS[:2], WNIDS[0]))), "meta.mat names 3 classes"),
    "no truth": (tar([("data/meta.mat", meta())], "w:gz"), "holds no ILSVRC2012_validation_ground"),
}


@pytest.mark.parametrize("fault", BAD_KITS)
def test_a_kit_that_does_not_label_the_images_is_refused(devkit, fault):
    content, message = BAD_KITS[fault]
    with pytest.raises(InputError, match=f"kit.tar.gz.*{message}"):
        ilsvrc.labels_of_devkit(devkit(content), 6, 3)


def test_without_scipy_it_says_what_to_install(devkit, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(InputError, match="pip install scipy.*or give --labels"):
        ilsvrc.labels_of_devkit(devkit(kit()), 6, 3)


BAD_LABELS = {
    "missing": (None, "cannot be read"),
    "pipe": ("pipe", "cannot be read .*expected a regular file, got a pipe"),
    "too few": (b"n00000001\n" * 5, "5 labels; expected 6"),
    "no wnid": (b"cat\n" * 6, "'cat' for image 1; expected nXXXXXXXX"),
    "path": (b"n00000001/..\n" * 6, "'n00000001/..' for image 1"),
    "uneven": (b"n00000001\n" * 6, "1 classes, 6 images of n00000001; expected 3 classes with 2"),
    "binary": (b"\xff\xfe", "cannot be read"),
}


@pytest.mark.parametrize("fault", BAD_LABELS)
def test_labels_that_do_not_fit_are_refused(tmp_path, fault):
    content, message = BAD_LABELS[fault]
    if content == "pipe":
        os.mkfifo(tmp_path / "labels.txt")
    elif content is not None:
        (tmp_path / "labels.txt").write_bytes(content)
    with pytest.raises(InputError, match=f"labels.txt.*{message}"):
        ilsvrc.labels_of_text(tmp_path / "labels.txt", 6, 3)
    (tmp_path / "right.txt").write_text("\n".join(LABELS) + "\n")
    assert ilsvrc.labels_of_text(tmp_path / "right.txt", 6, 3) == LABELS


def test_classes_are_sorted():
    members = [member("n00000002.tar"), member("n00000001.tar")]
    classes = ilsvrc.train_classes(members, "x", 2)
    assert list(classes) == ["n00000001", "n00000002"] and classes["n00000002"] is members[0]


@pytest.mark.parametrize(
    "name", ["n00000001", "n0000001.tar", "x/n00000001.tar", "n００００0001.tar"]
)
def test_a_class_has_a_wordnet_id(name):
    with pytest.raises(InputError, match="x: member .*; expected nXXXXXXXX.tar"):
        ilsvrc.train_classes([member(name)], "x", 1)


def test_images_are_ordered_by_number():
    members = [member(f"ILSVRC2012_val_{n:08d}.JPEG") for n in (3, 1, 2)]
    assert ilsvrc.val_images(members, "x", 3) == [members[1], members[2], members[0]]
    with pytest.raises(InputError, match="x: member 'ILSVRC2012_val_00000000.JPEG'"):
        ilsvrc.val_images([member("ILSVRC2012_val_00000000.JPEG")], "x", 2)


@pytest.mark.parametrize(
    "name", ["_1.txt", "/1.JPEG", "_1.JPEG.exe", "_x.JPEG", "_.JPEG", "1_1.JPEG"]
)
def test_an_image_of_a_class_is_called_after_it(name):
    images = [(f"n00000001_{n}.JPEG", image(n)) for n in (5, 1)]
    assert list(ilsvrc.train_images(member("n00000001.tar", tar(images)))) == images
    content = tar([("n00000001" + name, image(1))])
    with pytest.raises(InputError, match="member 'n00000001.*'; expected n00000001_NUMBER.JPEG"):
        list(ilsvrc.train_images(member("n00000001.tar", content)))


@pytest.mark.parametrize("content", [b"", b"GIF89a", image(1)[1:], b"\xff\xd8"])
def test_what_does_not_begin_like_an_image_is_refused(content):
    with pytest.raises(InputError, match="member 'a.JPEG' is not a JPEG .it begins with"):
        ilsvrc.read_image(member("a.JPEG", content))
