"""run.json and results.json as the runner writes and trusts them."""

import json
import os
from dataclasses import replace

import pytest

from labkit.errors import InputError
from labkit.tools.running import folders, request, runner
from labkit.tools.running.execution import Execution
from tests.support.lab_projects import write_labs

WHOLE = {"status": "passed", "total_seconds": 1.5}
RUN = {"labs": ["01_x"], "preset": "smoke", "device": "CPU", "parameters": {"01_x": {"a": 1}}}


@pytest.fixture
def passed(tmp_path):
    """(request, folder) of a lab that has passed."""
    write_labs(tmp_path, {"01_one": ["1 + 1"]})
    checked = request.check(start=tmp_path)
    (lab,) = checked.labs
    folder = tmp_path / "out" / lab.name
    folder.mkdir(parents=True)
    (folder / lab.path.name).write_text("{}")
    write(folder, {**WHOLE, "inputs": folders.inputs_of(lab, checked)})
    return checked, folder


def write(folder, results):
    (folder / "results.json").write_text(json.dumps(results))


def read(folder):
    return json.loads((folder / "results.json").read_text())


def passed_before(checked, folder):
    return runner.passed_before(checked.labs[0], checked, folder, lambda event: None)


def test_what_has_passed_counts_as_it_is(passed):
    outcome = passed_before(*passed)
    assert outcome.skipped and outcome.failure is None
    assert outcome.results["total_seconds"] == 1.5


@pytest.mark.parametrize("lost", ["status", "total_seconds", "notebook"])
def test_what_is_not_whole_is_executed_again_in_its_folder(passed, lost):
    checked, folder = passed
    if lost == "notebook":
        (folder / checked.labs[0].path.name).unlink()
    else:
        results = read(folder)
        del results[lost]
        write(folder, results)
    assert passed_before(checked, folder) is None
    assert folder.exists() and not (folder.parent / "replaced").exists()


def test_what_has_no_inputs_is_moved_away(passed):
    checked, folder = passed
    write(folder, WHOLE)
    assert passed_before(checked, folder) is None
    assert not folder.exists()
    assert read(folder.parent / "replaced" / f"{folder.name}-1") == WHOLE


@pytest.mark.parametrize(("metrics", "kept"), [({"a": 1}, {"a": 1}), ([1], {})])
def test_what_stopped_a_lab_outside_its_notebook_is_in_its_results(tmp_path, metrics, kept):
    write(tmp_path, {"status": "running", "metrics": metrics, "seconds": None, "pid": 3})
    results = folders.stopped(tmp_path, InputError("no notebook any more"))
    assert (results["status"], results["metrics"]) == ("failed", kept)
    error = results["error"]
    assert (error["name"], error["message"]) == ("InputError", "no notebook any more")
    assert (error["cause"], error["cell"]) == ("exception", None)
    assert read(tmp_path) == results and "pid" not in results


def test_a_lab_whose_folder_has_vanished_has_failed(tmp_path):
    results = folders.stopped(tmp_path / "gone", OSError("gone"))
    assert (results["status"], results["metrics"]) == ("failed", {})
    assert not (tmp_path / "gone").exists()


def test_the_runners_process_is_not_in_the_results_of_a_lab_that_is_over(tmp_path):
    before = {"status": "running", "pid": 3, "pid_created": 0.5, "lab": "01_one"}
    results, _ = folders.completed(tmp_path, before, Execution(None, 2e6), 1.23456)
    expected = {"lab": "01_one", "status": "passed", "total_seconds": 1.235, "peak_memory_mb": 2.0}
    assert read(tmp_path) == results == expected


def test_results_are_written_over_where_there_is_no_room_for_new_ones(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = {"status": "running", "lab": "01_one", "versions": {"python": "x" * 500}}
    write(tmp_path, before)
    size = (tmp_path / "results.json").stat().st_size
    monkeypatch.setattr(folders, "write_results", full)
    results, _ = folders.completed(tmp_path, before, Execution(None, 2e6), 1.0)
    assert results["error"]["name"] == "OSError"
    assert "No space left" in results["error"]["message"]
    kept = read(tmp_path)
    assert (kept["status"], kept["lab"]) == ("failed", "01_one") and "versions" not in kept
    assert (tmp_path / "results.json").stat().st_size == size


def test_what_a_run_has_written_is_read(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    assert folders.read_run(tmp_path) == RUN


def test_a_folder_without_run_json_is_no_runs(tmp_path):
    with pytest.raises(InputError, match="holds no readable run.json"):
        folders.read_run(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        '{"labs": 3}',
        json.dumps(RUN | {"labs": [1]}),
        json.dumps(RUN | {"labs": "01_x"}),
        json.dumps(RUN | {"preset": None}),
        json.dumps(RUN | {"parameters": {"01_x": [1]}}),
        json.dumps(RUN | {"parameters": {"01_x": {"a": float("nan")}}}),
        '{"labs": ' + "9" * 5000 + "}",
        "[]",
    ],
)
def test_any_other_run_json_is_refused_in_one_line_and_stays(passed, tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    for use in (folders.read_run, lambda out: folders.refuse_used(passed[0], out, out)):
        with pytest.raises(InputError) as refused:
            use(tmp_path)
        assert len(str(refused.value).splitlines()) == 1
    assert (tmp_path / "run.json").read_text() == text


def test_a_run_is_added_to_with_its_own_preset_and_device(passed, tmp_path):
    """Otherwise run.json, and a run resumed from it, would have the last values for all labs."""
    asked, out = passed[0], tmp_path / "added"
    out.mkdir()
    folders.write_run(out, asked)
    folders.refuse_used(asked, out, tmp_path)
    for other in ({"preset": "smoke"}, {"device": "CPU"}):
        ((name, value),) = other.items()
        with pytest.raises(InputError, match=f"with {name} .* expected the same, got {value}: "):
            folders.refuse_used(replace(asked, **other), out, tmp_path)


def test_the_link_of_a_killed_process_of_the_same_number_is_replaced(tmp_path):
    (tmp_path / f".latest-{os.getpid()}").symlink_to("gone")
    folders.point_latest(tmp_path, tmp_path / "new")
    assert os.readlink(tmp_path / "latest") == "new"
    assert os.listdir(tmp_path) == ["latest"]
