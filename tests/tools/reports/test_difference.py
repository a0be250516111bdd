"""The comparison of two runs, and `labkit compare`."""

import json

import pytest

from labkit.tools.reports import difference, reference
from labkit.tools.reports.read import read_all
from tests.support import run_folders as folders
from tests.support.command import labkit


def compare(tmp_path, left, right):
    sides = {"a": left, "b": right}
    runs = [folders.write_run(tmp_path / name, **changes) for name, changes in sides.items()]
    return difference.compare(*read_all(runs))


def test_every_kind_of_difference_is_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "FOLDER", folders.stored(tmp_path / "stored"))
    changes = {
        "parameters": {**folders.PARAMETERS, "seed": 2},
        "metrics": {**folders.METRICS, "test accuracy": 0.983, "training seconds": 3.5},
        "versions": {"python": "3.12.1", "mindspore": "2.10.0", "platform": "Linux-6.1"},
        "inputs": {"notebook": "aa", "data": {"mnist": "bb"}},
        "git": "fedc",
        "seconds": 11.0,
        "started": "2026-01-02T09:00:00",
    }
    differences = compare(tmp_path, {}, changes)
    by_name = {(row.group, row.name): row for row in differences}
    assert set(by_name) == {
        ("run", "git"),
        ("parameters", "seed"),
        ("versions", "python"),
        ("inputs", "notebook"),
        ("inputs", "data"),
        ("metrics", "test accuracy"),
        ("times", "training seconds"),
        ("times", "seconds"),
    }
    accuracy = by_name["metrics", "test accuracy"]
    assert accuracy.change == pytest.approx(0.003) and accuracy.within is True
    assert by_name["inputs", "notebook"].left == difference.NOTHING
    assert len(difference.counting(differences)) == 6


def test_the_tolerance_is_given_only_where_it_is_made_for_both(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "FOLDER", folders.stored(tmp_path / "stored", any_seed=False))
    metrics = {**folders.METRICS, "test accuracy": 0.97}
    (row,) = compare(tmp_path / "1", {}, {"metrics": metrics})
    assert row.within is False
    other = {"metrics": metrics, "parameters": {**folders.PARAMETERS, "seed": 2}}
    rows = compare(tmp_path / "2", {}, other)
    assert [row.within for row in rows if row.group == "metrics"] == [None]


def test_a_lab_that_only_one_run_has_one_that_failed_and_a_number_as_text(tmp_path):
    left = {"labs": ("01_a", "02_b"), "parameters": {"seed": 1}}
    right = {"labs": ("01_a",), "status": "failed", "parameters": {"seed": "1"}}
    rows = compare(tmp_path, left, right)
    values = {(row.lab, row.name): (row.left, row.right) for row in rows}
    assert values["02_b", "lab"] == ("passed", difference.NOTHING)
    assert values["01_a", "status"] == ("passed", "failed")
    assert values["01_a", "seed"] == (1, "1") and all(row.change is None for row in rows)


def test_sweeps_are_compared_run_by_run(tmp_path):
    left = folders.write_sweep(tmp_path / "a", seeds=(1, 2))
    right = folders.write_sweep(tmp_path / "b", seeds=(2, 3))
    rows = difference.compare(*read_all([left, right]))
    expected = {("seed=1", "passed"), ("seed=3", difference.NOTHING)}
    assert {(row.lab, row.left) for row in rows} == expected


@pytest.mark.parametrize("name", ["training seconds", "THOR: ms an update", "mean: ms"])
def test_names_of_times(name):
    assert difference.is_time(name)
    assert not difference.is_time("largest difference, items")


def test_the_command_prints_differences_and_says_where_there_are_none(tmp_path):
    runs = [folders.write_run(tmp_path / "a"), folders.write_run(tmp_path / "b", seconds=11.0)]
    same = labkit("compare", *runs)
    assert same.exit_code == 0 and same.output.startswith("no differences\n")
    assert "+1" in same.output
    gpu = folders.write_run(tmp_path / "c", device="GPU")
    other = labkit("compare", runs[0], gpu)
    assert other.exit_code == 1 and "device" in other.output and "GPU" in other.output
    record = json.loads(labkit("compare", runs[0], gpu, "--json").stdout)
    assert [row["name"] for row in record["differences"]] == ["device"] and record["times"] == []
    assert labkit("compare", runs[0], tmp_path / "gone").exit_code == 2
    assert labkit("compare", runs[0], runs[0]).exit_code == 2


def test_json_has_no_nan(tmp_path):
    runs = [folders.write_run(tmp_path / name) for name in ("a", "b")]
    damaged = folders.results(metrics={"loss": float("nan"), "rate": float("inf")})
    (runs[0] / folders.LAB / "results.json").write_text(json.dumps(damaged))
    record = json.loads(labkit("compare", *runs, "--json").stdout, parse_constant=pytest.fail)
    values = {row["name"]: row["left"] for row in record["differences"]}
    assert (values["loss"], values["rate"]) == ("nan", "inf")
