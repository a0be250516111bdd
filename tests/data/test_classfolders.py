"""Class folders appear whole, are recognised by their record, and are not mixed with other data."""

import json
import os
import shutil
import subprocess

import pytest

from labkit.data.sources.classfolders import MANIFEST, ClassFolders, Record
from labkit.errors import InputError

IMAGES = {"b.png": b"second", "a.png": b"first"}


def folders(out, title="Pictures", official=True) -> ClassFolders:
    return ClassFolders(out, title, ("train", "val"), official)


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def add(target: ClassFolders, work, say=None, split="train", name="cat", images=IMAGES) -> Record:
    work.mkdir(exist_ok=True)
    record = target.stage(work, split, name, images.items())
    target.install(work, split, name, record, say)
    return record


def test_a_class_appears_with_its_record(out, tmp_path):
    record = add(folders(out), tmp_path / "work")
    assert {p.name: p.read_bytes() for p in (out / "train/cat").iterdir()} == IMAGES
    assert (record.images, record.bytes) == (2, 11)
    again = folders(out)
    assert again.records == {"train/cat": record}
    assert again.whole("train", "cat") and again.whole("train", "cat", content=True)
    assert not again.whole("val", "cat")
    assert again.count("train") == (1, 2) and again.count("val") == (0, 0)
    if not shutil.which("sha256sum"):
        return
    command = "sha256sum * | sha256sum"  # as a reader of the manifest would compute it
    done = subprocess.run(
        ["sh", "-c", command], cwd=out / "train/cat", capture_output=True, text=True,
        env=os.environ | {"LC_ALL": "C"},
    )  # fmt: skip
    assert done.stdout.split()[0] == record.sha256


DAMAGES = {
    "missing": lambda place: (place / "a.png").unlink(),
    "shorter": lambda place: (place / "a.png").write_bytes(b"firs"),
    "gone": shutil.rmtree,
    "link to nothing": lambda place: (
        (place / "a.png").unlink(),
        (place / "a.png").symlink_to("nothing"),
    ),
    "other content": lambda place: (place / "a.png").write_bytes(b"FIRST"),
    "other name": lambda place: (place / "a.png").rename(place / "z.png"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_class_is_not_whole_and_makes_way(out, tmp_path, damage):
    """The quick check compares count and size; other contents or names need the content check."""
    add(folders(out), tmp_path / "work")
    DAMAGES[damage](out / "train/cat")
    assert folders(out).whole("train", "cat") == damage.startswith("other")
    assert not folders(out).whole("train", "cat", content=True)
    if damage == "other name":
        (out / "train/cat/z.png").unlink()
    add(folders(out), tmp_path / "work2")
    assert folders(out).whole("train", "cat", content=True)


def test_a_class_with_a_file_of_somebody_else_stays(out, tmp_path):
    add(folders(out), tmp_path / "one")
    mine = out / "train" / "cat" / "mine.txt"
    mine.write_text("mine")
    before = (out / "manifest.json").read_text()
    lines = []
    with pytest.raises(InputError, match="mine.txt is not a file of this class"):
        add(folders(out), tmp_path / "two", lines.append)
    assert lines == []  # a replacement that is refused is not announced
    assert mine.read_text() == "mine" and (out / "manifest.json").read_text() == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train/dog/x.png", "train/dog holds other data, .*with --out"),
        ("val/x.png", "val/x.png holds other data, .*with --out"),
        ("val", "val cannot be read .*; expected a folder"),
    ],
)
def test_what_is_not_recorded_is_somebody_elses(out, tmp_path, name, message):
    add(folders(out), tmp_path / "work")
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_bytes(b"mine")
    with pytest.raises(InputError, match=message):
        folders(out)


def test_data_sets_are_not_mixed(out, tmp_path):
    target = folders(out)
    target.names = ["cat", "dog"]
    add(target, tmp_path / "work")
    known = json.loads((out / MANIFEST).read_text())
    assert known["data set"] == "Pictures" and known["classes"]["train/cat"]["images"] == 2
    assert folders(out).names == ["cat", "dog"]
    with pytest.raises(InputError, match="holds the official Pictures; asked for is .* Others"):
        folders(out, "Others")
    with pytest.raises(InputError, match="asked for is images of Pictures from elsewhere"):
        folders(out, official=False)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"classes": {"train/cat": {"images": 1}}}', "\udcff"]
)
def test_a_manifest_that_cannot_be_read_is_refused(out, text):
    (out / MANIFEST).write_text(text, errors="surrogateescape")
    with pytest.raises(InputError, match="manifest.json cannot be read"):
        folders(out)


@pytest.mark.parametrize("name", ["../x.png", "a/x.png", "", ".", ".hidden", "x\n.png", "/x"])
def test_an_image_is_written_nowhere_else(out, tmp_path, name):
    with pytest.raises(InputError, match="train/cat: .* is not a valid image name"):
        folders(out).stage(tmp_path / "work", "train", "cat", [(name, b"x")])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    with pytest.raises(InputError, match="train/cat/a.png appears more than once"):
        folders(out).stage(tmp_path, "train", "cat", [("a.png", b"x"), ("a.png", b"y")])


def test_a_verified_archive_is_known_by_place_size_and_time(out, tmp_path):
    archive = tmp_path / "archive.tar"
    archive.write_bytes(b"content")
    target = folders(out)
    assert not target.remembers(archive)
    target.remember(archive)
    assert folders(out).remembers(archive)
    os.utime(archive, ns=(1, 1))
    assert not folders(out).remembers(archive)
