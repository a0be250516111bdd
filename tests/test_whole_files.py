"""A file is written whole or not at all."""

import os

import pytest

from labkit.errors import InputError
from labkit.whole_files import remove_unfinished, whole_file


def test_the_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with whole_file(path, "the file") as temporary:
        temporary.write_text("half")
        assert not path.exists() and temporary.stat().st_dev == tmp_path.stat().st_dev
    assert path.read_text() == "half"
    assert list(path.parent.iterdir()) == [path]


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


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(os, "fsync", lambda number: done.append("synced"))
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *two: (done.append("renamed"), replace(*two)))
    with whole_file(tmp_path / "a.txt", "the file") as temporary:
        temporary.write_text("new")
    assert done == ["synced", "renamed"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / ".part-abc").mkdir()
    (tmp_path / ".part-abc" / "part.npy").write_bytes(b"half")
    (tmp_path / "mine").write_text("mine")
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", "/proc/self"):
        with pytest.raises(InputError, match="cannot write the basis .*x.npy"):
            with whole_file(f"{folder}/x.npy", "the basis"):
                pass
