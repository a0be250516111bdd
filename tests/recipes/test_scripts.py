"""scripts/resnet50 and scripts/subspace: what they start, their usage, and their exit codes.

Python and msrun are stand-ins that write down how they were called; that two ranks train is in
test_on_ranks.py, and real calls are below.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.shell_scripts import (
    FAKE,
    SIGNALS,
    assert_executable_and_posix,
    assert_nothing_stays,
    wait_until,
)

SCRIPTS = Path(__file__).parents[2] / "scripts"
STANDALONE, EVAL, DISTRIBUTE, ONE, TWO = NAMES = (
    "resnet50/run_standalone_train.sh",
    "resnet50/run_eval.sh",
    "resnet50/run_distribute_train.sh",
    "subspace/run_stage_1.sh",
    "subspace/run_stage_2.sh",
)


@pytest.fixture
def call(tmp_path):
    """A function that calls a script with stand-ins; it returns (what came back, the last call)."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("python", "msrun"):
        (programs / name).write_text(FAKE)
        (programs / name).chmod(0o755)
    (tmp_path / "my data").mkdir()
    for name in ("some.ckpt", "pca mat.npy"):
        (tmp_path / name).touch()

    def run(script, *arguments, **environment):
        own = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHON": str(programs / "python"),
            "CALLS": str(tmp_path / "calls"),
        }
        done = real(script, tmp_path, *arguments, env=own | environment)
        calls = tmp_path / "calls"
        return done, calls.read_text().splitlines()[-1] if calls.exists() else None

    return run


def real(script, folder, *arguments, env=None, **options):
    """Call a script with the programs of ``env``, by default this Python's."""
    return subprocess.run(
        ["sh", SCRIPTS / script, *map(str, arguments)],
        cwd=folder,
        env=env or os.environ | {"PYTHON": sys.executable} | options,
        capture_output=True,
        text=True,
        timeout=120,
    )


def msrun(devices, recipe, logs, port=8118):
    return (
        f"msrun --worker_num {devices} --local_worker_num {devices} --join True --log_dir {logs} "
        f"--master_port {port} python -m labkit.recipes.{recipe} train --dataset_path my data "
        f"--run_distribute True --device_num {devices}"
    )


ALONE = "python -m labkit.recipes."
LOGS = "runs/subspace/subspace_stage_{}-log"
CHECKPOINT = " --set pretrained_weight_path=some.ckpt"
CALLS = {
    "alone": (
        (STANDALONE, "my data", "--set", "lr=0.1", "--resume"),
        {},
        f"{ALONE}resnet50 train --dataset_path my data --set lr=0.1 --resume",
    ),
    "evaluation": (
        (EVAL, "my data", "some.ckpt", "--device_target", "CPU"),
        {},
        f"{ALONE}resnet50 eval --dataset_path my data --checkpoint_path some.ckpt "
        "--device_target CPU",
    ),
    "several": (
        (DISTRIBUTE, "8", "my data", "--set", "batch_size=32"),
        {},
        msrun(8, "resnet50", "runs/resnet50-log") + " --set batch_size=32",
    ),
    "port and logs": (
        (DISTRIBUTE, 2, "my data"),
        {"MASTER_PORT": "9000", "LOG_DIR": "a log"},
        msrun(2, "resnet50", "a log", 9000),
    ),
    "the tutorial's stage one": (
        (ONE, "my data"),
        {},
        msrun(8, "subspace_stage_1", LOGS.format(1)),
    ),
    "stage one on two": (
        (ONE, "my data", "--resume"),
        {"DEVICES": "2", "MASTER_PORT": "9000"},
        msrun(2, "subspace_stage_1", LOGS.format(1), 9000) + " --resume",
    ),
    "the tutorial's stage two": (
        (TWO, "my data", "some.ckpt"),
        {},
        msrun(8, "subspace_stage_2", LOGS.format(2)) + CHECKPOINT,
    ),
    "with a basis": (
        (TWO, "my data", "some.ckpt", "pca mat.npy", "--set", "trials=2"),
        {},
        msrun(8, "subspace_stage_2", LOGS.format(2))
        + f"{CHECKPOINT} --set pca_mat_path=pca mat.npy --set trials=2",
    ),
    "stage two alone": (
        (TWO, "my data", "some.ckpt", "--set", "seed=2"),
        {"DEVICES": "1"},
        f"{ALONE}subspace_stage_2 train --dataset_path my data{CHECKPOINT} --set seed=2",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_what_is_started(call, tmp_path, case):
    arguments, environment, expected = CALLS[case]
    done, command = call(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    assert command == expected
    if command.startswith("msrun"):
        logs = command.partition("--log_dir ")[2].partition(" --master")[0]
        assert (tmp_path / logs / "msrun.log").exists()


def test_a_failure_is_handed_on_and_says_where_to_look(call):
    done, _ = call(DISTRIBUTE, 2, "my data", CODE="7")
    assert done.returncode == 7 and "failed; the logs are in runs/resnet50-log" in done.stderr
    done, _ = call(ONE, "my data", CODE="7", DEVICES="2")
    assert done.returncode == 7 and f"failed; the logs are in {LOGS.format(1)}" in done.stderr
    assert call(STANDALONE, "my data", CODE="3")[0].returncode == 3
    assert call(ONE, "my data", CODE="3", DEVICES="1")[0].returncode == 3


@pytest.mark.parametrize("end", [*SIGNALS, 0, 7], ids=str)
@pytest.mark.parametrize("script", [STANDALONE, DISTRIBUTE])
def test_nothing_that_they_started_stays(tmp_path, script, end):
    arguments = [tmp_path] if script == STANDALONE else [2, tmp_path]
    ends = {"by": end} if end in SIGNALS else {"code": end}
    assert_nothing_stays(SCRIPTS / script, arguments, tmp_path, **ends)


# A recipe whose training only waits; its exit is 0.3 s of work, as of a checkpoint being written.
WAITING = """#!{python}
import pathlib, time
from labkit.recipes.recipe import Recipe
from labkit.recipes.resnet50_config import Config

class Waiting(Recipe):
    def train(self, *arguments, **options):
        try:
            pathlib.Path("started").touch()
            time.sleep(60)
        finally:
            time.sleep(0.3)
            pathlib.Path("finally").touch()

recipe = Waiting(name="waiting", description="", named={{"": Config()}}, build_step=None)
recipe.main(["train", "--dataset_path", "."])
"""


# As msrun, which kills its ranks where it hears SIGINT.
RANKS = """#!{python}
import pathlib, signal, subprocess, sys
rank = subprocess.Popen([{python!r}, "waiting"], start_new_session=True)
signal.signal(signal.SIGINT, lambda *_: rank.kill())
rank.wait()
"""


INT, TERM = signal.SIGINT, signal.SIGTERM
SENT = [(INT, True, []), (INT, False, ["2"]), (TERM, True, ["2"]), (TERM, False, [])]
REST = [(INT, True, ["2"]), (INT, False, []), (TERM, True, []), (TERM, False, ["2"])]


@pytest.mark.parametrize(
    ("by", "group", "ranks"), SENT + [pytest.param(*sent, marks=pytest.mark.slow) for sent in REST]
)
def test_what_python_does_finally_is_done(tmp_path, by, group, ranks):
    """^C, or a signal to the script alone: a kill at once left a locked folder behind."""
    for name, text in (("waiting", WAITING), ("msrun", RANKS)):
        (tmp_path / name).write_text(text.format(python=sys.executable))
        (tmp_path / name).chmod(0o755)
    process = subprocess.Popen(
        ["sh", SCRIPTS / (DISTRIBUTE if ranks else STANDALONE), *ranks, "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": str(tmp_path / "waiting")},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in SIGNALS],
    )
    wait_until((tmp_path / "started").exists)
    (os.killpg if group else os.kill)(process.pid, by)
    assert process.wait(60) == -by
    assert (tmp_path / "finally").exists()


@pytest.mark.parametrize("path", ["", ":", "/nowhere::/other"])
def test_no_module_is_taken_from_the_working_folder(tmp_path, path):
    """A downloaded folder with a signal.py: in a real Python, up to the recipe's own words."""
    for name in ("signal", "torch", "argparse", "labkit"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    done = real(STANDALONE, tmp_path, ".", "--set", "no_such=1", PYTHONPATH=path)
    assert done.returncode == 2 and "resnet50: unknown setting" in done.stderr, done.stderr
    assert not (tmp_path / "executed").exists()


WRONG = [
    (STANDALONE, [], {}, "expected a folder"),
    (STANDALONE, ["none"], {}, "none is no folder"),
    (STANDALONE, ["--set", "lr=1"], {}, "--set is no folder"),
    (EVAL, ["my data"], {}, "expected a folder and a checkpoint"),
    (EVAL, ["my data", "none.ckpt"], {}, "none.ckpt is no file"),
    (EVAL, ["some.ckpt", "my data"], {}, "some.ckpt is no folder"),
    (DISTRIBUTE, ["my data"], {}, "expected a number of devices and a folder"),
    (DISTRIBUTE, ["8", "none"], {}, "none is no folder"),
    *(
        (DISTRIBUTE, [devices, "my data"], {}, f"DEVICES is '{devices}'")
        for devices in ("0", "", "-1", "2x", "08", "my data")
    ),
    (ONE, [], {}, "expected a folder"),
    (ONE, ["none"], {}, "none is no folder"),
    (TWO, ["my data"], {}, "expected a folder and a checkpoint"),
    (TWO, ["none", "some.ckpt"], {}, "none is no folder"),
    (TWO, ["my data", "none.ckpt"], {}, "none.ckpt is no file"),
    (TWO, ["my data", "some.ckpt", "none.npy"], {}, "none.npy is no file"),
    *((ONE, ["my data"], {"DEVICES": n}, f"DEVICES is '{n}'") for n in ("0", "", "two")),
]


@pytest.mark.parametrize(("script", "arguments", "environment", "message"), WRONG)
def test_wrong_arguments(call, tmp_path, script, arguments, environment, message):
    done, command = call(script, *arguments, **environment)
    assert (done.returncode, done.stdout, command) == (2, "", None)
    assert message in done.stderr and f"usage: {Path(script).name} " in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("script", NAMES)
def test_they_are_executable_and_posix(script):
    assert_executable_and_posix(SCRIPTS / script)


@pytest.mark.parametrize("script", [EVAL, TWO])
def test_bad_data_is_refused_by_the_real_program(tmp_path, script):
    (tmp_path / "bad.ckpt").write_text("no checkpoint")
    (tmp_path / "0").mkdir()
    done = real(script, tmp_path, tmp_path, tmp_path / "bad.ckpt", DEVICES="1")
    assert done.returncode == 2 and "0 is an empty class folder" in done.stderr, done.stderr


@pytest.mark.slow
def test_ranks_are_really_started(tmp_path):
    (tmp_path / "0").mkdir()
    done = real(DISTRIBUTE, tmp_path, "2", tmp_path, MASTER_PORT=str(free_port()))
    # The first rank to find it ends the others, which may not have said anything yet.
    logs = (tmp_path / "runs" / "resnet50-log").glob("worker_*.log")
    said = done.stdout + "".join(log.read_text(errors="replace") for log in logs)
    assert done.returncode != 0 and "0 is an empty class folder" in said
    assert "rank 0 of 2" in said or "rank 1 of 2" in said
