"""A file is written completely or not at all; a folder has one writer; which checkout is meant."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.base import files, project
from labkit.base.files import locked, make_folder, natural_order, whole_file, write_json
from labkit.errors import InputError
from tests.support.programs import run_code


def test_the_file_appears_when_it_is_whole_and_its_bytes_are_on_the_disk(tmp_path, monkeypatch):
    path, done = tmp_path / "new" / "a.txt", []
    monkeypatch.setattr(os, "fsync", lambda number: done.append(path.exists()))
    with whole_file(path, "the file") as temporary:
        temporary.write_text("old")
        assert temporary.stat().st_dev == tmp_path.stat().st_dev
    assert done == [False, True]  # the second is of the folder with the new name
    with pytest.raises(KeyboardInterrupt), whole_file(path, "the file") as temporary:
        temporary.write_text("new")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    code = (
        "import os, sys; from labkit.base.files import whole_file\n"
        "with whole_file(sys.argv[1], 'the file') as part: part.write_text('b'); os._exit(9)"
    )
    assert run_code(code, tmp_path / "b.txt").returncode == 9
    assert len(list(tmp_path.iterdir())) == 2
    files.remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_json(tmp_path):
    path = tmp_path / "a.json"
    value = {"b": [1, 0.1], "a": "Größe \udcff"}
    write_json(path, value, "the file")
    assert path.read_text("utf-8").startswith('{\n "b": [\n  1,\n') and "Größe" in path.read_text()
    with pytest.raises(ValueError):
        write_json(path, float("nan"), "the file", allow_nan=False)
    assert json.loads(path.read_text()) == value and list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="cannot write the file .*x.npy"):
        write_json(tmp_path / "file" / "x.npy", 1, "the file")
    for folder in (tmp_path / "file" / "run", Path("/proc/self")):
        with pytest.raises(InputError, match=f"cannot write to {folder}"):
            make_folder(folder)


def test_a_folder_is_locked_until_its_writer_ends(tmp_path):
    code = (
        "import sys, time; from labkit.base.files import locked\n"
        "with locked(sys.argv[1], 'a test'): print(1, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        other.stdout.readline()
        with pytest.raises(InputError, match="run is in use by another process: a run writes"):
            locked(tmp_path / "run", "a run").__enter__()
        other.kill()
    with locked(tmp_path / "run", "a run"):
        pass


def test_names_are_sorted_by_their_numbers():
    names = ["step-10.ckpt", "step-9.ckpt", "1", "step", "step-9a.ckpt"]
    assert sorted(names, key=natural_order) == [names[2], names[3], names[1], names[4], names[0]]


@pytest.mark.parametrize("text", ['[project]\nname = "mindspore"\n', "not toml", ""])
def test_the_project_is_the_nearest_one_above(tmp_path, monkeypatch, text):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mindspore-labs"\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner.parent / "pyproject.toml").write_text(text)
    monkeypatch.chdir(inner)
    assert project.project_root() == project.find_project() == tmp_path


def test_elsewhere_it_is_the_checkout_that_labkit_is_imported_from(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert project.find_project() == project.own_checkout() == root
    assert project.version() in (root / "pyproject.toml").read_text()
    monkeypatch.setattr(project, "__file__", "/site-packages/labkit/base/project.py")
    with pytest.raises(InputError, match=f"no labs here: {tmp_path}"):
        project.find_project()


def test_the_labs_of_a_wheel_go_to_a_folder_and_follow_its_version(tmp_path, monkeypatch, capsys):
    wheels, here = tmp_path / "site" / "project", tmp_path / "here"
    (wheels / "notebooks").mkdir(parents=True)
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(project, "own_checkout", lambda: None)
    monkeypatch.setattr(project, "_WHEELS", wheels)

    def install(version):
        (wheels / "notebooks" / "01.ipynb").write_text(version)
        (wheels / ".mindspore-labs").write_text(version)

    install("1")
    assert project.labs_source() == wheels and not list(here.iterdir())
    brought = here / "mindspore-labs"
    assert project.find_project() == brought == project.labs_source()
    (brought / "work").mkdir()
    (brought / "work" / "01.ipynb").write_text("mine")
    (brought / "notebooks" / "01.ipynb").write_text("edited")
    (brought / "notebooks" / "02_of_version_1.ipynb").write_text("1")
    for version, lines in (("1", 1), ("2", 1), ("2", 0)):
        install(version)
        monkeypatch.chdir(brought / "work")
        assert project.find_project() == brought
        assert capsys.readouterr().err.count(f"labs and data are now in {brought}") == lines
    assert [path.name for path in (brought / "notebooks").iterdir()] == ["01.ipynb"]
    assert (brought / "notebooks" / "01.ipynb").read_text() == "2"
    (before,) = brought.glob("before-*")
    assert (before / "notebooks" / "01.ipynb").read_text() == "edited"
    assert (brought / "work" / "01.ipynb").read_text() == "mine"


@pytest.mark.parametrize("calls", range(3))
def test_a_new_version_that_is_killed_while_it_replaces_is_completed(tmp_path, monkeypatch, calls):
    wheels = tmp_path / "site" / "project"
    (wheels / "notebooks").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(project, "own_checkout", lambda: None)
    monkeypatch.setattr(project, "_WHEELS", wheels)
    for version in ("1", "2"):
        (wheels / "notebooks" / "01.ipynb").write_text(version)
        (wheels / ".mindspore-labs").write_text(version)
        if version == "1":
            brought = project.find_project()
    left = iter(range(calls))

    def dying(true):
        def move(*paths):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return true(*paths)

        return move

    with monkeypatch.context() as killed:
        killed.setattr(Path, "rename", dying(Path.rename))
        killed.setattr(Path, "replace", dying(Path.replace))
        with pytest.raises(KeyboardInterrupt):
            project.find_project()
    assert project.find_project() == brought
    assert (brought / "notebooks" / "01.ipynb").read_text() == "2"
    assert (brought / ".mindspore-labs").read_text() == "2"
    assert "1" in {path.read_text() for path in brought.glob("before-*/notebooks/01.ipynb")}


def test_a_folder_of_that_name_that_is_not_labkits_stays_as_it_is(tmp_path, monkeypatch):
    wheels, other = tmp_path / "site" / "project", tmp_path / "mindspore-labs"
    wheels.mkdir(parents=True)
    (wheels / ".mindspore-labs").write_text("1")
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(project, "own_checkout", lambda: None)
    monkeypatch.setattr(project, "_WHEELS", wheels)
    with pytest.raises(InputError, match="is there, and not labkit's: expected a new folder"):
        project.find_project()
    assert not list(other.iterdir())


def test_labs_that_are_copied_in_part_are_no_project_and_are_copied_again(tmp_path, monkeypatch):
    wheels = tmp_path / "site" / "project"
    wheels.mkdir(parents=True)
    (wheels / ".mindspore-labs").write_text("1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(project, "own_checkout", lambda: None)
    monkeypatch.setattr(project, "_WHEELS", wheels)
    with monkeypatch.context() as killed:
        killed.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            project.find_project()
        killed.setattr(
            project.shutil, "copytree", lambda *_, **__: (_ for _ in ()).throw(OSError("full"))
        )
        with pytest.raises(InputError, match="the labs cannot be copied to .*: full"):
            project.find_project()
    assert project.project_root() is None
    assert project.find_project() == project.project_root() == tmp_path / "mindspore-labs"
