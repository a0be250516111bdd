"""A run folder is where it should be, holds what was written, and never half of it."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from labkit.labs.run import Run, last_lines, plain


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


def test_the_folder_is_in_the_project_and_new_each_time_or_the_runners(
    project, opened, monkeypatch
):
    again = Run.open("01_sums", preset="smoke", parameters={})
    assert opened.folder.parent == again.folder.parent == project / "runs"
    assert opened.folder.name.startswith("01_sums-smoke-20") and opened.folder != again.folder
    monkeypatch.setenv("LABKIT_RUN", str(project / "here" / "01_sums"))
    named = Run.open("01_sums", preset="smoke", parameters={})
    assert named.folder == project / "here" / "01_sums" and named.folder.is_dir()


def test_results_hold_what_was_run_and_what_came_out(opened):
    metrics = {"test accuracy": np.float32(0.5), "curve": np.arange(2), "equal": np.bool_(True)}
    place = opened.finish({**metrics, "lost": float("nan")}, headline=["test accuracy"])
    results = json.loads(place.read_text())
    expected = {"test accuracy": 0.5, "curve": [0, 1], "equal": True, "lost": "nan"}
    assert results["metrics"] == expected
    assert (results["lab"], results["preset"], results["device"]) == ("01_sums", "smoke", "CPU")
    assert (results["parameters"], results["status"]) == ({"epochs": 1}, "passed")
    assert results["runtime"] == {"device": "CPU", "seed": 1}
    assert results["headline"] == ["test accuracy"]
    assert {"python", "mindspore", "numpy", "labkit", "platform"} == results["versions"].keys()
    assert os.listdir(opened.folder) == ["results.json"]


def test_records_of_a_loop_start_anew_in_a_folder_of_their_own(opened):
    for value in (1, 2):
        records = opened.records("race/THOR")
        records.add(update=1, accuracy=value)
        records.close()
    assert (opened.folder / "race/THOR/records.csv").read_text() == "update,accuracy\n1,2\n"


def test_numbers_and_paths_become_plain_json_and_others_are_refused_by_their_place():
    record = {"a": np.float32(0.5), "b": np.arange(3), "c": (math.inf, -math.inf, math.nan)}
    expected = {"a": 0.5, "b": [0, 1, 2], "c": ["inf", "-inf", "nan"], "d": "café.png"}
    assert plain(record | {"d": Path("café.png")}, "record") == expected
    with pytest.raises(TypeError, match=r"metrics\['a'\]\[1\]: expected numbers.*, got object"):
        plain({"a": [1, object()]}, "metrics")


def test_the_last_lines_of_a_log_are_what_a_terminal_shows(tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes(b"1\n\n2\n\nhalf a letter \xc3\n0 %\r50 %\r100 %\r\n")
    assert last_lines(log, 3) == ["2", "half a letter \ufffd", "100 %"]
    assert last_lines(tmp_path / "none", 15) == []
