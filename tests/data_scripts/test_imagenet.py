"""The ImageNet script: official archives or none, whole classes or none, and nothing outside."""

import dataclasses
import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
from types import SimpleNamespace

import pytest

from labkit.data.sources import classfolders, ilsvrc
from labkit.data.sources.staging import PREFIX
from labkit.errors import InputError
from tests.data_scripts.archives import (
    SCRIPTS,
    TRUTH,
    WNIDS,
    image,
    kit,
    load,
    published,
    serve,
    special,
    tar,
    tree,
)

COUNTS = {"n00000001": 3, "n00000002": 2, "n00000003": 4}


def inner(wnid, count):
    return tar((f"{wnid}_{n}.JPEG", image(n * 7 + int(wnid[1:]))) for n in range(count))


def train_members():
    return [(f"{wnid}.tar", inner(wnid, count)) for wnid, count in COUNTS.items()]


def val_members():
    return [(f"ILSVRC2012_val_{n:08d}.JPEG", image(100 + n)) for n in range(1, 7)]


@pytest.fixture(scope="module")
def official():
    """The contents of the three archives, in miniature."""
    return {"train": tar(train_members()), "val": tar(val_members()), "devkit": kit()}


class Archives:
    """The script, and a folder of archives that it takes for the official ones."""

    def __init__(self, folder, contents):
        self.script, self.folder, self.contents = load("imagenet"), folder, dict(contents)
        folder.mkdir()
        for which in contents:
            self.put(which, contents[which])

    @property
    def known(self):
        real = self.script.ILSVRC2012
        numbers = {"classes": 3, "train_images": 9, "val_images": 6, "per_class": (2, 4)}
        described = {
            which: published(getattr(real, which).name, content)
            for which, content in self.contents.items()
        }
        return dataclasses.replace(real, **described, **numbers)

    def put(self, which, content):
        self.contents[which] = content
        (self.folder / getattr(self.script.ILSVRC2012, which).name).write_bytes(content)

    def prepare(self, out, source=None, **options):
        options = {"known": self.known, "say": lambda line: None} | options
        return self.script.prepare(self.folder if source is None else source, out, **options)


@pytest.fixture
def archives(tmp_path, official):
    return Archives(tmp_path / "archives", official)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, official):
    """The tree of all images: what every way must lead to."""
    folder = tmp_path_factory.mktemp("whole")
    return tree(Archives(folder / "archives", official).prepare(folder / "out"))


def images(files: dict) -> dict:
    return {name: content for name, content in files.items() if name != classfolders.MANIFEST}


def expected() -> dict:
    """Return the images without the script: by the names of the archives and the truth."""
    found = {}
    for wnid, count in COUNTS.items():
        for n in range(count):
            found[f"train/{wnid}/{wnid}_{n}.JPEG"] = image(n * 7 + int(wnid[1:]))
    for n, label in enumerate(TRUTH, 1):
        name = f"ILSVRC2012_val_{n:08d}.JPEG"
        found[f"val/{WNIDS[label - 1]}/{name}"] = image(100 + n)
    return found


def refused(archives, out, message, **options):
    """Check the error, and that nothing but the archives is anywhere."""

    def found():
        return {n: c for n, c in tree(out.parent).items() if not n.endswith("manifest.json")}

    before = found()
    with pytest.raises(InputError, match=message) as caught:
        archives.prepare(out, **options)
    assert found() == before
    return str(caught.value)


# ---- what is made


def test_the_official_numbers_and_checksums_are_the_published_ones():
    known = load("imagenet").ILSVRC2012
    assert (known.classes, known.train_images, known.val_images) == (1000, 1_281_167, 50_000)
    assert known.train.sums["md5"] == "1d675b47d978889d74fa0da5fadfb00e"
    assert known.val.sums["md5"] == "29b22e2961454d5413ddabcf34fc5622"
    assert known.devkit.sums["md5"] == "fa75699e90414af021442c21a62c3abf"
    assert known.images("val") == (50, 50) and known.images("train") == (732, 1300)


def test_every_image_lands_in_its_class_unchanged(whole):
    assert images(whole) == expected()


def test_the_report_counts(archives, tmp_path):
    lines = []
    archives.prepare(tmp_path / "out", say=lines.append)
    assert lines[-2:] == [
        f"  {tmp_path / 'out' / 'train'}  9 images in 3 classes",
        f"  {tmp_path / 'out' / 'val'}  6 images in 3 classes",
    ]
    assert "  train/n00000001  3 images (1 of 6)" in lines


def test_the_folders_may_have_other_names(archives, tmp_path, whole):
    out = archives.prepare(tmp_path / "out", folders=("ilsvrc", "ilsvrc_eval"))
    renamed = {
        name.replace("train/", "ilsvrc/", 1).replace("val/n", "ilsvrc_eval/n", 1): content
        for name, content in images(whole).items()
    }
    assert images(tree(out)) == renamed


@pytest.mark.parametrize("only", ["train", "val"])
def test_one_split_needs_only_its_archives(archives, tmp_path, whole, only):
    for which in {"train": ("val", "devkit"), "val": ("train",)}[only]:
        (archives.folder / getattr(archives.known, which).name).unlink()
    out = archives.prepare(tmp_path / "out", only=only)
    assert images(tree(out)) == {n: c for n, c in images(whole).items() if n.startswith(only)}


@pytest.mark.parametrize(
    ("options", "wnids"),
    [
        ({"first": 2}, {"n00000001", "n00000002"}),
        ({"classes": ["n00000003", "n00000001"]}, {"n00000003", "n00000001"}),
    ],
)
def test_a_subset_of_the_classes(archives, tmp_path, whole, options, wnids):
    out = archives.prepare(tmp_path / "out", **options)
    chosen = {n: c for n, c in images(whole).items() if n.split("/")[1] in wnids}
    assert images(tree(out)) == chosen
    archives.prepare(out)
    assert tree(out).keys() == whole.keys() and images(tree(out)) == images(whole)


def test_labels_from_a_text_file_need_no_kit(archives, tmp_path, whole):
    (archives.folder / archives.known.devkit.name).unlink()
    text = tmp_path / "labels.txt"
    text.write_text("".join(f"{WNIDS[label - 1]}\n" for label in TRUTH))
    out = archives.prepare(tmp_path / "out", labels=text)
    assert images(tree(out)) == images(whole)


def test_the_png_of_imagenet_is_taken(archives, tmp_path):
    members = dict(train_members())
    png = image(1, format="PNG")
    members["n00000001.tar"] = tar([("n00000001_0.JPEG", png), ("n00000001_1.JPEG", image(2))])
    archives.put("train", tar(members.items()))
    known = dataclasses.replace(archives.known, train_images=8)
    out = archives.prepare(tmp_path / "out", known=known)
    assert (out / "train" / "n00000001" / "n00000001_0.JPEG").read_bytes() == png


# ---- again


def test_a_second_call_needs_no_archives_and_writes_nothing(archives, tmp_path):
    out = archives.prepare(tmp_path / "out")
    shutil.rmtree(archives.folder)
    before = {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))}
    lines = []
    archives.prepare(out, source="nowhere", say=lines.append)
    assert "already, complete" in lines[0]
    assert {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))} == before


@pytest.mark.parametrize("damage", ["removed image", "cut image", "removed class"])
def test_a_damaged_class_is_made_again(archives, tmp_path, whole, damage):
    out = archives.prepare(tmp_path / "out")
    place = out / "val" / "n00000002"
    one = next(iter(place.iterdir()))
    if damage == "removed image":
        one.unlink()
    elif damage == "cut image":
        one.write_bytes(one.read_bytes()[:-1])
    elif damage == "removed class":
        shutil.rmtree(place)
    lines = []
    archives.prepare(out, say=lines.append)
    assert images(tree(out)) == images(whole)
    said = any("replacing a damaged class" in line for line in lines)
    assert said == (damage != "removed class")
    assert any("verified before" in line for line in lines)


def test_an_archive_that_changed_is_verified_again(archives, tmp_path):
    out = archives.prepare(tmp_path / "out", first=1)
    content = bytearray(archives.contents["train"])
    content[-5000] ^= 1
    known = archives.known
    archives.put("train", bytes(content))
    with pytest.raises(InputError, match="ILSVRC2012_img_train.tar: SHA256"):
        archives.prepare(out, known=known)


def test_another_image_net_is_not_mixed_in(archives, tmp_path):
    out = archives.prepare(tmp_path / "out", only="train", first=1)
    members = [*train_members()[1:], ("n00000009.tar", inner("n00000009", 2))]
    archives.put("train", tar(members))
    with pytest.raises(InputError, match="archives and labels differ in their classes"):
        archives.prepare(out, only="train")


def test_other_data_is_never_touched(archives, tmp_path):
    (tmp_path / "out" / "train" / "n00000001").mkdir(parents=True)
    (tmp_path / "out" / "train" / "n00000001" / "mine.JPEG").write_bytes(b"mine")
    refused(archives, tmp_path / "out", "train/n00000001 holds other data")


KILLED = """
import os, pickle, signal, sys
sys.path.insert(0, sys.argv[1])
import imagenet
from labkit.data import classfolders
known, folder, out, point, count = pickle.load(open(sys.argv[2], "rb"))
calls = []
def counted(*arguments, real=getattr(os, point)):
    calls.append(1)
    if len(calls) == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
setattr(os, point, counted)
imagenet.prepare(folder, out, known=imagenet.Dataset(**known))
"""


@pytest.mark.parametrize(
    ("point", "count", "complete"),
    [("replace", 1, 0), ("replace", 4, 0), ("rename", 1, 0), ("rename", 3, 2), ("rename", 6, 5)],
)
def test_killed_at_any_moment_leaves_whole_classes(
    archives, tmp_path, whole, root, point, count, complete
):
    out = tmp_path / "out"
    known = {f.name: getattr(archives.known, f.name) for f in dataclasses.fields(archives.known)}
    (tmp_path / "job").write_bytes(pickle.dumps((known, archives.folder, out, point, count)))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(SCRIPTS), str(tmp_path / "job")],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = images(tree(out))
    assert left.items() <= images(whole).items()
    classes = {name.rpartition("/")[0] for name in left}
    assert len(classes) == complete
    for name in classes:
        assert {n for n in left if n.startswith(name)} == {n for n in whole if n.startswith(name)}
    assert list(out.glob(f"{PREFIX}*")), "the kill came before anything was written"
    archives.prepare(out)
    assert images(tree(out)) == images(whole) and not list(out.glob(f"{PREFIX}*"))


# ---- archives that are not what they should be


def test_without_a_source_it_says_where_to_get_one(tmp_path):
    script = load("imagenet")
    with pytest.raises(InputError, match="needs an account .*img_train.tar, .*img_val.tar, .*kit"):
        script.prepare(out=tmp_path / "out")
    with pytest.raises(InputError, match="download ILSVRC2012_img_train.tar there"):
        script.prepare(out=tmp_path / "out", only="train")


def test_missing_archives_are_named(archives, tmp_path):
    (archives.folder / archives.known.val.name).unlink()
    refused(archives, tmp_path / "out", "holds no ILSVRC2012_img_val.tar; expected a folder with")


@pytest.mark.parametrize("which", ["train", "val", "devkit"])
@pytest.mark.parametrize("fault", ["other bit", "cut short"])
def test_another_checksum_is_refused(archives, tmp_path, which, fault):
    known, content = archives.known, bytearray(archives.contents[which])
    content[len(content) // 2] ^= 1
    archives.put(which, bytes(content if fault == "other bit" else content[:-512]))
    name = getattr(known, which).name
    message = f"{name}: SHA256 .*; expected" if fault == "other bit" else f"{name}: .* bytes; exp"
    refused(archives, tmp_path / "out", message, known=known)


ONE = ("n00000001_0.JPEG", image(1))
BAD_INNER = {
    "leaves the folder": ([("../n00000001_0.JPEG", image(1))], "leaves the folder"),
    "absolute": ([("/tmp/n00000001_0.JPEG", image(1))], "leaves the folder"),
    "symbolic link": ([special(ONE[0], tarfile.SYMTYPE, "/etc/passwd")], "is a link or a device"),
    "hard link": ([special(ONE[0], tarfile.LNKTYPE, "../x")], "is a link or a device"),
    "device": ([special(ONE[0], tarfile.CHRTYPE)], "is a link or a device"),
    "twice": ([ONE, ONE], "'n00000001_0.JPEG' is there more than once"),
    "newline": ([("n00000001_0\n.JPEG", image(1))], r"'n00000001_0\\n.JPEG' has no usable name"),
    "other class": ([("n00000002_0.JPEG", image(1))], "expected n00000001_NUMBER.JPEG"),
    "in a folder": ([("x/n00000001_0.JPEG", image(1))], "expected n00000001_NUMBER.JPEG"),
    "no image": ([("n00000001_0.JPEG", b"<html>")], "'n00000001_0.JPEG' is no JPEG"),
    "empty image": ([("n00000001_0.JPEG", b"")], "'n00000001_0.JPEG' is no JPEG"),
    "too few": ([ONE], "n00000001 has 1 images in train; expected 2 to 4"),
    "too many": ([(f"n00000001_{n}.JPEG", image(n)) for n in range(5)], "has 5 images in train"),
}


@pytest.mark.parametrize("fault", BAD_INNER)
def test_a_hostile_inner_archive_is_refused(archives, tmp_path, fault):
    members, message = BAD_INNER[fault]
    archives.put("train", tar([("n00000001.tar", tar(members)), *train_members()[1:]]))
    said = refused(archives, tmp_path / "out", message)
    assert "n00000001" in said and PREFIX not in said


def without_end(content: bytes) -> bytes:
    """Return a .tar up to its last member, without the zeros behind it."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.getmembers()
        return content[: archive.offset]


BAD_OUTER = {
    "leaves the folder": lambda m: [("../n00000001.tar", m[0][1]), *m[1:]],
    "absolute": lambda m: [("/n00000001.tar", m[0][1]), *m[1:]],
    "link": lambda m: [special("n00000001.tar", tarfile.SYMTYPE, "n00000002.tar"), *m[1:]],
    "twice": lambda m: [*m, m[0]],
    "missing class": lambda m: m[1:],
    "another class": lambda m: [*m[1:], ("n00000009.tar", inner("n00000009", 2))],
    "other name": lambda m: [("README", b"x"), *m],
    "no archive": lambda m: [("n00000001.tar", b"x" * 1024), *m[1:]],
    "cut archive": lambda m: [("n00000001.tar", m[0][1][:1536]), *m[1:]],
    "no end": lambda m: [("n00000001.tar", without_end(m[0][1])), *m[1:]],
}
MESSAGES = {
    "leaves the folder": r"'\.\./n00000001.tar' leaves the folder",
    "absolute": "'/n00000001.tar' leaves the folder",
    "link": "'n00000001.tar' is a link or a device",
    "twice": "'n00000001.tar' is there more than once",
    "missing class": "holds 2 classes; expected 3",
    "another class": "archives and labels differ in their classes",
    "other name": "member 'README'; expected nXXXXXXXX.tar",
    "no archive": "n00000001.tar: the archive is cut short or damaged",
    "cut archive": "n00000001.tar: the archive is cut short or damaged",
    "no end": "n00000001.tar: the archive is cut short or damaged",
}


@pytest.mark.parametrize("fault", BAD_OUTER)
def test_a_hostile_training_archive_is_refused(archives, tmp_path, fault):
    archives.put("train", tar(BAD_OUTER[fault](train_members())))
    refused(archives, tmp_path / "out", MESSAGES[fault])


BAD_VAL = {
    "leaves the folder": (lambda m: [("../" + m[0][0], m[0][1]), *m[1:]], "leaves the folder"),
    "missing": (lambda m: m[1:], "holds no ILSVRC2012_val_00000001.JPEG"),
    "one more": (
        lambda m: [*m, ("ILSVRC2012_val_00000007.JPEG", image(1))],
        "'ILSVRC2012_val_00000007.JPEG'; expected .*00000001.JPEG to ILSVRC2012_val_00000006",
    ),
    "number 0": (
        lambda m: [*m, ("ILSVRC2012_val_00000000.JPEG", image(1))],
        "'ILSVRC2012_val_00000000.JPEG'; expected",
    ),
    # Image 3 is of the class that is made first.
    "no image": (lambda m: [*m[:2], (m[2][0], b"x"), *m[3:]], "00000003.JPEG' is no JPEG"),
    "device": (
        lambda m: [special(m[0][0], tarfile.BLKTYPE), *m[1:]],
        "val_00000001.JPEG' is a link or a device",
    ),
}


@pytest.mark.parametrize("fault", BAD_VAL)
def test_a_hostile_validation_archive_is_refused(archives, tmp_path, fault):
    damage, message = BAD_VAL[fault]
    archives.put("val", tar(damage(val_members())))
    refused(archives, tmp_path / "out", message, only="val")


def test_an_image_bigger_than_the_limit_is_refused(archives, tmp_path, monkeypatch):
    monkeypatch.setattr(ilsvrc, "MAX_IMAGE", 500)
    refused(archives, tmp_path / "out", r"n00000001_0.JPEG: \d+ bytes; expected at most 500")


def test_the_total_is_checked(archives, tmp_path):
    known = dataclasses.replace(archives.known, train_images=10)
    with pytest.raises(InputError, match="9 training images; expected 10"):
        archives.prepare(tmp_path / "out", known=known)


def test_a_kit_or_labels_that_do_not_fit_are_refused(archives, tmp_path):
    (tmp_path / "labels.txt").write_text("n00000001\n" * 6)
    message = "labels.txt: 1 classes, 6 images"
    refused(archives, tmp_path / "out", message, labels=tmp_path / "labels.txt")
    archives.put("devkit", kit((4, *TRUTH[1:])))
    refused(archives, tmp_path / "new", "kit_t12.tar.gz: .*'4' in line 1; expected 1 to 3")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": "vall"}, "unknown split 'vall'.*Did you mean 'val'"),
        ({"classes": ["n00000004"]}, "unknown class 'n00000004'; expected one of 3, n00000001 to"),
        ({"classes": ["cat"]}, "class 'cat'; expected nXXXXXXXX"),
        ({"first": 0}, "first is 0; expected 1 or more"),
        ({"first": 4}, "the first 4 classes; there are 3"),
        ({"first": 1, "classes": ["n00000001"]}, "not together with classes"),
        ({"folders": ("../x", "val")}, "expected two plain names"),
        ({"folders": ("x", "x")}, "expected two plain names"),
        ({"folders": ("manifest.json", "x")}, "expected two plain names"),
        ({"folders": (".hidden", "x")}, "expected two plain names"),
    ],
)
def test_arguments_that_cannot_be_met_are_refused(archives, tmp_path, options, message):
    refused(archives, tmp_path / "out", message, **options)


def test_a_disk_too_small_is_refused_before_any_image(archives, tmp_path, monkeypatch):
    small = SimpleNamespace(f_bavail=1, f_frsize=4096, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    refused(archives, tmp_path / "out", "out needs .* GB; 0.00 GB are free. Make room")


# ---- an address


@pytest.fixture
def server(archives, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    names = {which: getattr(archives.known, which).name for which in archives.contents}
    server = serve({names[which]: content for which, content in archives.contents.items()})
    yield server
    server.shutdown()
    server.server_close()


def test_an_address_is_downloaded_verified_and_removed(archives, server, tmp_path, whole):
    server.cut = 5000
    out = archives.prepare(tmp_path / "out", source=server.address + "/")
    assert images(tree(out)) == images(whole)
    assert server.asked == [None, "bytes=5000-", None, None]
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "train", "val"]


def test_a_download_that_is_not_official_is_refused(archives, server, tmp_path):
    server.files[archives.known.val.name] = archives.contents["val"][:-1] + b"x"
    with pytest.raises(InputError, match="ILSVRC2012_img_val.tar: SHA256 .*expected"):
        archives.prepare(tmp_path / "out", source=server.address)
    assert len(server.asked) == 2 and not (tmp_path / "out" / "train").exists()
    server.files[archives.known.val.name] = archives.contents["val"]
    archives.prepare(tmp_path / "out", source=server.address)
    assert len(server.asked) == 4  # val and the kit; train was here


def test_no_room_for_the_download_is_said_before_it(archives, server, tmp_path, monkeypatch):
    size = sum(map(len, archives.contents.values()))
    room = SimpleNamespace(f_bavail=size * 2, f_frsize=1, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    refused(archives, tmp_path / "out", "Make room", source=server.address)
    assert server.asked == []


# ---- the command


def test_the_command_ends_with_2_and_a_message(archives, tmp_path, capsys):
    main = archives.script.main
    out = ["--out", str(tmp_path / "out")]
    assert main(out) == 2
    assert "needs an account" in capsys.readouterr().err
    assert main([*out, "--source", str(archives.folder)]) == 2  # not the official size
    assert "imagenet.py: " in capsys.readouterr().err
    assert main([*out, "--source", "x", "--only", "trian"]) == 2
    assert "Did you mean 'train'?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_hands_its_arguments_on(archives, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        archives.script.prepare,
        "__kwdefaults__",
        archives.script.prepare.__kwdefaults__ | {"known": archives.known},
    )
    text = tmp_path / "labels.txt"
    text.write_text("".join(f"{WNIDS[label - 1]}\n" for label in TRUTH))
    arguments = "--only val --classes n00000001,n00000003 --folders a b".split()
    source = ["--source", str(archives.folder), "--labels", str(text)]
    assert archives.script.main([*arguments, *source, "--out", str(tmp_path / "out")]) == 0
    assert sorted(os.listdir(tmp_path / "out" / "b")) == ["n00000001", "n00000003"]
    assert archives.script.main([*source, "--first", "1", "--out", str(tmp_path / "1")]) == 0
    assert os.listdir(tmp_path / "1" / "train") == ["n00000001"]


def test_the_default_folder_is_the_projects(archives, tmp_path, monkeypatch):
    monkeypatch.setattr(archives.script, "PROJECT", tmp_path / "project")
    assert archives.prepare(None, first=1) == tmp_path / "project/datasets/ImageNet"
