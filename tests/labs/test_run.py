"""A run folder is where it should be, holds what was written, and never half of it."""

import json
import os
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.labs import run
from labkit.labs.run import Run


@dataclass(frozen=True)
class FakeRuntime:
    device: str = "CPU"
    seed: int = 1


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "labkit"\n')
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    return tmp_path


@pytest.fixture
def opened(project):
    return Run.open("01_sums", preset="smoke", parameters={"epochs": 1}, runtime=FakeRuntime())


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_folder_is_in_the_project_and_new_each_time(project, opened):
    again = Run.open("01_sums", preset="smoke", parameters={})
    assert opened.folder.parent == again.folder.parent == project / "runs"
    assert opened.folder.name.startswith("01_sums-smoke-20")
    assert opened.folder != again.folder


def test_the_runner_names_the_folder(project, monkeypatch):
    monkeypatch.setenv("LABKIT_RUN", str(project / "here" / "01_sums"))
    opened = Run.open("01_sums", preset="smoke", parameters={})
    assert opened.folder == project / "here" / "01_sums"
    assert opened.folder.is_dir()


def test_a_file_in_the_folders_place_is_refused(project, monkeypatch):
    monkeypatch.setenv("LABKIT_RUN", str(project / "pyproject.toml"))
    with pytest.raises(InputError, match="cannot write to"):
        Run.open("01_sums", preset="smoke", parameters={})
    monkeypatch.delenv("LABKIT_RUN")
    (project / "runs").write_text("in the way")
    with pytest.raises(InputError, match="cannot write to"):
        Run.open("01_sums", preset="smoke", parameters={})


def test_results_hold_what_was_run_and_what_came_out(opened):
    metrics = {"test accuracy": np.float32(0.5), "curve": np.arange(2), "equal": np.bool_(True)}
    place = opened.finish({**metrics, "lost": float("nan")}, headline=["test accuracy"])
    results = json.loads(place.read_text())
    assert results["metrics"] == {
        "test accuracy": 0.5,
        "curve": [0, 1],
        "equal": True,
        "lost": "nan",
    }
    assert (results["lab"], results["preset"], results["device"]) == ("01_sums", "smoke", "CPU")
    assert (results["parameters"], results["status"]) == ({"epochs": 1}, "passed")
    assert results["runtime"] == {"device": "CPU", "seed": 1}
    assert results["headline"] == ["test accuracy"]
    assert results["versions"]["numpy"] == np.__version__
    assert {"python", "mindspore", "labkit", "platform"} < results["versions"].keys()
    assert 0 <= results["seconds"] < 60
    assert files(opened.folder) == ["results.json"]


def test_what_cannot_be_written_leaves_what_was_there(opened, monkeypatch):
    with pytest.raises(TypeError, match=r"metrics\['net'\]: expected .*, got object"):
        opened.finish({"net": object()})
    with pytest.raises(InputError, match="headline metric 'acuracy'.*Did you mean 'accuracy'"):
        opened.finish({"accuracy": 1.0}, headline=["acuracy"])
    assert files(opened.folder) == []
    opened.finish({"accuracy": 1.0})
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        opened.finish({"accuracy": 2.0})
    assert json.loads((opened.folder / "results.json").read_text())["metrics"]["accuracy"] == 1.0
    assert files(opened.folder) == ["results.json"]


def test_a_figure_is_a_png_or_nothing(opened):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2])
    place = opened.figure(figure, "loss")
    assert place == opened.folder / "figures" / "loss.png"
    assert place.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(AttributeError):
        opened.figure(None, "nothing")
    assert files(opened.folder) == ["figures", "figures/loss.png"]


@pytest.mark.parametrize("named", [False, True])
def test_runs_may_be_a_link_to_another_disk_and_files_stay_inside(project, monkeypatch, named):
    (project / "disk").mkdir()
    (project / "runs").symlink_to(project / "disk")
    if named:
        monkeypatch.setenv("LABKIT_RUN", "../runs/mine")
    opened = Run.open("lab", preset="smoke", parameters={})
    opened.path("figures/a.png").write_bytes(b"x")
    assert list((project / "disk").glob("*/figures/a.png"))
    (opened.folder / "out").symlink_to(project)
    for name in ("../x", "/etc/x", "", ".", "out/x"):
        with pytest.raises(InputError, match="name: expected a file inside the run folder, got"):
            opened.path(name)
    with pytest.raises(InputError, match="inside the run folder"):
        opened.records("../out")


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_revision_says_whether_the_checkout_was_changed(project, monkeypatch):
    assert run.git_revision(project) is None
    git(project, "init", "-q")
    git(project, "commit", "-q", "--allow-empty", "-m", "somebody's own")
    # Inside a repository but not tracked: that revision would say nothing about labkit.
    assert run.git_revision(project) is None
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "first")
    clean = run.git_revision(project / "notebooks")
    assert clean and len(clean) == 40
    (project / "new.py").write_text("1")
    assert run.git_revision(project) == clean + "+"
    (project / "new.py").unlink()
    ask = run._git
    silent = lambda root, *words: None if words[0] == "status" else ask(root, *words)  # noqa: E731
    monkeypatch.setattr(run, "_git", silent)
    assert run.git_revision(project) == clean + "+"


def test_records_of_a_loop_start_anew_in_a_folder_of_their_own(opened):
    for value in (1, 2):
        records = opened.records("race/THOR")
        records.add(update=1, accuracy=value)
        records.close()
    assert (opened.folder / "race/THOR/records.csv").read_text() == "update,accuracy\n1,2\n"
