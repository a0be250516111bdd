"""A file is written whole or not at all; what a killed process leaves is removed."""

import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from labkit.base.files import make_folder, natural_order, remove_unfinished, whole_file, write_json
from labkit.errors import InputError
from tests.support.leftovers import DEAD, left_over


def write(path, text="new"):
    with whole_file(path, "the file") as temporary:
        temporary.write_text(text)


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
    write(tmp_path / "a.txt")
    # And the folder with the new name after it.
    assert done == ["synced", "renamed", "synced"]


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
    left_over(tmp_path, os.getpid(), created=1.0)  # its number is another's now
    left_over(tmp_path, os.getpid(), boot="before")
    (tmp_path / "mine").write_text("mine")
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_another_process_is_writing_is_left(tmp_path):
    with whole_file(tmp_path / "a.txt", "the file") as temporary:
        temporary.write_text("new")
        remove_unfinished(tmp_path)
    assert (tmp_path / "a.txt").read_text() == "new"
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
        {"space": 1},  # of another container
        {"pid": 0},  # of a labkit that did not note its process
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
    kept = left_over(tmp_path, 0, hours=25)  # anybody's folder with such a name
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


def writers():
    """Return file name -> what writes it with a name of its own choice beside."""
    from matplotlib.figure import Figure

    from labkit.labs.results import stored
    from labkit.labs.run import Run
    from labkit.migration.files import write_torch
    from labkit.ranks import rank_table
    from labkit.recipes import settings
    from labkit.recipes.resnet50_config import Config

    table = rank_table.make("10.0.0.1", ["192.1.27.6"])
    result = stored.Stored({"command": "x"}, [{"run": 1}], {})
    run = {"lab": "a", "preset": "b", "parameters": {}, "runtime": None, "started": 0.0}
    return {
        "a.json": lambda path: write_json(path, [1], "the file"),
        "config.json": partial(settings.write, Config()),
        "table.json": partial(rank_table.write, table),
        "w.safetensors": lambda path: write_torch(path, {"w": np.zeros(2)}),
        "thor_race.json": lambda path: stored.write("thor_race", result, path.parent),
        "figures/a.png": lambda path: Run(folder=path.parents[1], **run).figure(Figure(), "a"),
    }


@pytest.mark.parametrize("name", writers())
def test_no_writer_goes_through_a_planted_link(tmp_path, name):
    """What a foreign folder holds under a name that can be foreseen is not written through."""
    outside, path = tmp_path / "outside", tmp_path / "run" / name
    outside.write_text("mine")
    path.parent.mkdir(parents=True)
    path.with_name(f".{path.name}.part").symlink_to(outside)
    writers()[name](path)
    assert outside.read_text() == "mine" and path.is_file() and not path.is_symlink()
