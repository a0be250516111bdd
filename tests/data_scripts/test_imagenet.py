"""The ImageNet script: official archives or none, whole classes or none, and nothing outside."""

import dataclasses
import os
from types import SimpleNamespace

import pytest

from labkit.data.sources import ilsvrc
from labkit.errors import InputError
from tests.support.data_archives import TRUTH, WNIDS, image, kit, load, served, tar, tree
from tests.support.data_worlds import ImageNet


@pytest.fixture
def archives(tmp_path):
    return ImageNet(tmp_path / "archives")


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("".join(f"{WNIDS[label - 1]}\n" for label in TRUTH))
    return path


def images(out) -> dict[str, bytes]:
    return {name: content for name, content in tree(out).items() if name != "manifest.json"}


def refused(archives, out, message, **options) -> str:
    with pytest.raises(InputError, match=message) as caught:
        archives.prepare(out, **options)
    assert not out.exists() or images(out) == {}
    return str(caught.value)


# ---- what is made


def test_the_official_numbers_and_checksums_are_the_published_ones():
    known = load("imagenet").ILSVRC2012
    assert (known.classes, known.train_images, known.val_images) == (1000, 1_281_167, 50_000)
    assert known.train.sums["md5"] == "1d675b47d978889d74fa0da5fadfb00e"
    assert known.val.sums["md5"] == "29b22e2961454d5413ddabcf34fc5622"
    assert known.devkit.sums["md5"] == "fa75699e90414af021442c21a62c3abf"
    assert known.images("val") == (50, 50) and known.images("train") == (732, 1300)


def test_every_image_lands_in_its_class_unchanged_and_is_counted(archives, tmp_path):
    lines = []
    out = archives.prepare(tmp_path / "out", say=lines.append)
    assert images(out) == archives.expected()
    assert lines[-2:] == [
        f"  {out / 'train'}  9 images in 3 classes",
        f"  {out / 'val'}  6 images in 3 classes",
    ]
    assert "  train/n00000001  3 images (1 of 6)" in lines


def test_the_folders_may_have_other_names(archives, tmp_path):
    out = archives.prepare(tmp_path / "out", folders=("ilsvrc", "ilsvrc_eval"))
    assert images(out) == {
        name.replace("train/", "ilsvrc/", 1).replace("val/n", "ilsvrc_eval/n", 1): content
        for name, content in archives.expected().items()
    }


@pytest.mark.parametrize(
    ("needless", "options", "made"),
    [
        (("val", "devkit"), {"only": "train"}, "train/"),
        (("train",), {"only": "val"}, "val/"),
        (("devkit",), {"labels": "labels.txt"}, ""),
    ],
)
def test_only_what_is_needed_must_be_there(archives, labels, tmp_path, needless, options, made):
    for which in needless:
        archives.path(which).unlink()
    options = {name: labels if name == "labels" else value for name, value in options.items()}
    out = archives.prepare(tmp_path / "out", **options)
    assert images(out) == {n: c for n, c in archives.expected().items() if n.startswith(made)}


@pytest.mark.parametrize(
    ("options", "wnids"),
    [
        ({"first": 2}, {"n00000001", "n00000002"}),
        ({"classes": ["n00000003", "n00000001"]}, {"n00000003", "n00000001"}),
    ],
)
def test_a_subset_of_the_classes_and_then_the_rest(archives, tmp_path, options, wnids):
    out, whole = archives.prepare(tmp_path / "out", **options), archives.expected()
    assert images(out) == {n: c for n, c in whole.items() if n.split("/")[1] in wnids}
    lines = []
    archives.prepare(out, say=lines.append)
    assert images(out) == whole and any("verified before" in line for line in lines)


def test_an_archive_that_changed_is_verified_again(archives, tmp_path):
    out = archives.prepare(tmp_path / "out", first=1)
    known, content = archives.known, bytearray(archives.contents["train"])
    content[-5000] ^= 1
    archives.put("train", bytes(content))
    with pytest.raises(InputError, match="ILSVRC2012_img_train.tar: SHA256"):
        archives.prepare(out, known=known)
    members = [*archives.train_members()[1:], ("n00000009.tar", archives.inner("n00000009", 2))]
    archives.put("train", tar(members))
    with pytest.raises(InputError, match="archives and labels differ in their classes"):
        archives.prepare(out, only="train")


# ---- archives that are not what they should be


def test_sources_that_do_not_hold_what_is_needed(archives, tmp_path):
    with pytest.raises(InputError, match="needs an account .*img_train.tar, .*img_val.tar, .*kit"):
        archives.script.prepare(out=tmp_path / "out")
    with pytest.raises(InputError, match="download ILSVRC2012_img_train.tar there"):
        archives.script.prepare(out=tmp_path / "out", only="train")
    archives.path("val").unlink()
    refused(archives, tmp_path / "out", "holds no ILSVRC2012_img_val.tar; expected a folder with")


IMAGE = ("n00000001_0.JPEG", image(1))


def inner(*members):
    """Return a change that puts these members into the archive of the first class."""
    return lambda outer: [("n00000001.tar", tar(members)), *outer[1:]]


# Archive, change of its members, and message; data/test_members.py and data/test_ilsvrc.py test the
# names and types that no member may have.
HOSTILE = {
    "inner name": ("train", inner(("../x.JPEG", b"")), "n00000001.tar: .*leaves the folder"),
    "no image": ("train", inner((IMAGE[0], b"<html>")), "'n00000001_0.JPEG' is not a JPEG"),
    "too few": ("train", inner(IMAGE), "n00000001 has 1 images in train; expected 2 to 4"),
    "too many": (
        "train",
        inner(*((f"n00000001_{n}.JPEG", image(n)) for n in range(5))),
        "n00000001 has 5 images in train",
    ),
    "cut": (
        "train",
        lambda m: [(m[0][0], m[0][1][:1536]), *m[1:]],
        "n00000001.tar: the archive is cut short or damaged",
    ),
    "missing class": ("train", lambda m: m[1:], "holds 2 classes; expected 3"),
    "missing": ("val", lambda m: m[1:], "holds no ILSVRC2012_val_00000001.JPEG"),
    "one more": (
        "val",
        lambda m: [*m, ("ILSVRC2012_val_00000007.JPEG", image(1))],
        "'ILSVRC2012_val_00000007.JPEG'; expected .*00000001.JPEG to ILSVRC2012_val_00000006",
    ),
    # Image 3 belongs to the class that is made first.
    "no image in val": (
        "val",
        lambda m: [*m[:2], (m[2][0], b"x"), *m[3:]],
        "00000003.JPEG' is not a JPEG",
    ),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_archive_is_refused(archives, tmp_path, fault):
    split, damage, message = HOSTILE[fault]
    members = archives.train_members() if split == "train" else archives.val_members()
    archives.put(split, tar(damage(members)))
    said = refused(archives, tmp_path / "out", message, only=split)
    assert ".part-" not in said


def test_limits_and_totals_are_kept(archives, tmp_path, monkeypatch):
    known = dataclasses.replace(archives.known, train_images=10)
    with pytest.raises(InputError, match="9 training images; expected 10"):
        archives.prepare(tmp_path / "out", known=known)
    monkeypatch.setattr(ilsvrc, "MAX_IMAGE", 500)
    refused(archives, tmp_path / "new", r"n00000001_0.JPEG: \d+ bytes; expected at most 500")


def test_a_kit_or_labels_that_do_not_fit_are_refused(archives, tmp_path, labels):
    labels.write_text("n00000001\n" * 6)
    refused(archives, tmp_path / "out", "labels.txt: 1 classes, 6 images", labels=labels)
    archives.put("devkit", kit((4, *TRUTH[1:])))
    refused(archives, tmp_path / "new", "kit_t12.tar.gz: .*'4' in line 1; expected 1 to 3")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": "vall"}, "unknown split 'vall'.*Did you mean 'val'"),
        ({"classes": ["n00000004"]}, "unknown class 'n00000004'; expected one of 3, n00000001 to"),
        ({"classes": ["cat"]}, "classes: expected names nXXXXXXXX, .*got 'cat'"),
        ({"first": 0}, "first: expected 1 or more, and not together with classes, got 0"),
        ({"first": 4}, "first: expected at most 3, the number of classes, got 4"),
        ({"first": 1, "classes": ["n00000001"]}, "not together with classes"),
        ({"folders": ("../x", "val")}, "expected two plain names"),
        ({"folders": ("x", "x")}, "expected two plain names"),
        ({"folders": ("x", "y", "x")}, "expected two plain names"),
        ({"folders": ("manifest.json", "x")}, "expected two plain names"),
    ],
)
def test_arguments_that_cannot_be_met_are_refused(archives, tmp_path, options, message):
    refused(archives, tmp_path / "out", message, **options)


# ---- an address and the command


@pytest.fixture
def server(archives):
    with served({path.name: path.read_bytes() for path in archives.source.iterdir()}) as server:
        yield server


def test_a_download_that_is_not_official_is_refused(archives, server, tmp_path):
    name = archives.known.val.name
    server.files[name] = archives.contents["val"][:-1] + b"x"
    with pytest.raises(InputError, match="ILSVRC2012_img_val.tar: SHA256 .*expected"):
        archives.prepare(tmp_path / "out", source=server.address)
    assert len(server.asked) == 2 and not (tmp_path / "out" / "train").exists()
    server.files[name] = archives.contents["val"]
    archives.prepare(tmp_path / "out", source=server.address)
    assert len(server.asked) == 4  # val and the kit; train was here


def test_a_part_that_is_here_needs_no_room_again(archives, server, tmp_path, monkeypatch):
    """Received bytes already take up room, so the check before a download needs that much less."""
    contents, name = archives.contents, archives.known.train.name
    left = 2 * sum(map(len, contents.values())) - len(contents["train"]) + 3 * 2048
    room = SimpleNamespace(f_bavail=left, f_frsize=1, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    (tmp_path / "out" / ".download").mkdir(parents=True)
    refused(archives, tmp_path / "out", "Make room", source=server.address)
    assert server.asked == []
    (tmp_path / "out" / ".download" / f"{name}.part").write_bytes(contents["train"])
    assert images(archives.prepare(tmp_path / "out", source=server.address)) == archives.expected()


def test_the_command_hands_its_arguments_on(archives, tmp_path, monkeypatch, labels):
    defaults = archives.script.prepare.__kwdefaults__ | {"known": archives.known}
    monkeypatch.setattr(archives.script.prepare, "__kwdefaults__", defaults)
    arguments = "--only val --classes n00000001,n00000003 --folders a b".split()
    source = ["--source", str(archives.source), "--labels", str(labels)]
    assert archives.script.main([*arguments, *source, "--out", str(tmp_path / "out")]) == 0
    assert sorted(os.listdir(tmp_path / "out" / "b")) == ["n00000001", "n00000003"]
    assert archives.script.main([*source, "--first", "1", "--out", str(tmp_path / "1")]) == 0
    assert os.listdir(tmp_path / "1" / "train") == ["n00000001"]
