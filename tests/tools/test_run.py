"""`labkit run`: results, parameters, failures, limits, resuming, and what is refused."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from labkit.base.files import locked
from labkit.errors import InputError
from labkit.labs.presets import LABS
from labkit.tools.run import jobs_of, tasks, values
from tests.support.lab_projects import write_lab
from tests.support.living import wait_until
from tests.support.trainings import ROOT

pytestmark = pytest.mark.usefixtures("project")


@pytest.mark.parametrize(
    ("words", "preset", "rate"),
    [
        (["-p", "rate=-1e-3"], "lab", -1e-3),
        (["-p", "sizes", "010", "--parameter", "rate", "-2"], "lab", -2),
        (["-f", "some.yaml"], "smoke", 2),
        (["-f", "some.yaml", "--preset", "lab", "-p", "rate=3"], "lab", 3),
    ],
)
def test_where_parameters_come_from(call, monkeypatch, project, words, preset, rate):
    """And a folder of home, a run that is resumed there, and the preset of the environment."""
    (project / "some.yaml").write_text("rate: 2\npreset: smoke\n")
    (project / "mine.ipynb").write_bytes((project / "notebooks/01_one.ipynb").read_bytes())
    monkeypatch.setenv("HOME", str(project / "home"))
    startup = project / "home/.ipython/profile_default/startup/own.py"
    startup.parent.mkdir(parents=True)
    startup.write_text("Run = print = None")  # of their own notebooks: it does not come here
    monkeypatch.setenv("LABKIT_PRESET", "lab")
    assert call("run", "mine.ipynb", *words, "--out", "~/r")[0] == 0
    held = json.loads((project / "home/r/mine/results.json").read_text())
    asked = {name: held["requested"].get(name) for name in ("preset", "device", "rate")}
    assert asked == {"preset": preset, "device": "auto", "rate": rate}
    monkeypatch.setenv("LABKIT_PRESET", "paper")
    code, out, _ = call("run", "--resume", project / "home/r")
    assert code == 0 and "mine: passed before" in out


def test_a_failing_lab_is_named_with_its_cell_and_the_others_go_on(call, results, project):
    (project / "r").mkdir()
    (project / "r/03_hangs").write_text("a file, and no folder")
    code, out, err = call("run", "03,02,01", "--out", "r", "--jobs", "1", "-p", "rate=010")
    assert code == 1 and "02_fails rate=10 failed in cell 5: ValueError: of this cell" in err
    assert "03_hangs rate=10 failed outside its cells: OSError" in err
    assert "labkit run --resume r goes on" in err
    error = results("r", "02_fails")["error"]
    assert (error["name"], error["cell"], error["cause"]) == ("ValueError", 5, "exception")
    line = next(line for line in out.splitlines() if line.startswith("01_one  "))
    assert "doubled 20" in line and out.endswith("results are in r\n")
    held = results("r", "01_one")
    assert held["status"] == "passed" and held["metrics"] == {"doubled": 20, "word": "w"}
    assert held["peak_memory_mb"] > 20 and held["total_seconds"] > 0
    before = (project / "r/01_one/01_one.ipynb").stat().st_mtime_ns
    code, out, _ = call("run", "--resume", "r")
    assert code == 1 and "01_one: passed before with the same parameters" in out
    assert (project / "r/01_one/01_one.ipynb").stat().st_mtime_ns == before
    code, out, _ = call("run", "01", "--resume", "r", "-p", "rate=2", "--json")
    made = json.loads(out)  # one object and nothing else
    assert made["exit"] == code == 0 and made["labs"][0]["metrics"]["doubled"] == 4


@pytest.mark.parametrize(
    ("source", "limit", "cause"),
    [
        ("import time; time.sleep(300)", ("--timeout", "5"), "timeout"),
        ("x = bytearray(10**9); import time; time.sleep(60)", ("--memory", "0.5"), "memory"),
        ("import os; os._exit(3)", (), "died"),
    ],
)
def test_a_lab_that_exceeds_a_limit_or_dies(call, results, project, source, limit, cause):
    write_lab(project, "04_own", source)
    began = time.monotonic()
    code, _, err = call("run", "04", *limit, "--out", "r")
    assert code == 1 and time.monotonic() - began < 60
    assert "04_own failed outside its cells" in err
    assert results("r", "04_own")["error"]["cause"] == cause


def test_an_error_without_output_fails_too(call, project):
    """rich's tracebacks, for one, leave none in the notebook."""
    quiet = "get_ipython().set_custom_exc((ValueError,), lambda *_, **__: None)"
    write_lab(project, "04_own", quiet, "raise ValueError")
    assert call("run", "04", "--out", "r")[0] == 1


def test_ctrl_c_ends_the_kernels_and_is_130(project, results):
    command = [sys.executable, "-m", "labkit.tools.cli", "run", "03", "--out", "r"]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    process = psutil.Popen(command, cwd=project, env=variables, stdout=subprocess.PIPE)
    started = []
    try:
        wait_until(lambda: len(process.children(recursive=True)) > 1, 60)  # papermill, the kernel
        started = process.children(recursive=True)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[0].decode()
        assert process.returncode == 130
        assert "03_hangs  interrupted" in said  # the closing table
        assert psutil.wait_procs(started, 10)[1] == []
    finally:
        for each in (process, *started):
            with suppress(psutil.NoSuchProcess):
                each.kill()
    assert results("r", "03_hangs")["status"] == "interrupted"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run oen", "unknown lab 'oen'; expected one of: 01_one, 02_fails, 03_hangs. Did you mean"),
        ("run 01 copies/01_one.ipynb", "LAB: expected one notebook called 01_one, got two"),
        ("run none.ipynb", "cannot read the notebook"),
        ("run copies/odd.ipynb", "odd.ipynb: expected assignments in Python, got 'rate = ("),
        ("run 01 --preset smok", "unknown preset 'smok'"),
        ("run 01 --device TPU", "unknown device 'TPU'"),
        ("run 01 -p rte=1", "unknown parameter of lab 01_one 'rte'"),
        ("run 01 -p rate=1 -p rate=2", "expected each parameter once, got 'rate' twice"),
        ("run 01 -p rate=", "or -p data=FOLDER, got 'rate='"),
        ("run 01 -p rate --json", "-p: expected NAME=VALUE, as in -p epochs=2 or"),
        ("run 01 -p preset=lab", "Use --preset lab"),
        ("run 01 -p rate=[1", "-p rate=[1: not YAML"),
        ("run 01 --out ''", "--out: expected a folder of this machine, got ''"),
        ("run 01 --out s3://bucket/x", "--out: expected a folder of this machine"),
        ("run 01 -f ''", "expected a path on this machine, got ''"),
        ("run 01 --resume ''", "--resume: expected a path on this machine, got ''"),
        ("run 's3://b/01_one.ipynb'", "LAB: expected a path on this machine, got 's3://b/01_one"),
        ("report ''", "RUN: expected a path on this machine"),
        ("report done --out ''", "--out: expected a path on this machine"),
        ("lab --no-server 1 --folder ''", "--folder: expected a path on this machine"),
        ("convert hf://x.pth x.ckpt", "SOURCE: expected a path on this machine"),
        ("run 01 --out done", "done holds a run; expected a new folder, or --resume"),
        ("run 01 --out used", "is in use by another process: a run writes there"),
        ("run 01 --resume done --out x", "expected none beside --resume"),
        ("run --resume none", "--resume: none holds no run"),
        ("run --resume done", "done holds no run (run.json lists no labs)"),
        ("run 01 -f none.yaml", "none.yaml cannot be read"),
        ("sweep 01", "expected at least one parameter"),
        ("sweep 01 -p rate=1,,2", "-p rate=1,,2: expected values separated by commas"),
        ("report notebooks", "notebooks holds no run"),
        ("report done ./done", "RUN: expected different runs"),
        ("lab --no-server 7", "unknown lab '7'"),
        ("lab --no-server 1,2", "LAB: expected one lab"),
        ("lab --no-server 1 --folder notebooks", "a folder of your own"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_made(call, project, words, message):
    copies = shutil.copytree(project / "notebooks", project / "copies")
    odd = (copies / "01_one.ipynb").read_text().replace("rate = None", "rate = (")
    (copies / "odd.ipynb").write_text(odd)
    for name, text in {"run.json": "{}", "01/results.json": '{"lab": "01"}'}.items():
        (project / "done" / name).parent.mkdir(parents=True, exist_ok=True)
        (project / "done" / name).write_text(text)
    with locked(project / "used", "a run"):
        before = sorted(project.rglob("*"))
        code, _, err = call(*shlex.split(words))
        assert code == 2 and message in err and err.count("\n") == 1
        assert sorted(project.rglob("*")) == before


def test_a_bad_notebook_stops_no_other_lab(call, project, results):
    for name in ("02_fails", "03_hangs"):
        (project / f"notebooks/{name}.ipynb").unlink()
    (project / "notebooks/00_empty.ipynb").write_text("")
    untagged = (project / "notebooks/01_one.ipynb").read_text().replace('"parameters"', "")
    (project / "notebooks/08_untagged.ipynb").write_text(untagged)
    (project / "notebooks/09_null.ipynb").write_text('{"cells": [], "metadata": null}')
    code, out, _ = call("list")
    assert code == 0 and out.count("\n") == 5 and "cannot read the notebook" in out
    code, _, err = call("run", "--out", "r")
    assert code == 1 and results("r", "01_one")["status"] == "passed"
    assert "00_empty failed outside its cells" in err and "08_untagged failed" in err
    code, out, _ = call("run", "--resume", "r")
    assert code == 1 and "01_one: passed before" in out
    for words in (("run", "00"), ("sweep", "08", "-p", "rate=1"), ("lab", "--no-server", "00")):
        assert call(*words)[0] == 2, words
    (project / "r/01_one/01_one.ipynb").write_text("{")
    assert call("report", "r")[0] == 0
    assert "cannot be shown" in next((project / "r").glob("report_notebooks/*")).read_text()
    assert call("lab", "--no-server", "01")[1].count(": copied") == 3
    assert not (project / "work/00_empty.ipynb").exists()


def test_a_folder_of_data_is_found_before_anything_starts(call, project, monkeypatch):
    """From the working folder, where the user is, and not from the notebook's."""
    monkeypatch.setitem(LABS, "01_one", {"lab": {"data": ""}})
    path = project / "notebooks/01_one.ipynb"
    path.write_text(path.read_text().replace("rate = None", "data = rate = None"))
    code, _, err = call("run", "01", "-p", "data=none/set", "--out", "r")
    assert code == 2 and "none/set, which is none" in err and not (project / "r").exists()
    (project / "set #2").mkdir()
    monkeypatch.setenv("HOME", str(project))
    for text, found in {"set #2": str(project / "set #2"), "~/": str(project)}.items():
        assert tasks(["01"], values([f"data={text}"]))[0].asked["data"] == found
    with pytest.raises(InputError, match="data: expected the path of a folder.*got None"):
        tasks(["01"], values(["data=~"]))  # YAML's null


@pytest.mark.parametrize("words", ["list", "--help", "run --help", "report done"])
@pytest.mark.parametrize(("place", "code"), [("> /dev/full", 2), (">&-", 0), ("| true", 0)])
def test_standard_output_that_is_full_or_closed_is_no_traceback(project, words, place, code):
    """A reader that has gone needs no message."""
    (project / "done").mkdir()
    (project / "done/results.json").write_text('{"lab": "01"}')
    python = f"PYTHONUNBUFFERED= PYTHONPATH={ROOT} {sys.executable}"
    command = f"{python} -m labkit.tools.cli {words} {place}"
    done = subprocess.run(command, shell=True, cwd=project, capture_output=True, text=True)
    said = "labkit: [Errno 28] No space left on device\n" if code else ""
    assert (done.returncode, done.stderr) == (code, said)


def test_how_many_run_at_once(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("labkit.base.machine.free_memory", lambda: 7e9)
    assert jobs_of(None, "lab", "auto", 9) == 2  # as memory allows
    assert jobs_of(None, "paper", "auto", 9) == jobs_of(None, "lab", "Ascend", 9) == 1
    assert jobs_of(8, "lab", "auto", 3) == 3
