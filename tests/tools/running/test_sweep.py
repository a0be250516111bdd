"""A sweep runs every point once, isolates failures, repeats nothing and writes one tidy table."""

import csv
import json
import os

import pytest
from PIL import Image

from labkit.base.locks import locked
from labkit.errors import InputError
from labkit.labs.run_files import write_json
from labkit.tools.running import sweep, sweep_table
from tests.support.command import labkit
from tests.support.lab_projects import ROOT, execute_nothing, write_labs
from tests.support.living import interrupted, is_alive

JOBS = min(2, len(os.sched_getaffinity(0)))
LAB = """import os, signal, time
from labkit.labs.run import Run
run = Run.open("01_lab", preset=preset, parameters={"rate": rate, "seed": seed})
with open(run.path("executed"), "a") as file:
    file.write("x")
if rate == 3:
    raise ValueError("rate is 3")
if rate == 4:
    os.kill(os.getpid(), signal.SIGKILL)
if rate == 5:
    open("waits", "w").write(str(os.getpid()))
while rate == 5:
    time.sleep(0.1)
run.finish({"accuracy": rate / 10 + seed / 100, "cores": len(os.sched_getaffinity(0)),
            "core": min(os.sched_getaffinity(0)), "names": ["a"], "bad": float("nan")},
           headline=["accuracy"])"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = tmp_path_factory.mktemp("project")
    write_labs(project, {"01_lab": [LAB]})
    path = project / "notebooks" / "01_lab.ipynb"
    path.write_text(path.read_text().replace("sizes = None", "seed = 1"))
    # Any program that executes these modules of the working folder makes the file "ran".
    for name in ("signal", "torch", "psutil", "labkit"):
        (project / f"{name}.py").write_text(f"open({str(project / 'ran')!r}, 'w')\n")
    return project


@pytest.fixture(autouse=True)
def here(project, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("LABKIT_PRESET", raising=False)


def call(*arguments):
    return labkit("sweep", "01", "--preset", "smoke", *arguments)


def rows_of(folder):
    with (folder / "sweep.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def swept(project):
    """A grid with a failing and a dying run, two runs at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.setenv("PYTHONPATH", str(ROOT))
        done = call("-p", "rate=1,3,4", "-p", "seed=1,2", "--jobs", str(JOBS))
    return project / "runs" / "sweeps" / "01_lab-smoke", done


def test_the_table_has_a_row_for_each_run(swept):
    folder, done = swept
    assert done.exit_code == 1
    rows = rows_of(folder)
    assert [(row["rate"], row["seed"]) for row in rows] == [
        (rate, seed) for rate in "134" for seed in "12"
    ]
    assert [row["status"] for row in rows] == ["passed"] * 2 + ["failed"] * 4
    assert [row["cause"] for row in rows] == [""] * 2 + ["exception"] * 2 + ["died"] * 2
    assert [float(row["accuracy"]) for row in rows[:2]] == pytest.approx([0.11, 0.12])
    assert [row["accuracy"] for row in rows[2:]] == [""] * 4
    assert rows[0]["bad"] == "nan" and "names" not in rows[0]
    assert all(float(row["seconds"]) > 0 for row in rows)


def test_each_run_has_a_core_of_its_own(swept):
    rows = rows_of(swept[0])
    assert {row["cores"] for row in rows if row["cores"]} == {"1"}
    assert {row["core"] for row in rows if row["core"]} == {
        str(core) for core in sorted(os.sched_getaffinity(0))[:JOBS]
    }


def test_failures_are_named_on_stderr(swept):
    lines = swept[1].stderr.splitlines()
    assert len(lines) == 4
    assert lines[0].endswith("rate=3,seed=1 failed in cell 3: ValueError: rate is 3")
    assert lines[2].endswith("in cell 3: DeadKernelError: the kernel was ended by SIGKILL")


def test_every_metric_has_a_figure(swept):
    figures = swept[0] / "figures"
    assert {path.name for path in figures.iterdir()} == {
        "accuracy.png", "cores.png", "core.png", "seconds.png",
    }  # fmt: skip
    with Image.open(figures / "accuracy.png") as image:
        assert image.size[0] > 300 and len(image.getcolors(100_000)) > 2


def test_only_what_is_new_or_has_other_inputs_is_executed(tmp_path, monkeypatch):
    folder, cores = tmp_path / "sweep", []

    def execute(*arguments):
        cores.append(len(os.sched_getaffinity(0)))
        return execute_nothing(*arguments)

    monkeypatch.setattr(sweep.runner, "execute", execute)

    def call_again(*arguments):
        return call(*arguments, "--out", str(folder))

    def executed(run):
        return (folder / "runs" / run / "executed").read_text()

    assert call_again("-p", "rate=1,2", "-p", "seed=1,2,3").exit_code == 0
    done = call_again("-p", "seed=1,2", "-p", "rate=1,2", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 0
    runs = [event["status"] for event in events if event["event"] == "run"]
    assert runs == ["passed before"] * 4
    assert executed("rate=1,seed=1") == executed("rate=2,seed=2") == "x"
    assert len(rows_of(folder)) == 4
    assert events[-1]["files"][0] == str(folder / "sweep.csv")
    # Only the point with the new seed runs.
    done = call_again("-p", "rate=1", "-p", "seed=1,4", "-q")
    assert done.exit_code == 0
    assert [row["seed"] for row in rows_of(folder)] == ["1", "4"]
    assert executed("rate=1,seed=4") == "x"
    assert executed("rate=1,seed=1") == "x"
    assert done.stdout.splitlines()[1].split()[:3] == ["rate", "seed", "status"]
    # Results from other inputs are kept; a single run has one core, as each of several has.
    cores.clear()
    done = call_again("-p", "rate=1", "-p", "seed=1", "--device", "CPU")
    assert done.exit_code == 0 and "rate=1,seed=1: changed: parameters" in done.stdout
    assert executed("rate=1,seed=1") == executed("replaced/rate=1,seed=1-1") == "x"
    assert cores == [1]


def test_no_module_of_the_working_folder_was_executed(swept, project):
    assert not (project / "ran").exists()


def test_a_run_that_cannot_begin_has_failed_and_the_others_go_on(project, tmp_path, monkeypatch):
    def broken(lab, request, folder, say, limits, stop):
        raise InputError("no notebook any more")

    monkeypatch.setattr(sweep.runner, "run_lab", broken)
    done = call("-p", "rate=1,2", "--out", str(tmp_path), "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    said = {event["text"] for event in events if event["event"] == "output"}
    assert done.exit_code == 1 and said == {"no notebook any more"}
    assert [(row["status"], row["cause"]) for row in rows_of(tmp_path)] == [
        ("failed", "exception")
    ] * 2
    lines = call("-p", "rate=1,2", "--out", str(tmp_path), "-q").stderr.splitlines()
    assert len(lines) == 2
    assert all(line.endswith("InputError: no notebook any more") for line in lines)


def test_a_stopped_run_whose_results_are_damaged_has_its_row(tmp_path, monkeypatch):
    def broken(lab, request, folder, say, limits, stop):
        folder.mkdir(parents=True)
        write_json(folder / "results.json", {"metrics": [1], "headline": 3})
        raise InputError("no notebook any more")

    monkeypatch.setattr(sweep.runner, "run_lab", broken)
    assert call("-p", "rate=1", "--out", tmp_path).exit_code == 1
    assert [row["status"] for row in rows_of(tmp_path)] == ["failed"]


def test_one_run_at_a_time_where_a_device_is_to_be_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep.runner, "execute", execute_nothing)
    monkeypatch.setattr(sweep.pool, "_ACCELERATORS", [__file__])
    monkeypatch.setattr(sweep.pool, "usable_cores", lambda: range(8))
    done = call("-p", "rate=1,2", "--out", tmp_path, "--json")
    assert done.exit_code == 0 and json.loads(done.stdout.splitlines()[0])["jobs"] == 1


def test_ctrl_c_ends_all_runs_and_the_same_command_goes_on(project, tmp_path, monkeypatch):
    waits = project / "notebooks" / "waits"
    arguments = ["sweep", "01", "--preset", "smoke", "--jobs", "1", "-p", "rate=1,5,2"]
    code, _, _ = interrupted(
        [*arguments, "--out", str(tmp_path)],
        tmp_path,
        lambda: waits.exists() and bool(waits.read_text()),
    )
    assert code == 130
    assert not is_alive(int(waits.read_text()))
    status = json.loads((tmp_path / "runs" / "rate=5" / "results.json").read_text())["status"]
    assert status == "interrupted"
    assert not (tmp_path / "runs" / "rate=2").exists()
    monkeypatch.setattr(sweep.runner, "execute", execute_nothing)
    assert call("-p", "rate=1,2", "--out", str(tmp_path), "--jobs", "1").exit_code == 0
    assert (tmp_path / "runs" / "rate=1" / "executed").read_text() == "x"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["01", "-p", "rat=1,2"], "Did you mean 'rate'?"),
        (["01", "-p", "rate=1", "--jobs", "999"], "--jobs: expected an integer >= 1 and <= "),
        (["01"], "at least one parameter"),
        (["01,02", "-p", "rate=1,2"], "LAB: expected one lab, got '01,02'"),
        (["01", "02", "-p", "rate=1,2"], "unexpected extra argument"),
        (["01", "-p", "rate=1", "-q", "--json"], "at most one of"),
        (["01", "-p", "rate=1", "--out", "pyproject.toml"], "is not a folder"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(tmp_path, monkeypatch, arguments, said):
    write_labs(tmp_path / "project", {"01_lab": [LAB], "02_lab": [LAB]})
    monkeypatch.chdir(tmp_path / "project")
    before = sorted(tmp_path.rglob("*"))
    done = labkit("sweep", *arguments, "--preset", "smoke")
    assert done.exit_code == 2
    assert said in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def refused(folder, *command):
    """Return the error of `labkit sweep`, or another command, that refuses to use ``folder``."""
    before = sorted(folder.rglob("*"))
    arguments = command or ("sweep", "01", "--preset", "smoke", "-p", "rate=1")
    done = labkit(*arguments, "--out", folder)
    assert done.exit_code == 2 and sorted(folder.rglob("*")) == before
    return done.stderr


def test_a_folder_of_another_lab_or_of_a_run_is_no_place_for_a_sweep(tmp_path):
    write_json(tmp_path / "sweep.json", {"lab": "02_other", "grid": {}})
    expected = f"--out: expected the folder of a sweep of 01_lab, got {tmp_path}, of 02_other"
    assert expected in refused(tmp_path)
    assert "--out: expected a folder that holds no sweep" in refused(tmp_path, "run", "01")
    (tmp_path / "sweep.json").unlink()
    for name in ("run.json", "results.json"):
        write_json(tmp_path / name, {})
        assert "holds a run" in refused(tmp_path)
        (tmp_path / name).unlink()
    with locked(tmp_path, "a sweep"):
        assert f"is in use by a sweep, process {os.getpid()} on" in refused(tmp_path)


@pytest.mark.parametrize("name", ["sweep.csv", "figures/mine.png", "notes.txt"])
def test_a_folder_with_other_files_is_no_place_for_a_sweep(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    assert f"holds {name.split('/')[0]}, and no sweep.json" in refused(tmp_path)


def test_metrics_whose_names_differ_in_signs_alone_have_a_figure_each(tmp_path):
    for metrics, names in (
        ({"gap > 1": 1, "gap < 1": 2, "gap": 3}, ["gap", "gap___1", "gap___1_2"]),
        ({"gap < 1": 2}, ["gap___1"]),
    ):
        results = {"status": "passed", "metrics": metrics}
        row = sweep.Outcome(None, {"rate": 1}, tmp_path, results)
        sweep_table.write([row], {"rate": [1]}, tmp_path)
        assert sorted(path.stem for path in (tmp_path / "figures").iterdir()) == names


def test_an_axis_has_the_unit_of_its_metric():
    figure = sweep_table.figure("test accuracy", [({"batch_size": 8}, 0.5)], {"batch_size": [8]})
    (axis,) = figure.axes
    assert axis.get_ylabel() == "test accuracy (0 to 1)"
    assert axis.get_xlabel() == "batch size (images)"


def test_figures_that_the_table_no_longer_has_are_removed_and_other_files_stay(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "mine.png").write_bytes(b"mine")
    for metrics, names in (({"a": 1, "b": 2}, ["a", "b", "mine"]), ({"a": 1}, ["a", "mine"])):
        results = {"status": "passed", "metrics": metrics}
        row = sweep.Outcome(None, {"rate": 1}, tmp_path, results)
        sweep_table.write([row], {"rate": [1]}, tmp_path)
        assert sorted(path.stem for path in (tmp_path / "figures").iterdir()) == names


def test_values_that_are_lists_have_a_line_each_in_a_figure():
    drawn = sweep_table.figure(
        "a", [({"rate": 1, "sizes": sizes}, 1.0) for sizes in ([1, 2], [3], True, 1)],
        {"rate": [1], "sizes": [[1, 2], [3], True, 1]},
    )  # fmt: skip
    labels = [text.get_text() for text in drawn.axes[0].get_legend().get_texts()]
    assert labels == ["sizes [1, 2]", "sizes [3]", "sizes true", "sizes 1"]
