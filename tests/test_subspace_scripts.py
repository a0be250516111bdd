"""scripts/subspace: the tutorial's two commands, what they start, their usage and exit codes.

Python and msrun are stand-ins that write down how they were called; that two ranks train is in
recipes/test_subspace_on_ranks.py, and one real call is below.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.shell_scripts import (
    FAKE,
    SIGNALS,
    assert_executable_and_posix,
    assert_nothing_stays,
)

FOLDER = Path(__file__).parents[1] / "scripts" / "subspace"
ONE, TWO = "run_stage_1.sh", "run_stage_2.sh"


@pytest.fixture
def call(tmp_path):
    """A function that calls a script with stand-ins; it returns (what came back, the calls)."""
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
        done = subprocess.run(
            ["sh", FOLDER / script, *arguments],
            cwd=tmp_path,
            env=own | environment,
            capture_output=True,
            text=True,
        )
        calls = tmp_path / "calls"
        return done, calls.read_text().splitlines() if calls.exists() else []

    return run


def msrun(devices, recipe, port=8118):
    return (
        f"msrun --worker_num {devices} --local_worker_num {devices} --join True --log_dir "
        f"runs/subspace/{recipe}-log --master_port {port} python -m labkit.recipes.{recipe} train "
        f"--dataset_path my data --run_distribute True --device_num {devices}"
    )


def test_the_tutorials_commands_are_for_eight_devices(call, tmp_path):
    done, calls = call(ONE, "my data")
    assert done.returncode == 0, done.stderr
    assert calls == [msrun(8, "subspace_stage_1")]
    assert (tmp_path / "runs/subspace/subspace_stage_1-log/msrun.log").exists()
    _, calls = call(TWO, "my data", "some.ckpt")
    given = " --set pretrained_weight_path=some.ckpt"
    assert calls[1] == msrun(8, "subspace_stage_2") + given
    _, calls = call(TWO, "my data", "some.ckpt", "pca mat.npy", "--set", "trials=2")
    given += " --set pca_mat_path=pca mat.npy --set trials=2"
    assert calls[2] == msrun(8, "subspace_stage_2") + given


def test_other_numbers_of_devices(call):
    _, calls = call(ONE, "my data", "--resume", DEVICES="2", MASTER_PORT="9000")
    assert calls == [msrun(2, "subspace_stage_1", 9000) + " --resume"]
    _, calls = call(TWO, "my data", "some.ckpt", "--set", "seed=2", DEVICES="1")
    assert calls[1] == (
        "python -m labkit.recipes.subspace_stage_2 train --dataset_path my data --set "
        "pretrained_weight_path=some.ckpt --set seed=2"
    )


@pytest.mark.parametrize("devices", ["1", "2"])
def test_a_failure_is_handed_on(call, devices):
    done, _ = call(ONE, "my data", CODE="7", DEVICES=devices)
    assert done.returncode == 7
    said = "failed; the logs are in runs/subspace/subspace_stage_1-log" in done.stderr
    assert said == (devices == "2")


@pytest.mark.parametrize("end", [*SIGNALS, 0, 7], ids=str)
@pytest.mark.parametrize("devices", ["1", "2"])
def test_nothing_that_they_started_stays(tmp_path, devices, end):
    (tmp_path / "some.ckpt").touch()
    ends = {"by": end} if end in SIGNALS else {"code": end}
    arguments = [tmp_path, "some.ckpt"]
    assert_nothing_stays(FOLDER / TWO, arguments, tmp_path, DEVICES=devices, **ends)


WRONG = [
    (ONE, [], {}, "expected a folder"),
    (ONE, ["none"], {}, "none is no folder"),
    (TWO, ["my data"], {}, "expected a folder and a checkpoint"),
    (TWO, ["none", "some.ckpt"], {}, "none is no folder"),
    (TWO, ["my data", "none.ckpt"], {}, "none.ckpt is no file"),
    (TWO, ["my data", "some.ckpt", "none.npy"], {}, "none.npy is no file"),
    *((ONE, ["my data"], {"DEVICES": n}, f"DEVICES is '{n}'") for n in ("0", "", "-1", "two")),
]


@pytest.mark.parametrize(("script", "arguments", "environment", "message"), WRONG)
def test_wrong_arguments(call, tmp_path, script, arguments, environment, message):
    done, calls = call(script, *arguments, **environment)
    assert (done.returncode, done.stdout, calls) == (2, "", [])
    assert message in done.stderr and f"usage: {script} " in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("script", [ONE, TWO])
def test_they_are_executable_and_posix(script):
    assert_executable_and_posix(FOLDER / script)


def test_a_checkpoint_that_is_none_is_refused_by_the_real_program(tmp_path):
    (tmp_path / "bad.ckpt").write_text("no checkpoint")
    (tmp_path / "0").mkdir()
    done = subprocess.run(
        ["sh", FOLDER / TWO, tmp_path, tmp_path / "bad.ckpt"],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": sys.executable, "DEVICES": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "subspace_stage_2: " in done.stderr and "0 is an empty class folder" in done.stderr
