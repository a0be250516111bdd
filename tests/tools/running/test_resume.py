"""`labkit run --resume`: nothing is executed for nothing, and no training starts again."""

import json
import os
import subprocess
import sys
import time

import nbformat
import pytest
from typer.testing import CliRunner

from labkit.base.locks import locked
from labkit.labs.run_files import read_results, status_of
from labkit.tools import cli
from tests.support.lab_projects import ROOT, write_labs
from tests.support.living import MARK, marked

COUNT = """import os
with open(os.environ["LABKIT_RUN"] + "/executed", "a") as file:
    file.write("x")"""
# The first time, the training is in its second epoch when the whole `labkit run` is killed.
TRAIN = """import os, pathlib, signal, time
import numpy as np
import labkit
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback
labkit.start("CPU", seed=1)
dense, draw = nn.Dense(4, 2), np.random.default_rng(0)
optimizer = nn.SGD(dense.trainable_params(), 0.01)
step = labkit.PlainStep(labkit.LossNet(dense, nn.MSELoss()), optimizer)
rows = draw.normal(size=(40, 4)).astype(np.float32), np.zeros((40, 2), np.float32)"""
STOP = """class Stop(Callback):
    def on_train_step_end(self, run_context):
        marker = pathlib.Path("killed")
        if run_context.original_args().cur_step_num == 16 and not marker.exists():
            marker.touch()
            os.kill(int(os.environ["JPY_PARENT_PID"]), signal.SIGKILL)
            time.sleep(60)
folder = os.environ["LABKIT_RUN"]
dataset = NumpySlicesDataset(rows, shuffle=False).batch(4)
records = labkit.fit(step, dataset, 3, folder=folder, resume=True, callbacks=[Stop()])
print("updates", [row["update"] for row in records.rows])"""
LABS = {"01_done": [COUNT], "02_trains": [COUNT, TRAIN, STOP], "03_later": [COUNT]}


def run(*more):
    return CliRunner().invoke(cli.app, ["run", *more])


def resume(out, *more):
    return run("--resume", str(out), *more)


def executed(out, lab):
    return (out / lab / "executed").read_text()


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a run that was killed in lab 02, and what the kernel's processes were."""
    project = tmp_path_factory.mktemp("project")
    write_labs(project, LABS)
    command = [sys.executable, "-m", "labkit.tools.cli", "run", "--preset", "smoke", "--out", "out"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), MARK: str(project)}
    done = subprocess.run(
        [*command, "-p", "rate=0.5"], cwd=project, env=environment, capture_output=True, timeout=120
    )
    assert done.returncode == -9, done.stderr
    return project


@pytest.fixture(scope="module")
def resumed(killed):
    results, _ = read_results(killed / "out" / "02_trains")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(killed)
        patch.setenv("PYTHONPATH", str(ROOT))
        # The run's own preset counts, not that of the shell.
        patch.setenv("LABKIT_PRESET", "lab")
        return killed / "out", results, resume("out", "-v")


def test_a_killed_run_is_known_as_one(resumed):
    before = resumed[1]
    assert before["status"] == "running"
    assert status_of(before) == "interrupted"


def test_a_killed_runner_leaves_no_process(killed, resumed):
    until = time.monotonic() + 10
    while left := marked(killed):
        assert time.monotonic() < until, left
        time.sleep(0.1)


def test_what_has_passed_is_not_executed_again_and_the_rest_is(resumed):
    out, _, done = resumed
    assert done.exit_code == 0, done.output
    assert executed(out, "01_done") == executed(out, "03_later") == "x"
    assert executed(out, "02_trains") == "xx"
    assert "01_done: passed before with the same inputs, not executed again" in done.stdout
    assert json.loads((out / "02_trains" / "results.json").read_text())["preset"] == "smoke"


def test_the_training_goes_on_from_its_checkpoint(resumed):
    out, _, done = resumed
    assert "labkit: resumed after micro-batch 10" in done.stdout
    assert f"updates {list(range(1, 31))}" in done.stdout
    assert (out / "02_trains" / "records.csv").read_text().count("\n") == 31


def test_only_what_changed_is_executed_again_and_the_old_run_is_kept(resumed, monkeypatch):
    out = resumed[0]
    monkeypatch.chdir(out.parent)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = out.parent / "notebooks" / "03_later.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].source += "\nprint('new')"
    nbformat.write(notebook, path)
    done = resume("out")
    assert done.exit_code == 0
    assert "03_later: changed: notebook; the old run is in" in done.stdout
    assert executed(out, "01_done") == executed(out, "03_later") == "x"
    assert (out / "replaced" / "03_later-1" / "executed").read_text() == "x"
    again = resume("out", "-p", "rate=0.25", "01")
    assert "01_done: changed: parameters" in again.stdout
    assert json.loads((out / "run.json").read_text())["labs"] == list(LABS)
    rates = {"01_done": {"rate": 0.25}, "02_trains": {"rate": 0.5}, "03_later": {"rate": 0.5}}
    assert json.loads((out / "run.json").read_text())["parameters"] == rates
    # What one lab was given is its own: the others are not executed again for it.
    last = resume("out")
    assert last.exit_code == 0 and last.stdout.count("passed before with the same inputs") == 3


@pytest.mark.parametrize(
    ("text", "message"), [(None, "no readable run.json"), ('{"labs": 3}', "'labs'")]
)
def test_a_folder_that_is_no_run_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    before = sorted(tmp_path.iterdir())
    done = resume(tmp_path)
    assert done.exit_code == 2 and message in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_run_that_is_going_on_is_refused(tmp_path, monkeypatch):
    project = tmp_path / "project"
    write_labs(project, {"01_done": [COUNT]})
    monkeypatch.chdir(project)
    record = {"labs": ["01_done"], "preset": "lab", "device": "auto", "parameters": {}}
    with locked(project / "out", "a run"):
        (project / "out" / "run.json").write_text(json.dumps(record))
        for done in (resume("out"), run("--preset", "lab", "--out", "out")):
            assert done.exit_code == 2
            assert f"/out is in use by a run, process {os.getpid()} on " in done.stderr
            names = sorted(path.name for path in (project / "out").iterdir())
            assert names == [".lock", "run.json"]


def test_resume_and_out_do_not_go_together(tmp_path):
    done = resume(tmp_path, "--out", str(tmp_path))
    assert (done.exit_code, "--resume" in done.stderr) == (2, True)
