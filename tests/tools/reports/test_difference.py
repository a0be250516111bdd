"""Two runs against each other, and `labkit compare`."""

import json

import pytest
from typer.testing import CliRunner

from labkit.tools import cli
from labkit.tools.reports import difference, reference
from labkit.tools.reports.read import read_all
from tests.support import run_folders as folders


def compare(tmp_path, left, right):
    runs = [folders.write_run(tmp_path / name, **one) for name, one in (("a", left), ("b", right))]
    return difference.compare(*read_all(runs))


def test_equal_runs_have_no_difference(tmp_path):
    assert compare(tmp_path, {}, {"started": "2026-01-02T09:00:00"}) == []


def test_every_kind_of_difference_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "FOLDER", folders.stored(tmp_path / "stored"))
    changes = {
        "parameters": {**folders.PARAMETERS, "seed": 2},
        "metrics": {**folders.METRICS, "test accuracy": 0.983, "training seconds": 3.5},
        "versions": {"python": "3.12.1", "mindspore": "2.10.0", "platform": "Linux-6.1"},
        "inputs": {"notebook": "aa", "data": {"mnist": "bb"}},
        "git": "fedc",
        "seconds": 11.0,
    }
    found = {(one.group, one.name): one for one in compare(tmp_path, {}, changes)}
    assert set(found) == {
        ("run", "git"),
        ("parameters", "seed"),
        ("versions", "python"),
        ("inputs", "notebook"),
        ("inputs", "data"),
        ("metrics", "test accuracy"),
        ("times", "training seconds"),
        ("times", "seconds"),
    }
    accuracy = found["metrics", "test accuracy"]
    assert accuracy.change == pytest.approx(0.003) and accuracy.within is True
    assert found["inputs", "notebook"].left == difference.NOTHING
    assert len(difference.counting(found.values())) == 6


def test_the_tolerance_is_said_only_where_it_is_made_for_both(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "FOLDER", folders.stored(tmp_path / "stored", any_seed=False))
    metrics = {**folders.METRICS, "test accuracy": 0.97}
    (found,) = compare(tmp_path / "1", {}, {"metrics": metrics})
    assert found.within is False
    other = {"metrics": metrics, "parameters": {**folders.PARAMETERS, "seed": 2}}
    found = compare(tmp_path / "2", {}, other)
    assert [one.within for one in found if one.group == "metrics"] == [None]


def test_a_lab_that_only_one_run_has_and_one_that_failed(tmp_path):
    left, right = {"labs": ("01_a", "02_b")}, {"labs": ("01_a",), "status": "failed"}
    found = [(one.lab, one.name, one.left, one.right) for one in compare(tmp_path, left, right)]
    assert ("02_b", "lab", "passed", difference.NOTHING) in found
    assert ("01_a", "status", "passed", "failed") in found


def test_a_number_is_not_the_text_of_it(tmp_path):
    one = {"parameters": {"seed": "1"}}
    (found,) = compare(tmp_path, {"parameters": {"seed": 1}}, one)
    assert (found.name, found.change) == ("seed", None)


def test_sweeps_are_compared_run_by_run(tmp_path):
    left = folders.write_sweep(tmp_path / "a", seeds=(1, 2))
    right = folders.write_sweep(tmp_path / "b", seeds=(2, 3))
    found = difference.compare(*read_all([left, right]))
    assert {(one.lab, one.left) for one in found} == {
        ("seed=1", "passed"),
        ("seed=3", difference.NOTHING),
    }


@pytest.mark.parametrize("name", ["training seconds", "THOR: ms an update", "mean: ms"])
def test_names_of_times(name):
    assert difference.is_time(name)
    assert not difference.is_time("largest difference, items")


def call(*arguments):
    return CliRunner().invoke(cli.app, ["compare", *map(str, arguments)])


def test_the_command_prints_differences_and_says_where_there_are_none(tmp_path):
    runs = [folders.write_run(tmp_path / "a"), folders.write_run(tmp_path / "b", seconds=11.0)]
    same = call(*runs)
    assert same.exit_code == 0 and same.output.startswith("no differences\n")
    assert "+1" in same.output
    runs.append(folders.write_run(tmp_path / "c", device="GPU"))
    other = call(runs[0], runs[2])
    assert other.exit_code == 1 and "device" in other.output and "GPU" in other.output
    told = json.loads(call(runs[0], runs[2], "--json").stdout)
    assert [one["name"] for one in told["differences"]] == ["device"] and told["times"] == []


def test_json_has_no_nan(tmp_path):
    damaged = folders.results(metrics={"loss": float("nan"), "rate": float("inf")})
    runs = [folders.write_run(tmp_path / name) for name in ("a", "b")]
    (place,) = runs[0].rglob("results.json")
    place.write_text(json.dumps(damaged))

    def refuse(name):
        raise AssertionError(name)

    told = json.loads(call(*runs, "--json").stdout, parse_constant=refuse)
    found = {one["name"]: one["left"] for one in told["differences"]}
    assert (found["loss"], found["rate"]) == ("nan", "inf")


def test_the_command_refuses_what_is_no_run(tmp_path):
    run = folders.write_run(tmp_path / "a")
    assert call(run, tmp_path / "gone").exit_code == 2
    assert call(run, run).exit_code == 2
