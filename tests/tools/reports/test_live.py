"""A run in progress, looked at repeatedly, as text and as a figure."""

import json
import os
import time

import pytest

import labkit
from labkit.errors import InputError
from labkit.tools.reports import live
from tests.support import command
from tests.support import run_folders as folders


def running(folder, rows=2):
    """Write a lab that this process is running; return its folder."""
    return folders.write_lab(folder, rows, status="running", pid=os.getpid(), metrics=None)


def end(folder):
    (folder / "results.json").write_text(json.dumps(folders.results()))


def test_one_look_at_a_finished_run(tmp_path):
    run = folders.write_run(tmp_path / "r")
    done = command.labkit("attach", run, "--once")
    assert done.exit_code == 0
    first, *rest = done.output.splitlines()
    assert first == f"{folders.LAB}: passed" and rest[-1] == "mnist 4/4 loss 0.2500 1 s"
    assert "loss (nats)" in rest and "accuracy (0 to 1)" in rest
    failed = folders.write_run(tmp_path / "f", status="failed")
    assert command.labkit("attach", failed).exit_code == 1
    assert command.labkit("attach", tmp_path / "gone").exit_code == 2


def test_a_run_is_followed_until_it_ends(tmp_path):
    lab = running(tmp_path / "lab")
    (lab / "records.csv").unlink()
    looks = []

    def go_on(look):
        looks.append(look)
        folders.write_records(lab / "records.csv", 3 if len(looks) == 1 else 5)
        if len(looks) == 1:  # a line that is still being written is left out
            with (lab / "records.csv").open("a") as file:
                file.write("4,0.2")
        else:
            end(lab)

    assert live.follow(lab, 0.02, go_on) == "passed"
    assert [len(look.rows) for look in looks] == [0, 3, 5]
    assert [look.status for look in looks] == ["running", "running", "passed"]


@pytest.mark.parametrize(
    ("host", "status", "where", "code"),
    [("node7", "running", "running on node7", 0), (None, "interrupted", "interrupted", 1)],
)
def test_a_run_goes_on_as_far_as_is_seen_from_here(tmp_path, host, status, where, code):
    lab = folders.write_lab(tmp_path / "lab", status="running", pid=2**30, host=host)
    look = live.look(lab)
    assert look.status == status and where in look.where
    done = command.labkit("attach", lab, "--once")
    assert done.exit_code == code and where in done.output


def test_between_two_labs_a_run_is_going_for_a_while(tmp_path):
    run = folders.write_run(tmp_path / "r")
    (run / "run.json").write_text(json.dumps({"labs": [folders.LAB, "02_later"]}))
    assert live.look(run).status == "running"
    long_ago = time.time() - 2 * live.PATIENCE
    for path in [run, *run.rglob("*")]:
        os.utime(path, (long_ago, long_ago))
    look = live.look(run)
    assert look.status == "interrupted" and "the run was interrupted" in look.where
    running(run / "02_later", rows=7)
    look = live.look(run)
    assert look.lab.folder.name == "02_later" and len(look.rows) == 7
    assert "(2 of 2): running" in look.where and look.status == "running"


def test_a_sweep_is_going_until_every_combination_is_there(tmp_path):
    sweep = folders.write_sweep(tmp_path / "s", seeds=(1, 2))
    assert live.look(sweep).status == "passed"
    about = json.loads((sweep / "sweep.json").read_text())
    (sweep / "sweep.json").write_text(json.dumps({**about, "grid": {"seed": [1, 2, 3]}}))
    assert live.look(sweep).status == "running"


@pytest.mark.parametrize(
    ("seeds", "grid", "now", "later"),
    [
        ([1, 2, 3], [1, 2], "passed", "passed"),  # 3 failed, but is no longer in the grid
        ([1, 2], [4, 5], "running", "interrupted"),  # before the first new run
        ([1, 2, 3], [2, 3], "failed", "failed"),
    ],
)
def test_runs_that_a_sweeps_grid_no_longer_has_do_not_count(tmp_path, seeds, grid, now, later):
    sweep = folders.write_sweep(tmp_path / "s", seeds)
    if 3 in seeds:
        results = sweep / "runs" / "seed=3" / "results.json"
        results.write_text(json.dumps(folders.results(status="failed")))
    about = json.loads((sweep / "sweep.json").read_text())
    (sweep / "sweep.json").write_text(json.dumps({**about, "grid": {"seed": grid}}))
    look = live.look(sweep)
    assert look.status == now
    assert (look.lab is None) == (now == "running") and ("failed" in look.where) == (3 in grid)
    long_ago = time.time() - 2 * live.PATIENCE
    for path in [sweep, *sweep.rglob("*")]:
        os.utime(path, (long_ago, long_ago))
    assert live.look(sweep).status == later


@pytest.mark.parametrize("values", [3, list(range(1000))])
def test_of_a_damaged_grid_the_runs_that_are_there_count(tmp_path, values):
    sweep = folders.write_sweep(tmp_path / "s")
    grid = {name: values for name in "abcdef"}
    (sweep / "sweep.json").write_text(json.dumps({"grid": grid}))
    assert live.look(sweep).status == "passed"


def test_a_run_that_has_written_nothing_yet_and_bad_seconds(tmp_path):
    (tmp_path / "run.json").write_text('{"labs": ["01_a"]}')
    look = live.look(tmp_path)
    assert look.status == "running" and "nothing written yet" in live.as_text(look)
    with pytest.raises(InputError, match="every: expected a finite number > 0, got 0"):
        live.follow(tmp_path, 0, print)


def test_the_figure_in_a_notebook_is_replaced_in_place(tmp_path, monkeypatch):
    import IPython.display

    lab = running(tmp_path / "lab")
    shown = []

    class Handle:
        def update(self, picture):
            shown.append(("update", picture))

    def display(picture, display_id):
        shown.append(("display", picture))
        end(lab)
        return Handle()

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setitem(live.sys.modules, "ipykernel", object())
    assert labkit.attach(lab, every=0.01) == "passed"
    assert [how for how, _ in shown] == ["display", "update"]
    assert all(picture.data.startswith(b"\x89PNG") for _, picture in shown)
    assert "passed" in shown[-1][1].alt


def test_outside_a_notebook_text_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.delitem(live.sys.modules, "ipykernel", raising=False)
    assert labkit.attach(folders.write_lab(tmp_path / "lab")) == "passed"
    assert "loss (nats)" in capsys.readouterr().out
