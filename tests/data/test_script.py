"""A temporary folder beside the final place leaves nothing of itself behind."""

import os
from types import SimpleNamespace as Namespace

import pytest

from labkit.data.sources.script import refuse_full, staging
from labkit.errors import InputError


def test_the_folder_is_inside_and_gone_afterwards(tmp_path):
    out = tmp_path / "a" / "b"
    with staging(out) as folder:
        assert folder.parent == out
        (folder / "file").write_text("x")
        os.replace(folder / "file", out / "file")
    assert [path.name for path in out.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [InputError("bad"), KeyboardInterrupt()])
def test_after_a_failure_no_new_folder_is_left(tmp_path, error):
    with pytest.raises(type(error)), staging(tmp_path / "a" / "b") as folder:
        (folder / "file").write_text("x")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_after_a_failure_what_was_there_stays(tmp_path):
    (tmp_path / "old").write_text("x")
    with pytest.raises(InputError), staging(tmp_path):
        raise InputError("bad")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(InputError, match="File name too long"), staging(tmp_path / ("x" * 300)):
        pass


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="expected a folder that can be written"):
            with staging(out):
                pass
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only folder")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InputError, match="Permission denied"), staging(tmp_path / "out"):
            pass
    finally:
        tmp_path.chmod(0o700)


def test_a_full_disk_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="No space left"), staging(tmp_path / "out"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_alone_means_alone(tmp_path):
    with staging(tmp_path / "out", alone=True) as folder:
        with pytest.raises(
            InputError, match="out is in use by the preparation of a data set, process"
        ):
            with staging(tmp_path / "out", alone=True):
                pass
        assert folder.is_dir()
    with staging(tmp_path / "out", alone=True):
        pass


def disk(monkeypatch, **changes):
    values = {"f_bavail": 10, "f_frsize": 1000, "f_files": 100, "f_favail": 3} | changes
    asked = []
    monkeypatch.setattr(os, "statvfs", lambda path: asked.append(path) or Namespace(**values))
    return asked


def test_a_disk_too_small_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    asked = disk(monkeypatch)
    refuse_full(tmp_path / "a" / "b", 10_000, 0)
    refuse_full(tmp_path / "a" / "b", 10_000 - 3 * 2048, 3)
    for size, files in ((10_001, 0), (10_000 - 3 * 2048 + 1, 3)):
        with pytest.raises(InputError, match="b needs 0.00 GB; 0.00 GB are free. Make room"):
            refuse_full(tmp_path / "a" / "b", size, files)
    assert set(asked) == {tmp_path} and list(tmp_path.iterdir()) == []
    # What is there may be a file system of its own.
    (tmp_path / "a").mkdir()
    refuse_full(tmp_path / "a", 0, 0)
    assert asked[-1] == tmp_path / "a"


def test_too_few_files_left_are_refused(tmp_path, monkeypatch):
    disk(monkeypatch, f_bavail=10**6)
    refuse_full(tmp_path, 0, 3)
    with pytest.raises(InputError, match="needs 4 files; its file system has 3 left"):
        refuse_full(tmp_path, 0, 4)
    disk(monkeypatch, f_bavail=10**6, f_files=0, f_favail=0)
    refuse_full(tmp_path, 0, 4)
