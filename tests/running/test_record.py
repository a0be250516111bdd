"""results.json as the runner writes and believes it."""

import json

import pytest

from labkit.tools.running import record, request, runner
from labkit.tools.running.execution import Execution
from tests.running.test_runner import write_labs

WHOLE = {"status": "passed", "total_seconds": 1.5}


@pytest.fixture
def passed(tmp_path):
    """(request, folder) of a lab that has passed."""
    write_labs(tmp_path, {"01_one": ["1 + 1"]})
    asked = request.check(start=tmp_path)
    (lab,) = asked.labs
    folder = tmp_path / "out" / lab.name
    folder.mkdir(parents=True)
    (folder / lab.path.name).write_text("{}")
    write(folder, {**WHOLE, "inputs": record.inputs_of(lab, asked)})
    return asked, folder


def write(folder, results):
    (folder / "results.json").write_text(json.dumps(results))


def read(folder):
    return json.loads((folder / "results.json").read_text())


def passed_before(asked, folder):
    return runner.passed_before(asked.labs[0], asked, folder.parent, lambda event: None)


def test_what_has_passed_counts_as_it_is(passed):
    outcome = passed_before(*passed)
    assert outcome.skipped and outcome.failure is None
    assert outcome.results["total_seconds"] == 1.5


@pytest.mark.parametrize("lost", ["status", "total_seconds", "notebook"])
def test_what_is_not_whole_is_executed_again_in_its_folder(passed, lost):
    asked, folder = passed
    if lost == "notebook":
        (folder / asked.labs[0].path.name).unlink()
    else:
        results = read(folder)
        del results[lost]
        write(folder, results)
    assert passed_before(asked, folder) is None
    assert folder.exists() and not (folder.parent / "replaced").exists()


def test_what_has_no_inputs_is_moved_away(passed):
    asked, folder = passed
    write(folder, WHOLE)
    assert passed_before(asked, folder) is None
    assert not folder.exists()
    assert read(folder.parent / "replaced" / f"{folder.name}-1") == WHOLE


def test_a_lab_whose_runner_was_killed_has_failed(tmp_path):
    write(tmp_path, {"status": "running", "metrics": {"a": 1}, "seconds": None})
    results = record.settled(tmp_path)
    assert (results["status"], results["error"]["cause"]) == ("failed", "died")
    assert results["metrics"] == {"a": 1}
    assert read(tmp_path) == results == record.settled(tmp_path)


def test_a_lab_whose_folder_has_vanished_has_failed(tmp_path):
    results = record.settled(tmp_path / "gone")
    assert (results["status"], results["metrics"]) == ("failed", {})


def test_the_runners_process_is_not_in_the_results_of_a_lab_that_is_over(tmp_path):
    before = {"status": "running", "pid": 3, "pid_created": 0.5, "lab": "01_one"}
    done = record.completed(tmp_path, before, Execution(None, 2e6), 1.23456)
    expected = {"lab": "01_one", "status": "passed", "total_seconds": 1.235, "peak_memory_mb": 2.0}
    assert read(tmp_path) == done.results == expected
