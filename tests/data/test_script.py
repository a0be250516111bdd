"""A temporary folder beside the final one leaves nothing behind."""

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


@pytest.mark.parametrize("place", [".", "a/b"])
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (InputError("bad"), InputError, "bad"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
        (OSError(28, "No space left on device"), InputError, "No space left"),
    ],
)
def test_after_a_failure_all_is_as_it_was(tmp_path, place, error, kind, message):
    (tmp_path / "old").write_text("x")
    with pytest.raises(kind, match=message), staging(tmp_path / place) as folder:
        (folder / "file").write_text("x")
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("place", ["file", "file/below", "x" * 300])
def test_a_place_that_can_be_no_folder_is_refused(tmp_path, place):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="expected a folder that can be written"):
        with staging(tmp_path / place):
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


def test_only_one_program_prepares_a_folder(tmp_path):
    with staging(tmp_path / "out") as folder:
        with pytest.raises(InputError, match="in use.*: the preparation of a data set writes"):
            with staging(tmp_path / "out"):
                pass
        assert folder.is_dir()
    with staging(tmp_path / "out"):
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
    # An existing folder may be a file system of its own.
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
