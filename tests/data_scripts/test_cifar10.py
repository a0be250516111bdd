"""The CIFAR script: the official set or images of one's own, class by class, nothing outside."""

import dataclasses
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from labkit.data.sources.staging import PREFIX
from labkit.errors import InputError
from tests.data_scripts.archives import SCRIPTS, image, load, published, serve, special, tar, tree

JPEG = Path(
    os.environ.get("LABKIT_CIFAR10_JPEG")
    or SCRIPTS.parents[1] / "shared" / "data" / "cifar10" / "cifar10_jpeg_12k.tar.gz"
)
RECORDS = {"train": 12, "val": 6}
CLASSES = {"cifar10": ("cat", "dog", "ship"), "cifar100": ("apple", "bed", "wolf", "worm")}


def records(label_bytes, labels, seed) -> tuple[bytes, np.ndarray]:
    """Return the content of a .bin file and its images (n, 32, 32, 3)."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8)
    content = b"".join(
        bytes([7] * (label_bytes - 1) + [label]) + pixels.tobytes()
        for label, pixels in zip(labels, images, strict=True)
    )
    return content, images.transpose(0, 2, 3, 1)


class Small:
    """The script, for which a small archive is the official one."""

    def __init__(self, dataset="cifar10"):
        self.dataset, self.script = dataset, load("cifar10")
        self.real = self.script.DATASETS[dataset]
        self.classes = CLASSES[dataset]
        self.files, self.pixels = {}, {}
        for split, names in self.real.files.items():
            for name in names:
                count = RECORDS[split] if dataset == "cifar10" else RECORDS[split] * 2
                labels = np.random.default_rng(len(self.files)).permutation(
                    np.arange(count) % len(self.classes)
                )
                content, images = records(self.real.label_bytes, labels, len(self.files))
                self.files[name] = content
                for index, label in enumerate(labels):
                    place = f"{split}/{self.classes[label]}/{Path(name).stem}_{index:05d}.png"
                    self.pixels[place] = images[index]
        self.records = {
            split: count * (1 + (dataset != "cifar10")) for split, count in RECORDS.items()
        }
        self.files[self.real.names] = ("\n".join(self.classes) + "\n\n").encode()
        self.be_official(self.packed())

    def packed(self, files=None) -> bytes:
        files = self.files if files is None else files
        return tar(((f"cifar-batches-bin/{name}", c) for name, c in files.items()), "w:gz")

    def be_official(self, content):
        self.content = content
        archive = published(self.real.archive.name, content)
        self.known = dataclasses.replace(
            self.real, archive=archive, records=self.records, classes=self.classes
        )
        self.script.DATASETS[self.dataset] = self.known

    def put(self, folder, content=None) -> Path:
        path = folder / self.known.archive.name
        path.write_bytes(self.content if content is None else content)
        return path

    def prepare(self, source, out, say=lambda line: None):
        return self.script.prepare(self.dataset, source, out, say)


@pytest.fixture
def small():
    return Small()


def decoded(folder) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(Image.open(io.BytesIO(content)))
        for name, content in tree(folder).items()
        if name != "manifest.json"
    }


def assert_same_images(found, expected):
    assert found and found.keys() == expected.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def refused(small, source, out, message) -> str:
    before = tree(out.parent)
    with pytest.raises(InputError, match=message) as caught:
        small.prepare(source, out)
    assert tree(out.parent) == before and not (out / "train").exists()
    assert PREFIX not in str(caught.value)
    return str(caught.value)


# ---- the official archive


def test_the_official_numbers_and_checksums_are_the_published_ones():
    sets = load("cifar10").DATASETS
    assert sets["cifar10"].archive.sums["md5"] == "c32a1d4ab5d03f1284b67883e8d87530"
    assert sets["cifar100"].archive.sums["md5"] == "03b5dce01913d631647c71ecec9e9cb8"
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        known = sets[name]
        assert len(known.classes) == len(set(known.classes)) == classes
        # Image folders number their classes in this order.
        assert list(known.classes) == sorted(known.classes)
        assert known.per_class("train") == 50_000 // classes
        assert known.per_class("val") == 10_000 // classes


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_every_pixel_lands_in_its_class(tmp_path, dataset):
    small = Small(dataset)
    lines = []
    out = small.prepare(small.put(tmp_path), tmp_path / "out", lines.append)
    assert_same_images(decoded(out), small.pixels)
    train, val = (sum(name.startswith(split) for name in small.pixels) for split in RECORDS)
    number = len(small.classes)
    assert lines[-2:] == [
        f"  {out / 'train'}  {train} images in {number} classes",
        f"  {out / 'val'}  {val} images in {number} classes",
    ]
    assert not any("warning" in line for line in lines)


def test_the_folder_of_the_archive_is_taken_too(small, tmp_path):
    out = small.prepare(small.put(tmp_path).parent, tmp_path / "out")
    assert_same_images(decoded(out), small.pixels)
    assert json.loads((out / "manifest.json").read_text())["official"]


def test_one_data_set_is_not_taken_for_the_other(small, tmp_path):
    source = Small("cifar100").put(tmp_path)
    refused(small, source, tmp_path / "out", "no CIFAR-10: this is CIFAR-100, --dataset cifar100")


def test_a_second_call_verifies_and_writes_nothing(small, tmp_path):
    out = small.prepare(small.put(tmp_path), tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))}
    lines = []
    small.prepare("download", out, lines.append)
    assert "already, verified" in lines[0]
    assert {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))} == before


@pytest.mark.parametrize("damage", ["one bit", "missing", "class missing"])
def test_what_is_damaged_is_made_again(small, tmp_path, damage):
    archive = small.put(tmp_path)
    out = small.prepare(archive, tmp_path / "out")
    one = next((out / "train" / "dog").iterdir())
    if damage == "one bit":
        content = bytearray(one.read_bytes())
        content[-20] ^= 1
        one.write_bytes(content)
    elif damage == "missing":
        one.unlink()
    else:
        shutil.rmtree(one.parent)
    lines = []
    small.prepare(archive, out, lines.append)
    assert_same_images(decoded(out), small.pixels)
    said = [line for line in lines if "replacing a damaged class" in line]
    assert said == [f"replacing a damaged class: {out / 'train/dog'}"] * (damage[:5] != "class")


@pytest.mark.parametrize("fault", ["other bit", "cut short"])
def test_another_checksum_is_refused(small, tmp_path, fault):
    content = bytearray(small.content)
    content[4] ^= 1  # the time in the gzip header: the content stays whole
    source = small.put(tmp_path, bytes(content) if fault == "other bit" else small.content[:-9])
    message = "SHA256 .*; expected" if fault == "other bit" else "the archive is cut short"
    refused(small, source, tmp_path / "out", message)


def other(small, **files) -> bytes:
    """Return the archive with other files; None: without it."""
    files = {name.replace("__", "."): content for name, content in files.items()}
    merged = small.files | files
    return small.packed({name: c for name, c in merged.items() if c is not None})


def relabelled(small, old, new) -> bytes:
    content = bytearray(small.files["data_batch_1.bin"])
    for place in range(0, len(content), 3073):
        if content[place] == old:
            content[place] = new
            return bytes(content)
    raise AssertionError


BAD_ARCHIVES = {
    "no batch 3": (lambda s: other(s, data_batch_3__bin=None), "holds no data_batch_3.bin"),
    "no names": (lambda s: other(s, batches__meta__txt=None), "holds no batches.meta.txt"),
    "other names": (lambda s: other(s, batches__meta__txt=b"cat\ndog\ncow"), "names other classes"),
    "short": (
        lambda s: other(s, test_batch__bin=s.files["test_batch.bin"][:-1]),
        "test_batch.bin: 18437 bytes; expected 18438",
    ),
    "long": (
        lambda s: other(s, test_batch__bin=s.files["test_batch.bin"] + b"x"),
        "test_batch.bin: 18439 bytes; expected at most 18438",
    ),
    "label": (
        lambda s: other(s, data_batch_1__bin=relabelled(s, 1, 3)),
        "data_batch_1.bin: label 3 at record .*; expected 0 to 2",
    ),
    "missing class": (
        lambda s: other(s, test_batch__bin=records(1, [0, 1, 0, 1, 0, 1], 0)[0]),
        "3 images of cat in val; expected 2",
    ),
    "uneven": (
        lambda s: other(s, data_batch_1__bin=relabelled(s, 1, 2)),
        "19 images of dog in train; expected 20",
    ),
}


@pytest.mark.parametrize("fault", BAD_ARCHIVES)
def test_an_archive_that_holds_other_things_is_refused(small, tmp_path, fault):
    make, message = BAD_ARCHIVES[fault]
    small.be_official(make(small))
    refused(small, small.put(tmp_path), tmp_path / "out", message)


def test_the_python_version_is_refused_and_not_unpickled(small, tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "evil"), "w")

    names = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch", "batches.meta"]
    content = tar(((f"cifar-10-batches-py/{n}", pickle.dumps(Evil())) for n in names), "w:gz")
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(content)
    refused(
        small, tmp_path / "cifar-10-python.tar.gz", tmp_path / "out",
        "Python version, a pickle, which can execute any code; expected cifar-10-binary.tar.gz",
    )  # fmt: skip
    assert not (tmp_path / "evil").exists()
    content = tar(((f"cifar-100-python/{n}", b"x") for n in ("meta", "test", "train")), "w:gz")
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(content)
    refused(small, tmp_path / "cifar-100-python.tar.gz", tmp_path / "out", "Python version")


def test_other_data_is_never_touched(small, tmp_path):
    (tmp_path / "out" / "val" / "cat").mkdir(parents=True)
    (tmp_path / "out" / "val" / "cat" / "mine.png").write_bytes(b"mine")
    refused(small, small.put(tmp_path), tmp_path / "out", "val/cat holds other data")


def test_cifar10_and_cifar100_are_not_mixed(small, tmp_path):
    out = small.prepare(small.put(tmp_path), tmp_path / "out")
    hundred = Small("cifar100")
    with pytest.raises(InputError, match="holds the official CIFAR-10; asked for is .*CIFAR-100"):
        hundred.prepare(hundred.put(tmp_path), out)
    assert_same_images(decoded(out), small.pixels)


def test_a_disk_too_small_is_refused(small, tmp_path, monkeypatch):
    room = SimpleNamespace(f_bavail=1, f_frsize=4096, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    refused(small, small.put(tmp_path), tmp_path / "out", "Make room")
    refused(small, own(tmp_path), tmp_path / "out", "Make room")


# ---- killed in the middle

KILLED = """
import dataclasses, os, pickle, signal, sys
sys.path.insert(0, sys.argv[1])
import cifar10
from pathlib import Path
known, source, out, point, count = pickle.load(open(sys.argv[2], "rb"))
cifar10.DATASETS["cifar10"] = dataclasses.replace(cifar10.DATASETS["cifar10"], **known)
calls, place = [], Path if point == "write_bytes" else os
def counted(*arguments, real=getattr(place, point)):
    calls.append(1)
    if len(calls) == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
setattr(place, point, counted)
cifar10.prepare("cifar10", source, out)
"""


@pytest.mark.parametrize(
    ("point", "count", "complete"),
    [("write_bytes", 5, 0), ("write_bytes", 45, 2), ("rename", 1, 0), ("rename", 6, 5),
     ("replace", 2, 1)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["official", "own"])
def test_killed_at_any_moment_leaves_whole_classes(
    small, tmp_path, root, point, count, complete, kind
):
    source = small.put(tmp_path) if kind == "official" else own(tmp_path, each=20)
    whole = tree(small.prepare(source, tmp_path / "whole"))
    out = tmp_path / "out"
    known = {"archive": small.known.archive, "records": RECORDS, "classes": small.classes}
    (tmp_path / "job").write_bytes(pickle.dumps((known, source, out, point, count)))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(SCRIPTS), str(tmp_path / "job")],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = {name: content for name, content in tree(out).items() if name != "manifest.json"}
    assert left.items() <= whole.items()
    # Images of one's own are all checked before the first class appears.
    complete = 0 if kind == "own" and point == "write_bytes" else complete
    assert len({name.rpartition("/")[0] for name in left}) == complete
    for name in {name.rpartition("/")[0] for name in left}:
        assert {n for n in left if n.startswith(name)} == {n for n in whole if n.startswith(name)}
    assert list(out.glob(f"{PREFIX}*")), "the kill came before anything was written"
    small.prepare(source, out)
    assert tree(out) == whole and not list(out.glob(f"{PREFIX}*"))


# ---- images and records of one's own


def own_members(each=2, classes=CLASSES["cifar10"]):
    return [
        (f"{split}/{name}/{number}.jpg", image([len(split), index, number]))
        for split in ("train", "val")
        for index, name in enumerate(classes)
        for number in range(each)
    ]


def own(folder, members=None, each=2) -> Path:
    path = folder / "mine.tar.gz"
    path.write_bytes(tar(own_members(each) if members is None else members, "w:gz"))
    return path


def make_zip(path, members) -> Path:
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in members:
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("kind", ["tar.gz", "tar", "zip", "folder"])
@pytest.mark.parametrize("above", ["", "./", "my/images/"])
def test_own_images_are_taken_as_they_are_and_said(small, tmp_path, kind, above):
    members = [(above + name, content) for name, content in own_members()]
    source = tmp_path / f"mine.{kind}"
    if kind == "zip":
        make_zip(source, members)
    elif kind == "folder":
        for name, content in members:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(content)
    else:
        source.write_bytes(tar(members, "w:gz" if kind == "tar.gz" else "w"))
    lines = []
    out = small.prepare(source, tmp_path / "out", lines.append)
    found = tree(out)
    assert not json.loads(found.pop("manifest.json"))["official"]
    assert found == dict(own_members())
    assert f"warning: {source} is not the official CIFAR-10 (cifar-10-binary.tar.gz)" in lines[0]


def test_classes_in_any_order_are_sorted_out(small, tmp_path):
    members = own_members(each=5)
    members = [members[place] for place in np.random.default_rng(0).permutation(len(members))]
    found = tree(small.prepare(own(tmp_path, members), tmp_path / "out"))
    found.pop("manifest.json")
    assert found == dict(members)


def test_a_folder_of_unpacked_records_is_taken_and_said(small, tmp_path):
    folder = tmp_path / "batches"
    folder.mkdir()
    for name, content in small.files.items():
        (folder / name).write_bytes(content)
    lines = []
    out = small.prepare(folder, tmp_path / "out", lines.append)
    assert_same_images(decoded(out), small.pixels)
    assert "is not the official CIFAR-10" in lines[0]


def test_the_same_own_images_twice_are_no_conflict_others_are(small, tmp_path):
    source = own(tmp_path)
    out = small.prepare(source, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    small.prepare(source, out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before
    next((out / "val" / "dog").iterdir()).unlink()
    small.prepare(source, out)
    whole = tree(out)
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="train/cat holds other images .2; expected 3 from"):
        small.prepare(own(tmp_path / "b", each=3), out)
    with pytest.raises(InputError, match="holds images of CIFAR-10 from elsewhere; asked for is"):
        small.prepare(small.put(tmp_path), out)
    assert tree(out) == whole


FIRST = "train/cat/0.jpg"
BAD_IMAGES = {
    "leaves the folder": (("../train/cat/9.jpg", image(1)), r"'\.\./train/cat/9.jpg' leaves"),
    "leaves further": (("train/cat/../../../9.jpg", image(1)), "leaves the folder"),
    "absolute": (("/train/cat/9.jpg", image(1)), "'/train/cat/9.jpg' leaves the folder"),
    "symbolic link": (special("train/cat/9.jpg", tarfile.SYMTYPE, "/etc/passwd"), "is a link"),
    "hard link": (special("train/cat/9.jpg", tarfile.LNKTYPE, FIRST), "is a link or a device"),
    "device": (special("train/cat/9.jpg", tarfile.CHRTYPE), "'train/cat/9.jpg' is a link or a dev"),
    "pipe": (special("train/cat/9.jpg", tarfile.FIFOTYPE), "is a link or a device"),
    "twice": ((FIRST, image(1)), f"'{FIRST}' is there more than once"),
    "newline": (("train/cat/9\n.jpg", image(1)), r"'train/cat/9\\n.jpg' has no usable name"),
    "too big": (("train/cat/9.jpg", image(1) + bytes(1 << 16)), "9.jpg: .* at most 65536"),
    "no image": (("train/cat/readme.txt", b"hello"), "'train/cat/readme.txt' is no whole JPEG"),
    "cut image": (("train/cat/9.jpg", image(1)[:-300]), "'train/cat/9.jpg' is no whole JPEG"),
    "other size": (("train/cat/9.jpg", image(1, (32, 31))), "9.jpg' is 32 x 31 RGB; expected"),
    "grey": (("train/cat/9.jpg", image(1, mode="L")), "9.jpg' is 32 x 32 L; expected"),
    "unknown class": (("train/cats/9.jpg", image(1)), "'train/cats/9.jpg'; .* Did you mean 'cat'"),
    "third split": (("test/cat/9.jpg", image(1)), "'test/cat/9.jpg'; expected train/CLASS/IMAGE"),
    "beside": (("README", b"x"), "member 'README'; expected train/CLASS/IMAGE"),
    "too deep": (("train/cat/x/9.jpg", image(1)), "'train/cat/x/9.jpg'; expected"),
    "two roots": (("more/train/cat/9.jpg", image(1)), "'more/train/cat/9.jpg'; expected"),
    "hidden": (("train/cat/._9.jpg", image(1)), "'._9.jpg' is no name for an image"),
}


@pytest.mark.parametrize("fault", BAD_IMAGES)
def test_a_hostile_archive_of_images_is_refused(small, tmp_path, fault):
    member, message = BAD_IMAGES[fault]
    source = own(tmp_path, [*own_members(), member])
    refused(small, source, tmp_path / "deep" / "out", message)
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize("keep", [0.2, 0.6, 0.99])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_cut_short_is_refused(small, tmp_path, mode, keep):
    content = tar(own_members(), mode)
    if mode == "w":
        content = content.rstrip(b"\0")
    (tmp_path / "mine").write_bytes(content[: int(keep * len(content))])
    refused(small, tmp_path / "mine", tmp_path / "out", "cut short|not a whole archive")


def test_a_missing_class_is_named(small, tmp_path):
    members = [(n, c) for n, c in own_members() if not n.startswith("val/dog")]
    refused(small, own(tmp_path, members), tmp_path / "out", "holds no images of val/dog")


def test_more_images_than_memory_should_hold_are_refused(small, tmp_path, monkeypatch):
    monkeypatch.setattr(small.script, "MAX_OWN", 1000)
    refused(small, own(tmp_path), tmp_path / "out", "bytes of images; expected at most 1000")


def test_what_is_neither_is_refused(small, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(small, tmp_path / "empty", tmp_path / "out", "holds no CIFAR-10: expected train/CLASS")
    (tmp_path / "text").write_text("x")
    refused(small, tmp_path / "text", tmp_path / "out", "is not a whole archive")
    refused(small, tmp_path / "absent", tmp_path / "out", "absent is not there; expected download")


@pytest.mark.skipif(not JPEG.is_file(), reason="no LABKIT_CIFAR10_JPEG and no ../shared/data")
def test_the_real_jpegs_are_taken(tmp_path):
    script, lines = load("cifar10"), []
    out = script.prepare("cifar10", JPEG, tmp_path / "out", lines.append)
    assert lines[-2:] == [
        f"  {out / 'train'}  10000 images in 10 classes",
        f"  {out / 'val'}  2000 images in 10 classes",
    ]
    assert "is not the official CIFAR-10" in lines[0]
    with tarfile.open(JPEG) as archive:
        for info in archive:
            if info.isfile():
                assert (out / info.name).read_bytes() == archive.extractfile(info).read()
    assert len(tree(out)) == 12_001


# ---- download


@pytest.fixture
def server(small, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = serve({small.known.archive.name: small.content, "renamed.tar.gz": small.content})
    small.known = dataclasses.replace(small.known, address=f"{server.address}/")
    small.script.DATASETS["cifar10"] = small.known
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("source", [None, "download", "/", "/renamed.tar.gz"])
def test_the_official_archive_is_downloaded_and_removed(small, server, tmp_path, source):
    source = server.address + source if source and source[0] == "/" else source
    out = small.prepare(source, tmp_path / "out")
    assert_same_images(decoded(out), small.pixels)
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "train", "val"]
    small.prepare(source, out)
    assert len(server.asked) == 1


def test_a_download_that_broke_off_is_continued_by_the_next_call(
    small, server, tmp_path, monkeypatch
):
    monkeypatch.setattr(small.script, "ATTEMPTS", 1)
    server.cut = 10_000
    with pytest.raises(InputError, match="10000 bytes came; expected"):
        small.prepare(None, tmp_path / "out")
    out = small.prepare(None, tmp_path / "out")
    assert server.asked == [None, "bytes=10000-"]
    assert_same_images(decoded(out), small.pixels)


def test_a_download_that_broke_off_is_continued_by_the_same_call(small, server, tmp_path):
    server.cut = 10_000
    assert_same_images(decoded(small.prepare(None, tmp_path / "out")), small.pixels)
    assert server.asked == [None, "bytes=10000-"]


def test_the_room_for_the_download_is_counted(small, server, tmp_path, monkeypatch):
    images = len(small.pixels)
    enough = images * 3200 + images * 2048
    room = SimpleNamespace(f_bavail=enough, f_frsize=1, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    refused(small, None, tmp_path / "out", "Make room")
    assert server.asked == []
    small.prepare(small.put(tmp_path), tmp_path / "out")


def test_a_download_with_another_checksum_leaves_nothing(small, server, tmp_path):
    server.files[small.known.archive.name] = small.content[:-1] + b"x"
    refused(small, None, tmp_path / "out", "SHA256 .*; expected .* It is removed")
    assert not (tmp_path / "out").exists()


def test_no_such_file_on_the_server_leaves_nothing(small, server, tmp_path):
    server.files.clear()
    refused(small, None, tmp_path / "out", "cannot be downloaded .*404")
    assert not (tmp_path / "out").exists()


# ---- the command


def test_the_command_prepares_and_ends_with_2_on_bad_input(small, tmp_path, capsys):
    source, out = str(own(tmp_path)), str(tmp_path / "out")
    assert small.script.main(["--source", source, "--out", out]) == 0
    assert "6 images in 3 classes" in capsys.readouterr().out
    for arguments, message in {
        ("--dataset", "cifar-10"): "unknown dataset 'cifar-10'.*Did you mean 'cifar10'?",
        ("--source", "downlod"): "Did you mean 'download'?",
        ("--source", str(tmp_path / "absent")): "absent is not there",
    }.items():
        assert small.script.main([*arguments, "--out", str(tmp_path / "new")]) == 2
        said = capsys.readouterr().err
        assert said.startswith("cifar10.py: ") and message.split(".*")[-1] in said
    assert not (tmp_path / "new").exists()


def test_the_script_runs_as_a_program(tmp_path):
    command = [sys.executable, str(SCRIPTS / "cifar10.py"), "--source", str(tmp_path / "absent")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=SCRIPTS.parent, timeout=60)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_the_default_folder_is_the_projects(small, tmp_path, monkeypatch):
    monkeypatch.setattr(small.script, "PROJECT", tmp_path / "project")
    assert small.prepare(own(tmp_path), None) == tmp_path / "project/datasets/CIFAR10"
