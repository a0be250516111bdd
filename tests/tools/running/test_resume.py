"""`labkit run --resume` executes nothing needlessly and restarts no training from its beginning."""

import json
import os
import subprocess
import sys

import pytest

from labkit.base.locks import locked
from labkit.labs.run_files import read_results, status_of
from labkit.tools.running import runner
from tests.support.command import labkit
from tests.support.lab_projects import ROOT, execute_nothing, write_labs
from tests.support.living import MARK, marked, wait_until

COUNT = """import os
with open(os.environ["LABKIT_RUN"] + "/executed", "a") as file:
    file.write("x")"""
# In the first run, the whole `labkit run` is killed in the second epoch of the training.
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
LABS = {"01_done": [COUNT], "02_trains": [COUNT, TRAIN, STOP]}


def resume(out, *more):
    return labkit("run", "--resume", out, *more)


def executed(out, lab):
    return (out / lab / "executed").read_text()


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """(folder, results.json, resumed command) of a run that is killed in lab 02 and resumed."""
    project = tmp_path_factory.mktemp("project")
    write_labs(project, LABS)
    command = [sys.executable, "-m", "labkit.tools.cli", "run", "--preset", "smoke", "--out", "out"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), MARK: str(project)}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, timeout=120)
    assert done.returncode == -9, done.stderr
    killed, _ = read_results(project / "out" / "02_trains")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.setenv("PYTHONPATH", str(ROOT))
        # The run's own preset counts, not that of the shell.
        patch.setenv("LABKIT_PRESET", "lab")
        return project / "out", killed, resume("out", "-v")


def test_a_killed_run_is_known_as_one_and_leaves_no_process(resumed):
    out, killed, _ = resumed
    assert killed["status"] == "running" and status_of(killed) == "interrupted"
    wait_until(lambda: not marked(out.parent))


def test_what_has_passed_is_not_executed_again_and_the_rest_is(resumed):
    out, _, done = resumed
    assert done.exit_code == 0, done.output
    assert (executed(out, "01_done"), executed(out, "02_trains")) == ("x", "xx")
    assert "01_done: passed before with the same inputs, not executed again" in done.stdout
    assert json.loads((out / "02_trains" / "results.json").read_text())["preset"] == "smoke"


def test_the_training_goes_on_from_its_checkpoint(resumed):
    out, _, done = resumed
    assert "labkit: resumed after micro-batch 10" in done.stdout
    assert f"updates {list(range(1, 31))}" in done.stdout
    assert (out / "02_trains" / "records.csv").read_text().count("\n") == 31


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose labs are not really executed."""
    write_labs(tmp_path / "project", {"01_first": [], "02_second": []})
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(runner, "execute", execute_nothing)
    return tmp_path / "project"


def test_only_what_changed_is_executed_again_and_the_old_run_is_kept(project):
    out = project / "out"
    assert labkit("run", "--out", "out", "-p", "rate=0.5").exit_code == 0
    path = project / "notebooks" / "02_second.ipynb"
    path.write_text(path.read_text().replace("rate = None", "rate = 1"))
    done = resume("out")
    assert done.exit_code == 0
    assert "02_second: changed: notebook; the old run is in" in done.stdout
    assert executed(out, "01_first") == executed(out, "02_second") == "x"
    assert (out / "replaced" / "02_second-1" / "executed").read_text() == "x"
    again = resume("out", "-p", "rate=0.25", "01")
    assert "01_first: changed: parameters" in again.stdout
    record = json.loads((out / "run.json").read_text())
    assert record["labs"] == ["01_first", "02_second"]
    assert record["parameters"] == {"01_first": {"rate": 0.25}, "02_second": {"rate": 0.5}}
    # A parameter given to one lab does not cause the others to be executed again.
    last = resume("out")
    assert last.exit_code == 0 and last.stdout.count("passed before with the same inputs") == 2


def test_a_run_that_is_going_on_is_refused(project):
    record = {"labs": ["01_first"], "preset": "lab", "device": "auto", "parameters": {}}
    with locked(project / "out", "a run"):
        (project / "out" / "run.json").write_text(json.dumps(record))
        for done in (resume("out"), labkit("run", "--preset", "lab", "--out", "out")):
            assert done.exit_code == 2
            assert f"/out is in use by a run, process {os.getpid()} on " in done.stderr
            names = sorted(path.name for path in (project / "out").iterdir())
            assert names == [".lock", "run.json"]


def test_resume_and_out_do_not_go_together(tmp_path):
    done = resume(tmp_path, "--out", str(tmp_path))
    assert (done.exit_code, "--resume" in done.stderr) == (2, True)
