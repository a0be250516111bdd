"""`labkit run`: results, parameters, failures, limits, resuming, and what is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from labkit.tools.run import jobs_of
from tests.support.living import MARK, kill_marked, marked, wait_until
from tests.support.trainings import ROOT

pytestmark = pytest.mark.usefixtures("project")


def test_a_lab_that_passes(call, results, project):
    code, out, err = call("run", "01", "--preset", "smoke", "-p", "rate=010", "--out", "r")
    assert (code, err) == (0, "")
    assert "01_one: passed after" in out
    line = next(line for line in out.splitlines() if line.startswith("01_one  "))
    assert "doubled 20" in line and line.endswith("  r/01_one/01_one.ipynb")
    held = results("r", "01_one")
    assert held["status"] == "passed" and held["metrics"] == {"doubled": 20, "word": "w"}
    assert held["requested"] == {"preset": "smoke", "device": "auto", "rate": 10}
    assert held["peak_memory_mb"] > 20 and held["total_seconds"] > 0
    assert (project / "r/01_one/01_one.ipynb").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["-q", "01", "-p", "rate", "-1e-3"],
        ["-p", "rate", "-1e-3", "01"],
        ["01", "-f", "some.yaml"],
        ["01", "-f", "some.yaml", "--preset", "lab", "-p", "rate=-1e-3"],
    ],
)
def test_papermills_own_forms(call, results, project, words):
    (project / "some.yaml").write_text("rate: -1e-3\npreset: smoke\n")
    assert call("run", *words, "--out", "r")[0] == 0
    asked = results("r", "01_one")["requested"]
    preset = "smoke" if words[-1] == "some.yaml" else "lab"
    assert asked == {"preset": preset, "device": "auto", "rate": -0.001}


def test_a_notebook_by_its_path_and_a_folder_of_home(call, monkeypatch, project):
    monkeypatch.setenv("HOME", str(project / "home"))
    (project / "mine.ipynb").write_bytes((project / "notebooks/01_one.ipynb").read_bytes())
    assert call("run", "mine.ipynb", "--out", "~/r")[0] == 0
    assert (project / "home/r/mine/results.json").exists()
    code, out, _ = call("run", "--resume", project / "home/r")
    assert code == 0 and "mine: passed before" in out


def test_labkit_preset_is_for_new_runs(call, monkeypatch, results):
    monkeypatch.setenv("LABKIT_PRESET", "smoke")
    call("run", "01", "--out", "r")
    assert results("r", "01_one")["preset"] == "smoke"
    monkeypatch.setenv("LABKIT_PRESET", "lab")
    assert "passed before" in call("run", "--resume", "r")[1]


def test_a_failing_lab_is_named_with_its_cell_and_the_others_go_on(call, results):
    code, out, err = call("run", "02,01", "--out", "r", "--jobs", "1")
    assert code == 1
    assert "02_fails failed in cell 4: ValueError: of this cell" in err
    assert "go on with: labkit run --resume r" in err
    error = results("r", "02_fails")["error"]
    assert (error["name"], error["cell"], error["cause"]) == ("ValueError", 4, "exception")
    assert results("r", "01_one")["status"] == "passed"


def test_a_lab_that_hangs_ends_at_its_limit(call, results):
    began = time.monotonic()
    code, _, err = call("run", "03", "--timeout", "5", "--out", "r")
    assert code == 1 and time.monotonic() - began < 30
    assert "03_hangs failed" in err and "took more than 5 s" in err
    assert results("r", "03_hangs")["error"]["cause"] == "timeout"


def test_a_lab_that_takes_too_much_memory(call, results, project):
    from tests.support.lab_projects import write_lab

    write_lab(project, "04_eats", "x = bytearray(10**9)", "import time; time.sleep(60)")
    assert call("run", "04", "--memory", "0.5", "--out", "r")[0] == 1
    assert results("r", "04_eats")["error"]["cause"] == "memory"


def test_what_has_passed_with_the_same_parameters_is_not_executed_again(call, project):
    call("run", "01", "02", "-p", "rate=1", "--out", "r")
    before = (project / "r/01_one/01_one.ipynb").stat().st_mtime_ns
    code, out, _ = call("run", "--resume", "r")
    assert code == 1 and "01_one: passed before with the same parameters" in out
    assert (project / "r/01_one/01_one.ipynb").stat().st_mtime_ns == before
    assert "passed before" not in call("run", "01", "--resume", "r", "-p", "rate=2")[1]


def test_json_is_one_object_at_the_end(call):
    code, out, _ = call("run", "01", "--json", "--out", "r")
    made = json.loads(out)
    assert made["exit"] == code == 0 and made["labs"][0]["lab"] == "01_one"


def test_ctrl_c_ends_the_kernels_and_is_130(project):
    """The lab is interrupted, and its folder says so."""
    command = [sys.executable, "-m", "labkit.tools.cli", "run", "03", "--out", "r"]
    variables = os.environ | {"PYTHONPATH": str(ROOT), MARK: str(project)}
    process = subprocess.Popen(
        command, cwd=project, env=variables, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        output = project / "r/03_hangs/03_hangs.ipynb"
        wait_until(lambda: output.exists() and "papermill" in output.read_text(), 60)
        os.kill(process.pid, signal.SIGINT)
        said = process.communicate(timeout=30)[0].decode()
        assert process.returncode == 130
        assert "03_hangs  interrupted" in said  # the closing table
        wait_until(lambda: marked(project) == [], 10)
    finally:
        kill_marked(project)
    held = json.loads((project / "r/03_hangs/results.json").read_text())
    assert held["status"] == "interrupted"


def test_a_run_in_use_is_refused(call, project):
    from labkit.base.files import locked

    with locked(project / "r", "a run"):
        code, _, err = call("run", "01", "--out", "r")
    assert code == 2 and "is in use by another process: a run writes there" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["09"], "unknown lab '09'"),
        (["oen"], "Did you mean 'one'?"),
        (["01", "copies/01_one.ipynb"], "LAB: expected one notebook called 01_one, got two"),
        (["none.ipynb"], "LAB: expected the path of a notebook that is there"),
        (["--preset", "smok"], "unknown preset 'smok'"),
        (["--device", "TPU"], "unknown device 'TPU'"),
        (["-p", "rte=1"], "unknown parameter of lab 01_one 'rte'"),
        (["-p", "rate=1", "-p", "rate=2"], "expected each parameter once, got 'rate' twice"),
        (["-p", "rate", "--quiet"], "-p: expected NAME=VALUE, as in -p epochs=2, got 'rate'"),
        (["-p", "preset=lab"], "Use --preset lab"),
        (["-p", "rate=[1"], "-p rate=[1: not YAML"),
        (["--out", ""], "--out: expected a folder of this machine, got ''"),
        (["--out", "s3://bucket/x"], "--out: expected a folder of this machine"),
        (["--resume", "none"], "--resume: none holds no run"),
        (["-f", "none.yaml"], "none.yaml cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_made(call, project, words, message):
    shutil.copytree(project / "notebooks", project / "copies")
    before = sorted(project.rglob("*"))
    code, out, err = call("run", *words, *([] if words[0][0] != "-" else ["01"]))
    assert code == 2 and message in err and err.count("\n") == 1
    assert sorted(project.rglob("*")) == before


def test_how_many_run_at_once(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("labkit.tools.run.free_memory", lambda: 7e9)
    assert jobs_of(None, "lab", "auto", 9) == 2  # as memory allows
    assert jobs_of(None, "paper", "auto", 9) == jobs_of(None, "lab", "Ascend", 9) == 1
    assert jobs_of(8, "lab", "auto", 3) == 3
