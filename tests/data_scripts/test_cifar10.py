"""The CIFAR script: the official set or own images, class by class, nothing written outside."""

import io
import json
import os
import pickle
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from labkit.data.sources import cifar
from labkit.errors import InputError
from tests.support.data_archives import image, load, pack, ranges, served, tar, tree
from tests.support.data_worlds import Cifar, cifar_records


@pytest.fixture
def small(tmp_path):
    return Cifar(tmp_path / "source")


def assert_same_images(folder, expected):
    files = {name: c for name, c in tree(folder).items() if name != "manifest.json"}
    assert files and files.keys() == expected.keys()
    for name, content in files.items():
        image = Image.open(io.BytesIO(content))
        assert (image.format, image.mode) == ("PNG", "RGB")
        np.testing.assert_array_equal(np.asarray(image), expected[name], err_msg=name)
        assert len(content) <= cifar.MAX_PNG  # noise is the worst case for PNG


def refused(small, source, out, message):
    with pytest.raises(InputError, match=message) as caught:
        small.prepare(out, source)
    assert not out.exists() and ".part-" not in str(caught.value)


def test_the_official_numbers_and_checksums_are_the_published_ones():
    sets = load("cifar10").DATASETS
    assert sets["cifar10"].archive.sums["md5"] == "c32a1d4ab5d03f1284b67883e8d87530"
    assert sets["cifar100"].archive.sums["md5"] == "03b5dce01913d631647c71ecec9e9cb8"
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        known = sets[name]
        # Image folders number their classes in this order.
        assert list(known.classes) == sorted(set(known.classes))
        assert len(known.classes) == classes
        assert known.per_class("train") == 50_000 // classes
        assert known.per_class("val") == 10_000 // classes


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_every_pixel_lands_in_its_class(tmp_path, dataset):
    small, lines = Cifar(tmp_path / "source", dataset), []
    out = small.prepare(tmp_path / "out", small.source.parent, lines.append)
    assert_same_images(out, small.pixels)
    train, val = (sum(name.startswith(split) for name in small.pixels) for split in small.records)
    number = len(small.classes)
    assert lines[-2:] == [
        f"  {out / 'train'}  {train} images in {number} classes",
        f"  {out / 'val'}  {val} images in {number} classes",
    ]
    assert not any("warning" in line for line in lines)


def test_data_sets_are_not_mixed(small, tmp_path):
    """data/test_classfolders.py tests other data that are not mixed."""
    hundred = Cifar(tmp_path / "other", "cifar100")
    message = "no CIFAR-10: this is CIFAR-100, --dataset cifar100"
    refused(small, hundred.source, tmp_path / "out", message)
    out = small.prepare(tmp_path / "out")
    for world, source in ((hundred, None), (small, small.own())):
        with pytest.raises(InputError, match="holds the official CIFAR-10; asked for is .*CIFAR"):
            world.prepare(out, source)
    assert_same_images(out, small.pixels)


def relabelled(small, old, new) -> bytes:
    content = bytearray(small.files["data_batch_1.bin"])
    content[list(content[::3073]).index(old) * 3073] = new
    return bytes(content)


TEST, TRAIN, NAMES = "test_batch.bin", "data_batch_1.bin", "batches.meta.txt"
BAD_ARCHIVES = {
    "no batch": (TEST, lambda s: None, "holds no test_batch.bin"),
    "no names": (NAMES, lambda s: None, "holds no batches.meta.txt"),
    "other names": (NAMES, lambda s: b"cat\ndog\ncow", "names other classes"),
    "short": (TEST, lambda s: s.files[TEST][:-1], "test_batch.bin: 18437 bytes; expected 18438"),
    "long": (TEST, lambda s: s.files[TEST] + b"x", "18439 bytes; expected at most 18438"),
    "a record less": (TEST, lambda s: s.files[TEST][3073:], "15365 bytes; expected 18438"),
    "label": (
        TRAIN,
        lambda s: relabelled(s, 1, 3),
        r"batch_1.bin: label 3 at record \d+; expected 0 to 2",
    ),
    "missing class": (
        TEST,
        lambda s: cifar_records(1, [0, 1, 0, 1, 0, 1], 0)[0],
        "3 images of cat in val; expected 2",
    ),
    "uneven": (TRAIN, lambda s: relabelled(s, 1, 2), "19 images of dog in train; expected 20"),
}


@pytest.mark.parametrize("fault", BAD_ARCHIVES)
def test_an_archive_that_holds_other_things_is_refused(small, tmp_path, fault):
    name, content, message = BAD_ARCHIVES[fault]
    files = small.files | {name: content(small)}
    small.be_official(small.packed({n: c for n, c in files.items() if c is not None}))
    refused(small, None, tmp_path / "out", message)


def test_the_python_version_is_refused_and_not_unpickled(small, tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "evil"), "w")

    ten = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch", "batches.meta"]
    for names in (ten, ["meta", "test", "train"]):
        source = tmp_path / "python.tar.gz"
        source.write_bytes(tar(((f"cifar-py/{n}", pickle.dumps(Evil())) for n in names), "w:gz"))
        message = "Python version, a pickle, which can execute any code; expected cifar-10-binary"
        refused(small, source, tmp_path / "out", message)
    assert not (tmp_path / "evil").exists()


# ---- own images and records


@pytest.mark.parametrize(
    ("kind", "above"), [("tar.gz", ""), ("tar", "my/images/"), ("zip", "./"), ("folder", "my/")]
)
def test_own_images_are_taken_as_they_are_and_said(small, tmp_path, kind, above):
    members = small.own_members(each=5)
    members = [members[place] for place in np.random.default_rng(0).permutation(len(members))]
    placed = [(above + name, content) for name, content in members]
    source = tmp_path / f"mine.{kind}"
    pack(kind, source, placed)
    lines = []
    files = tree(small.prepare(tmp_path / "out", source, lines.append))
    assert not json.loads(files.pop("manifest.json"))["official"]
    assert files == dict(members)
    assert f"warning: {source} is not the official CIFAR-10 (cifar-10-binary.tar.gz)" in lines[0]


def test_a_folder_of_unpacked_records_is_taken_and_said(small, tmp_path):
    folder, lines = tmp_path / "batches", []
    folder.mkdir()
    for name, content in small.files.items():
        (folder / name).write_bytes(content)
    assert_same_images(small.prepare(tmp_path / "out", folder, lines.append), small.pixels)
    assert "is not the official CIFAR-10" in lines[0]
    (folder / "copy").mkdir()
    (folder / "copy" / "data_batch_1.bin").write_bytes(small.files["data_batch_1.bin"])
    refused(small, folder, tmp_path / "new", "holds data_batch_1.bin more than once")


def test_other_images_of_ones_own_are_a_conflict(small, tmp_path):
    out = small.prepare(tmp_path / "out", small.own())
    whole = tree(out)
    with pytest.raises(InputError, match="train/cat holds other images .2; expected 3 from"):
        small.prepare(out, small.own(each=3, name="more.tar.gz"))
    with pytest.raises(InputError, match="holds images of CIFAR-10 from elsewhere; asked for is"):
        small.prepare(out)
    assert tree(out) == whole


def bomb() -> bytes:
    """Return a PNG whose header states 50 000 x 50 000 pixels."""
    header = bytearray(image(1, format="PNG"))
    header[16:24] = (50_000).to_bytes(4, "big") * 2
    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    return bytes(header)


BAD_IMAGES = {
    "leaves the folder": (("../train/cat/9.jpg", image(1)), r"'\.\./train/cat/9.jpg' leaves"),
    "too big": (("train/cat/9.jpg", image(1) + bytes(1 << 16)), "9.jpg: .* at most 65536"),
    "no image": (("train/cat/readme.txt", b"hello"), "'train/cat/readme.txt' is not a whole JPEG"),
    "another kind": (("train/cat/9.gif", image(1, format="GIF")), "is not a whole JPEG or PNG"),
    "a billion pixels": (("train/cat/9.png", bomb()), "is not a whole .* decompression bomb"),
    "grey": (("train/cat/9.jpg", image(1, mode="L")), "is 32 x 32 L; expected 32 x 32 RGB"),
    "other size": (("train/cat/9.jpg", image(1, (32, 31))), "9.jpg' is 32 x 31 RGB; expected"),
    **{
        f"{format} cut to {keep}": (
            ("train/cat/9", image(1, format=format)[:keep]),
            "9' is not a whole JPEG or PNG",
        )
        for format in ("PNG", "JPEG")
        for keep in (0, 10, 700, -40)
    },
    "unknown class": (("train/cats/9.jpg", image(1)), "'train/cats/9.jpg'; .* Did you mean 'cat'"),
    "third split": (("test/cat/9.jpg", image(1)), "'test/cat/9.jpg'; expected train/CLASS/IMAGE"),
    "beside": (("README", b"x"), "member 'README'; expected train/CLASS/IMAGE"),
    "two roots": (("more/train/cat/9.jpg", image(1)), "'more/train/cat/9.jpg'; expected"),
    "hidden": (("train/cat/._9.jpg", image(1)), "'._9.jpg' is not a valid image name"),
}


@pytest.mark.parametrize("fault", BAD_IMAGES)
def test_a_hostile_archive_of_images_is_refused(small, tmp_path, fault):
    member, message = BAD_IMAGES[fault]
    source = small.own([*small.own_members(), member])
    refused(small, source, tmp_path / "deep" / "out", message)
    assert not (tmp_path / "deep").exists()


def test_what_cannot_be_a_source_is_refused(small, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("x")
    out = tmp_path / "out"
    refused(small, tmp_path / "empty", out, "holds no CIFAR-10: expected train/CLASS")
    refused(small, tmp_path / "text", out, "is not a whole archive")
    refused(small, tmp_path / "absent", out, "absent is not there; expected download")
    members = [(n, c) for n, c in small.own_members() if not n.startswith("val/dog")]
    refused(small, small.own(members), out, "holds no images of val/dog")
    monkeypatch.setattr(cifar, "MAX_OWN", 1000)
    refused(small, small.own(), out, "bytes of images; expected at most 1000")


# ---- download


@pytest.fixture
def server(small):
    with served({small.source.name: small.content, "renamed.tar.gz": small.content}) as server:
        small.be_official(small.content, address=f"{server.address}/")
        yield server


@pytest.mark.parametrize("source", ["download", "/", "/renamed.tar.gz"])
def test_the_official_archive_is_downloaded(small, server, tmp_path, source):
    source = server.address + source if source[0] == "/" else source
    server.cuts = [10_000]  # the same call continues where it broke off
    assert_same_images(small.prepare(tmp_path / "out", source), small.pixels)
    assert ranges(server) == [None, "bytes=10000-"]


def test_the_room_for_the_download_is_counted(small, server, tmp_path, monkeypatch):
    enough = len(small.pixels) * (3200 + 2048)
    room = SimpleNamespace(f_bavail=enough, f_frsize=1, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    refused(small, "download", tmp_path / "out", "Make room")
    assert server.asked == []
    # Files that are already downloaded are not counted again.
    downloads = tmp_path / "here" / ".download"
    downloads.mkdir(parents=True)
    (downloads / small.source.name).write_bytes(small.content)
    small.prepare(tmp_path / "here", "download")
    small.prepare(tmp_path / "out")
