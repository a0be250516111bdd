"""A run folder is where it should be, holds what was written, and never half of it."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from labkit.labs.run import Run


@dataclass(frozen=True)
class FakeRuntime:
    device: str = "CPU"
    seed: int = 1


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mindspore-labs"\n')
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


def test_records_of_a_loop_start_anew_in_a_folder_of_their_own(opened):
    for value in (1, 2):
        records = opened.records("race/THOR")
        records.add(update=1, accuracy=value)
        records.close()
    assert (opened.folder / "race/THOR/records.csv").read_text() == "update,accuracy\n1,2\n"
