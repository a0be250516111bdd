"""scripts/resnet50: what they start, their usage, and their exit codes.

Python and msrun are stand-ins that write down how they were called; that two ranks train is in
recipes/test_resnet50_on_ranks.py, and one real call of each command is below.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.ranks.plan import free_port
from tests.support.shell_scripts import (
    FAKE,
    SIGNALS,
    assert_executable_and_posix,
    assert_nothing_stays,
)

FOLDER = Path(__file__).parents[1] / "scripts" / "resnet50"
SCRIPTS = {
    "run_standalone_train.sh": 1,
    "run_eval.sh": 2,
    "run_distribute_train.sh": 2,
}


@pytest.fixture
def call(tmp_path):
    """A function that calls a script with stand-ins; it returns (what came back, the calls)."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("python", "msrun"):
        (programs / name).write_text(FAKE)
        (programs / name).chmod(0o755)
    (tmp_path / "my data").mkdir()
    (tmp_path / "some.ckpt").touch()

    def run(script, *arguments, **environment):
        done = subprocess.run(
            ["sh", FOLDER / script, *map(str, arguments)],
            cwd=tmp_path,
            env={
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "PYTHON": str(programs / "python"),
                "CALLS": str(tmp_path / "calls"),
            }
            | environment,
            capture_output=True,
            text=True,
        )
        calls = tmp_path / "calls"
        return done, calls.read_text().splitlines() if calls.exists() else []

    return run


def test_training_on_one_device(call):
    done, calls = call("run_standalone_train.sh", "my data", "--set", "lr=0.1", "--resume")
    assert done.returncode == 0 and calls == [
        "python -m labkit.recipes.resnet50 train --dataset_path my data --set lr=0.1 --resume"
    ]


def test_evaluation(call):
    done, calls = call("run_eval.sh", "my data", "some.ckpt", "--device_target", "CPU")
    assert done.returncode == 0 and calls == [
        "python -m labkit.recipes.resnet50 eval --dataset_path my data --checkpoint_path some.ckpt "
        "--device_target CPU"
    ]


def test_training_on_several(call, tmp_path):
    done, calls = call("run_distribute_train.sh", "8", "my data", "--set", "batch_size=32")
    assert done.returncode == 0, done.stderr
    assert calls == [
        "msrun --worker_num 8 --local_worker_num 8 --join True --log_dir runs/resnet50-log "
        "--master_port 8118 python -m labkit.recipes.resnet50 train --dataset_path my data "
        "--run_distribute True --device_num 8 --set batch_size=32"
    ]
    assert (tmp_path / "runs" / "resnet50-log" / "msrun.log").exists()


def test_port_and_logs_can_be_chosen(call, tmp_path):
    _, calls = call("run_distribute_train.sh", 2, "my data", MASTER_PORT="9000", LOG_DIR="a log")
    assert "--log_dir a log --master_port 9000 " in calls[0] and (tmp_path / "a log").is_dir()


def test_a_failure_is_handed_on_and_says_where_to_look(call):
    done, _ = call("run_distribute_train.sh", 2, "my data", CODE="7")
    assert done.returncode == 7 and "failed; the logs are in runs/resnet50-log" in done.stderr
    assert call("run_standalone_train.sh", "my data", CODE="3")[0].returncode == 3


@pytest.mark.parametrize("end", [*SIGNALS, 0, 7], ids=str)
@pytest.mark.parametrize("script", SCRIPTS)
def test_nothing_that_they_started_stays(tmp_path, script, end):
    (tmp_path / "some.ckpt").touch()
    arguments = {
        "run_standalone_train.sh": [tmp_path],
        "run_eval.sh": [tmp_path, "some.ckpt"],
        "run_distribute_train.sh": [2, tmp_path],
    }
    ends = {"by": end} if end in SIGNALS else {"code": end}
    assert_nothing_stays(FOLDER / script, arguments[script], tmp_path, **ends)


# A recipe whose training only waits; its exit is 0.3 s of work, as of a checkpoint being written.
WAITING = """#!{python}
import pathlib, time
from labkit.recipes import command, resnet50_config

def train(*arguments, **options):
    try:
        pathlib.Path("started").touch()
        time.sleep(60)
    finally:
        time.sleep(0.3)
        pathlib.Path("finally").touch()

command.run(["train", "--dataset_path", "."], name="waiting", description="",
    named={{"": resnet50_config.Config()}}, train=train, evaluate=None)
"""


# As msrun, which kills its ranks where it hears SIGINT.
RANKS = """#!{python}
import pathlib, signal, subprocess, sys
rank = subprocess.Popen([{python!r}, "waiting"], start_new_session=True)
signal.signal(signal.SIGINT, lambda *_: rank.kill())
rank.wait()
"""


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM], ids=str)
@pytest.mark.parametrize("group", [True, False], ids=["key", "kill"])
@pytest.mark.parametrize("ranks", [[], ["2"]], ids=["alone", "ranks"])
def test_what_python_does_finally_is_done(tmp_path, by, group, ranks):
    """^C, or a signal to the script alone: a kill at once left a locked folder behind."""
    for name, text in (("waiting", WAITING), ("msrun", RANKS)):
        (tmp_path / name).write_text(text.format(python=sys.executable))
        (tmp_path / name).chmod(0o755)
    script = "run_distribute_train.sh" if ranks else "run_standalone_train.sh"
    process = subprocess.Popen(
        ["sh", FOLDER / script, *ranks, "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": str(tmp_path / "waiting")},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: [signal.signal(one, signal.SIG_DFL) for one in SIGNALS],
    )
    until = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    (os.killpg if group else os.kill)(process.pid, by)
    assert process.wait(60) == -by
    assert (tmp_path / "finally").exists()


@pytest.mark.parametrize("path", ["", ":", ":/nowhere", "/nowhere:", "/nowhere::/other"])
def test_no_module_is_taken_from_the_working_folder(tmp_path, path):
    """A downloaded folder with a signal.py: in a real Python, up to the recipe's own words."""
    for name in ("signal", "torch", "argparse", "labkit"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    done = subprocess.run(
        ["sh", FOLDER / "run_standalone_train.sh", ".", "--set", "no_such=1"],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": sys.executable, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "resnet50: unknown setting" in done.stderr, done.stderr
    assert not (tmp_path / "executed").exists()


WRONG = [
    ("run_standalone_train.sh", [], "expected a folder"),
    ("run_standalone_train.sh", ["none"], "none is no folder"),
    ("run_standalone_train.sh", ["--set", "lr=1"], "--set is no folder"),
    ("run_eval.sh", ["my data"], "expected a folder and a checkpoint"),
    ("run_eval.sh", ["my data", "none.ckpt"], "none.ckpt is no file"),
    ("run_eval.sh", ["some.ckpt", "my data"], "some.ckpt is no folder"),
    ("run_distribute_train.sh", ["my data"], "expected a number of devices and a folder"),
    ("run_distribute_train.sh", ["8", "none"], "none is no folder"),
    *(
        ("run_distribute_train.sh", [devices, "my data"], f"DEVICES is '{devices}'")
        for devices in ("0", "", "-1", "two", "2x", "08", "my data")
    ),
]


@pytest.mark.parametrize(("script", "arguments", "message"), WRONG)
def test_wrong_arguments(call, tmp_path, script, arguments, message):
    done, calls = call(script, *arguments)
    assert (done.returncode, done.stdout, calls) == (2, "", [])
    assert message in done.stderr and f"usage: {script} " in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("script", SCRIPTS)
def test_they_are_executable_and_posix(script):
    assert_executable_and_posix(FOLDER / script)


def test_a_checkpoint_that_is_none_is_refused_by_the_real_program(tmp_path):
    (tmp_path / "bad.ckpt").write_text("no checkpoint")
    (tmp_path / "0").mkdir()
    arguments = [FOLDER / "run_eval.sh", tmp_path, tmp_path / "bad.ckpt"]
    done = subprocess.run(
        ["sh", *map(str, arguments)],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "0 is an empty class folder" in done.stderr


@pytest.mark.slow
def test_ranks_are_really_started(tmp_path):
    (tmp_path / "0").mkdir()
    arguments = [FOLDER / "run_distribute_train.sh", "2", tmp_path]
    done = subprocess.run(
        ["sh", *map(str, arguments)],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": sys.executable, "MASTER_PORT": str(free_port())},
        capture_output=True,
        text=True,
        timeout=120,
    )
    # The first rank to find it ends the others, which may not have said anything yet.
    logs = (tmp_path / "runs" / "resnet50-log").glob("worker_*.log")
    said = done.stdout + "".join(log.read_text(errors="replace") for log in logs)
    assert done.returncode != 0 and "0 is an empty class folder" in said
    assert "rank 0 of 2" in said or "rank 1 of 2" in said
