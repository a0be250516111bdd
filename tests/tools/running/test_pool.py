"""Labs of one run side by side: cores of their own, failures of their own, one closing table."""

import json
import os
import threading
import time
from functools import partial

import pytest
from typer.testing import CliRunner

from labkit.errors import InputError
from labkit.tools import cli
from labkit.tools.running import pool
from tests.support.lab_projects import ROOT, write_labs
from tests.support.living import interrupted, is_alive

CORES = sorted(os.sched_getaffinity(0))
several_cores = pytest.mark.skipif(len(CORES) < 2, reason="one core: one lab at a time")
SEEN = """import os, time
from labkit.labs.run import Run
run = Run.open("{name}", preset=preset, parameters={{}})
open("{name}.begun", "w").write(str(os.getpid()))
until = time.monotonic() + {seconds}
while time.monotonic() < until and not os.path.exists("{other}.begun"):
    time.sleep(0.05)
met = os.path.exists("{other}.begun")
mine = os.sched_getaffinity(0)
run.finish({{"met": met, "cores": len(mine), "core": min(mine)}})"""
WAIT = "time.sleep(3 if met else 0)"


def test_more_runs_than_cores_are_refused(monkeypatch):
    monkeypatch.setattr(pool, "usable_cores", lambda: [1, 3, 4, 6, 7])
    with pytest.raises(InputError, match="--jobs: expected an integer >= 1 and <= 5, got 6"):
        pool.check_jobs(6)


@pytest.mark.parametrize("device", ["davinci0", "nvidia0"])
def test_a_device_is_not_shared_by_itself(monkeypatch, tmp_path, device):
    monkeypatch.setattr(pool, "_ACCELERATORS", (str(tmp_path / device),))
    assert pool.shares_no_device("auto") and pool.shares_no_device("CPU")
    assert not pool.shares_no_device("GPU") and not pool.shares_no_device("Ascend")
    (tmp_path / device).touch()
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
def project(tmp_path, monkeypatch):
    labs = {
        # It ends last, and stands first in the closing table.
        "01_first": [SEEN.format(name="01_first", other="02_second", seconds=60), WAIT],
        "02_second": [SEEN.format(name="02_second", other="01_first", seconds=60)],
        "03_third": ["raise ValueError('third')"],
    }
    write_labs(tmp_path / "project", labs)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("LABKIT_PRESET", raising=False)
    return tmp_path / "project"


def metrics_of(folder):
    return json.loads((folder / "results.json").read_text())["metrics"]


@several_cores
def test_labs_of_a_run_meet_each_on_its_own_cores(project, tmp_path):
    done = CliRunner().invoke(
        cli.app, ["run", "--preset", "smoke", "--jobs", "2", "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 1 and "ValueError: third" in done.stderr
    seen = [metrics_of(tmp_path / "out" / name) for name in ("01_first", "02_second")]
    assert all(each["met"] for each in seen)
    assert sum(each["cores"] for each in seen) == len(CORES)
    assert seen[0]["core"] != seen[1]["core"]
    table = [line.split()[:2] for line in done.stdout.splitlines()[-3:]]
    assert table == [["01_first", "passed"], ["02_second", "passed"], ["03_third", "failed"]]


def test_more_jobs_than_labs_take_no_core_from_them(project, tmp_path):
    place = project / "notebooks" / "02_second.ipynb"
    place.write_text(place.read_text().replace("monotonic() + 60", "monotonic() + 0.1"))
    arguments = ["run", "02", "--preset", "smoke", "--jobs", str(len(CORES))]
    assert CliRunner().invoke(cli.app, [*arguments, "--out", str(tmp_path / "out")]).exit_code == 0
    assert metrics_of(tmp_path / "out" / "02_second")["cores"] == len(CORES)


def test_one_job_is_one_lab_at_a_time_with_all_cores(project, tmp_path):
    for name in ("01_first", "02_second"):
        place = project / "notebooks" / f"{name}.ipynb"
        place.write_text(place.read_text().replace("monotonic() + 60", "monotonic() + 0.1"))
    arguments = ["run", "01", "02", "--preset", "smoke", "--jobs", "1"]
    assert CliRunner().invoke(cli.app, [*arguments, "--out", str(tmp_path / "out")]).exit_code == 0
    seen = [metrics_of(tmp_path / "out" / name) for name in ("01_first", "02_second")]
    assert [each["met"] for each in seen] == [False, True]
    assert {each["cores"] for each in seen} == {len(CORES)}


@several_cores
def test_ctrl_c_ends_the_labs_that_run(project, tmp_path):
    """The second has passed by then, the first waits."""
    write = project / "notebooks" / "01_first.ipynb"
    write.write_text(write.read_text().replace("02_second.begun", "never"))
    begun, second = project / "notebooks" / "01_first.begun", tmp_path / "out" / "02_second"
    code, stdout, stderr = interrupted(
        ["run", "01", "02", "--preset", "smoke", "--jobs", "2", "--out", str(tmp_path / "out")],
        tmp_path,
        lambda: begun.exists() and passed(second),
    )
    assert code == 130
    assert not is_alive(int(begun.read_text()))
    results = json.loads((tmp_path / "out" / "01_first" / "results.json").read_text())
    assert results["status"] == "interrupted"
    assert f"go on with: labkit run --resume {tmp_path / 'out'}" in stderr
    assert "02_second" in stdout


def passed(folder):
    try:
        return "total_seconds" in json.loads((folder / "results.json").read_text())
    except (OSError, ValueError):
        return False
