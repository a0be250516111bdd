"""A file is written completely or not at all; leftovers of a killed process are removed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.base import files
from labkit.base.files import make_folder, natural_order, remove_unfinished, whole_file, write_json
from labkit.errors import InputError
from tests.support.leftovers import DEAD, left_over


def write(path, text="new"):
    with whole_file(path, "the file") as temporary:
        temporary.write_text(text)


def test_the_file_appears_when_it_is_whole_and_its_bytes_are_on_the_disk(tmp_path, monkeypatch):
    path, done = tmp_path / "new" / "a.txt", []
    monkeypatch.setattr(os, "fsync", lambda number: done.append("synced"))
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *two: (done.append("renamed"), replace(*two)))
    with whole_file(path, "the file") as temporary:
        temporary.write_text("half")
        assert not path.exists() and temporary.stat().st_dev == tmp_path.stat().st_dev
        remove_unfinished(path.parent)  # does not remove a file that is being written
    assert path.read_text() == "half"
    assert list(path.parent.iterdir()) == [path]
    # The second sync is of the folder with the new name.
    assert done == ["synced", "renamed", "synced"]


@pytest.mark.parametrize("moment", ["writing", "renaming"])
def test_an_interrupted_write_leaves_the_old_one(tmp_path, monkeypatch, moment):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def interrupted(*_):
        raise KeyboardInterrupt

    if moment == "renaming":
        monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), whole_file(path, "the file") as temporary:
        temporary.write_text("new")
        if moment == "writing":
            interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json(tmp_path):
    path = tmp_path / "a.json"
    value = {"b": [1, 0.1], "a": "Größe \udcff"}
    write_json(path, value, "the file")
    assert path.read_text("utf-8").startswith('{\n "b": [\n  1,\n') and "Größe" in path.read_text()
    assert json.loads(path.read_text()) == value
    write_json(path, float("inf"), "the file", indent=None)
    assert path.read_text() == "Infinity\n"
    with pytest.raises(ValueError):
        write_json(path, float("nan"), "the file", allow_nan=False)
    assert path.read_text() == "Infinity\n" and list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_removed(tmp_path):
    left_over(tmp_path, DEAD)
    left_over(tmp_path, os.getpid(), created=1.0)  # another process has its PID now
    left_over(tmp_path, os.getpid(), boot="before")
    (tmp_path / "mine").write_text("mine")
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_another_process_is_writing_is_left(tmp_path):
    code = (
        "import sys; from labkit.base.files import whole_file\n"
        "with whole_file(sys.argv[1], 'the file') as part:\n"
        "    part.write_text('b'); print(1, flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "b.txt")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        other.stdout.readline()
        remove_unfinished(tmp_path)
        other.communicate("\n")
    assert other.returncode == 0 and (tmp_path / "b.txt").read_text() == "b"


@pytest.mark.parametrize(
    "changed",
    [
        {"host": "other", "boot": "other"},
        {"space": 1},  # in another container
        {"pid": 0},  # from a version of labkit that did not record its process
        {"pid": os.getpid(), "boot": None, "space": None},  # as in a sandbox without /proc
    ],
    ids=["host", "container", "no process", "no /proc"],
)
def test_where_nobody_can_tell_who_is_alive_a_day_decides(tmp_path, changed):
    changed = {"pid": DEAD, **changed}
    kept = left_over(tmp_path / "new", **changed, hours=23)
    gone = left_over(tmp_path / "old", **changed, hours=25)
    remove_unfinished(kept.parent)
    remove_unfinished(gone.parent)
    assert kept.exists() and not gone.exists()


def test_a_write_removes_what_has_ended_and_nothing_else(tmp_path):
    left_over(tmp_path, DEAD)
    kept = left_over(tmp_path, 0, hours=25)  # a folder of someone else with such a name
    write(tmp_path / "a.txt")
    assert sorted(tmp_path.iterdir()) == [kept, tmp_path / "a.txt"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", "/proc/self"):
        with pytest.raises(InputError, match="cannot write the file .*x.npy"):
            write(f"{folder}/x.npy")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(InputError, match="cannot write to .*file"):
            make_folder(folder)
    make_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_names_are_sorted_by_their_numbers():
    names = ["step-10.ckpt", "step-9.ckpt", "1", "step", "step-9a.ckpt", "²"]
    assert sorted(names, key=natural_order) == [
        "1", "step", "step-9.ckpt", "step-9a.ckpt", "step-10.ckpt", "²"
    ]  # fmt: skip


def test_nothing_goes_through_a_planted_link(tmp_path):
    """Links under predictable names in a folder of someone else are not followed."""
    outside, path = tmp_path / "outside", tmp_path / "run" / "a.json"
    outside.write_text("mine")
    path.parent.mkdir()
    path.with_name(f".{path.name}.part").symlink_to(outside)
    path.symlink_to(outside)
    write_json(path, [1], "the file")
    assert outside.read_text() == "mine" and path.is_file() and not path.is_symlink()


def test_a_file_is_renamed_into_its_place_in_one_way():
    """All writers use ``whole_file``, except a download, which keeps its part, and a link."""
    labkit = Path(files.__file__).parents[1]
    renaming = {
        str(path.relative_to(labkit))
        for path in labkit.rglob("*.py")
        if "os.replace(" in path.read_text("utf-8")
    }
    others = {"data/sources/download.py", "tools/running/folders.py"}
    assert renaming == {"base/files.py"} | others
