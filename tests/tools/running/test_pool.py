"""Labs of one run side by side have their own cores and failures, and one closing table."""

import os
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from labkit.errors import InputError
from labkit.tools.running import pool, runner
from tests.support.command import labkit
from tests.support.lab_projects import execute_nothing, write_labs

CORES = sorted(os.sched_getaffinity(0))
several_cores = pytest.mark.skipif(len(CORES) < 2, reason="one core: one lab at a time")


def test_the_jobs_fit_cores_and_memory(monkeypatch):
    monkeypatch.setattr(pool, "usable_cores", lambda: [1, 3, 4, 6, 7])
    monkeypatch.setattr(pool, "free_memory", lambda: 8e9)
    assert pool.jobs_of(None, 100, 1e9) == pool.jobs_of(5, 100, 9e9) == 5
    assert pool.jobs_of(None, 2, 1e9) == pool.jobs_of(5, 2, 1e9) == 2
    assert pool.jobs_of(None, 100, 3e9) == 2
    assert pool.jobs_of(None, 100, 9e9) == 1
    with pytest.raises(InputError, match="--jobs: expected an integer >= 1 and <= 5, got 6"):
        pool.jobs_of(6, 2, 1e9)


@pytest.mark.parametrize("device", ["davinci0", "nvidia0"])
def test_a_device_is_not_shared_by_itself(monkeypatch, tmp_path, device):
    monkeypatch.setattr(pool, "_ACCELERATORS", (str(tmp_path / device),))
    assert pool.shares_no_device("auto") and pool.shares_no_device("CPU")
    assert not pool.shares_no_device("GPU") and not pool.shares_no_device("Ascend")
    monkeypatch.setattr(pool, "usable_cores", lambda: [1, 3, 4])
    assert pool.jobs_of(None, 3, 1, "auto") == 3 and pool.jobs_of(None, 3, 1, "GPU") == 1
    (tmp_path / device).touch()
    assert pool.jobs_of(None, 3, 1, "auto") == 1
    assert pool.jobs_of(2, 3, 1, "auto") == 2 and pool.jobs_of(None, 3, 1, "CPU") == 3
    assert not pool.shares_no_device("auto") and pool.shares_no_device("CPU")


def test_a_task_that_raises_ends_the_others_and_those_to_come():
    begun, ended = [], []

    def waits(number, stop):
        begun.append(number)
        ended.append(stop.wait(30))

    def fails(stop):
        while not begun:
            time.sleep(0.01)
        raise MemoryError("full")

    tasks = [partial(waits, 0), fails, partial(waits, 2), partial(waits, 3)]
    with pytest.raises(MemoryError, match="full"):
        list(pool.side_by_side(tasks, [set(CORES), set(CORES)]))
    assert all(ended) and len(begun) == len(ended) < 3


def test_results_come_as_they_end_and_nothing_comes_when_nothing_does():
    first = threading.Event()

    def later(stop):
        first.wait(30)
        return "later"

    ended = pool.side_by_side([later, lambda stop: "sooner"], [set(CORES), set(CORES)], 0.05)
    assert next(ended) == (1, "sooner")
    assert next(ended) is None
    first.set()
    assert [each for each in ended if each] == [(0, "later")]


@pytest.fixture
def called(tmp_path, monkeypatch):
    """A function that calls `labkit run` with another function in place of its labs."""
    labs = ("01_first", "02_second", "03_third")
    write_labs(tmp_path / "project", dict.fromkeys(labs, ()))
    monkeypatch.chdir(tmp_path / "project")

    def call(instead, *arguments):
        def run_lab(lab, request, folder, say, limits, stop=None):
            error = {"name": "ValueError", "message": instead(lab.name), "cell": None}
            status = "failed" if error["message"] else "passed"
            return runner.Outcome(lab, {}, folder, {"status": status, "error": error})

        monkeypatch.setattr(runner, "run_lab", run_lab)
        return labkit("run", "--preset", "smoke", *arguments)

    return call


@several_cores
def test_labs_of_a_run_meet_each_on_its_own_cores(called):
    """A kernel inherits the cores to which its lab's thread is pinned: see test_sweep.py."""
    met, second_is_over, cores = threading.Barrier(2), threading.Event(), {}

    def lab(name):
        if name == "03_third":
            second_is_over.set()
            return "third"
        met.wait(30)
        cores[name] = os.sched_getaffinity(0)
        # The first lab ends last and is first in the closing table.
        return "" if name == "02_second" or second_is_over.wait(30) else "alone"

    done = called(lab, "--jobs", "2")
    assert done.exit_code == 1 and "ValueError: third" in done.stderr
    assert cores["01_first"] | cores["02_second"] == set(CORES)
    assert not cores["01_first"] & cores["02_second"]
    table = [line.split()[:2] for line in done.stdout.splitlines()[-3:]]
    assert table == [["01_first", "passed"], ["02_second", "passed"], ["03_third", "failed"]]


@pytest.mark.parametrize("arguments", [("02", "--jobs", str(len(CORES))), ("--jobs", "1")])
def test_labs_that_run_alone_have_all_cores(called, arguments):
    """More jobs than labs cost no cores; with one job, labs run one at a time in this thread."""
    seen = []
    done = called(lambda name: seen.append(os.sched_getaffinity(0)), *arguments)
    assert done.exit_code == 0, done.output
    assert seen == [set(CORES)] * (1 if "02" in arguments else 3)


def test_ctrl_c_shows_what_has_ended(called):
    def interrupt(name):
        if name == "02_second":
            raise KeyboardInterrupt

    done = called(interrupt, "--jobs", "1", "--out", "out")
    assert done.exit_code == 130 and "go on with: labkit run --resume out" in done.stderr
    assert "01_first" in done.stdout and "03_third" not in done.stdout


@pytest.mark.parametrize(
    ("how", "jobs"), [("--out", 1), ("--resume", 1), ("--resume", min(2, len(CORES)))]
)
def test_a_lab_that_cannot_begin_has_failed_and_the_others_go_on(tmp_path, monkeypatch, how, jobs):
    """Its notebook was deleted or damaged after the start; the closing table shows all labs."""
    write_labs(tmp_path / "project", dict.fromkeys(("01_first", "02_second", "03_third"), ()))
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(runner, "execute", execute_nothing)
    if how == "--resume":
        assert labkit("run", "--out", "out").exit_code == 0

    def damage(*_):
        Path("notebooks/01_first.ipynb").unlink()
        Path("notebooks/02_second.ipynb").write_text("{")

    monkeypatch.setattr(runner, "prepare_data", damage)
    done = labkit("run", how, "out", "--jobs", jobs)
    assert done.exit_code == 2 and Path("out/03_third/executed").read_text() == "x"
    table = [line.split()[:2] for line in done.stdout.splitlines()[-3:]]
    assert table == [["01_first", "failed"], ["02_second", "failed"], ["03_third", "passed"]]
    for name in ("01_first", "02_second"):
        assert f"labkit: {name}: cannot read the notebook " in done.stderr
