"""The scripts of the recipes: what they start, their usage, and their exit codes.

Python is a stand-in that records how it was called. Some tests below call the real one, and
test_on_ranks.py trains on two ranks.
"""

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from labkit.ranks import rank_table
from labkit.ranks.launch import free_port
from tests.support.living import wait_until

SCRIPTS = Path(__file__).parents[2] / "scripts"
STANDALONE, EVAL, DISTRIBUTE = (
    f"resnet50/run_{name}.sh" for name in ("standalone_train", "eval", "distribute_train")
)
STAGE_1, STAGE_2 = (f"subspace/run_stage_{number}.sh" for number in (1, 2))
THOR, THOR_GPU, THOR_EVAL, THOR_EVAL_GPU = (
    f"thor/run_{name}.sh"
    for name in ("distribute_train", "distribute_train_gpu", "eval", "eval_gpu")
)
NODES = [f"adasum/run_node{number}.sh" for number in (1, 2)]
# Stands in for python, and records how it was called.
FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
exit ${CODE:-0}
"""


@pytest.fixture
def call(tmp_path):
    """A function that calls a script with stand-ins and returns (its result, the last call)."""
    (tmp_path / "python").write_text(FAKE)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "pca mat.npy").touch()

    def run(script, *arguments, **environment):
        own = {"PYTHON": str(tmp_path / "python"), "CALLS": str(tmp_path / "calls")}
        own |= {"PATH": os.environ["PATH"]}
        done = real(script, tmp_path, *arguments, env=own | environment)
        calls = tmp_path / "calls"
        return done, calls.read_text().splitlines()[-1] if calls.exists() else None

    return run


def real(script, folder, *arguments, env=None, seconds=120, **options):
    """Call a script with the programs of ``env``, by default with this Python."""
    return subprocess.run(
        ["sh", SCRIPTS / script, *map(str, arguments)],
        cwd=folder,
        env=env or os.environ | {"PYTHON": sys.executable} | options,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


DATA, CHECKPOINT = " --data_path my data", " --checkpoint_path some.ckpt"
START = " --pretrained_weight_path some.ckpt"
TABLE = {"RANK_TABLE_FILE": "table.json", "LOG_DIR": "a log"}
# Arguments of the script, its environment, and what it starts after python -m labkit.recipes.
CALLS = [
    ((STANDALONE, "my data", "--lr", "0.1"), {}, f"train resnet50{DATA} --lr 0.1"),
    (
        (EVAL, "my data", "some.ckpt", "--seed", "2"),
        {},
        f"eval resnet50{DATA}{CHECKPOINT} --seed 2",
    ),
    ((DISTRIBUTE, "8", "my data", "--seed", "2"), {}, f"train resnet50{DATA} --seed 2 --ranks 8"),
    ((DISTRIBUTE, "1", "my data"), {}, f"train resnet50{DATA}"),
    (
        (DISTRIBUTE, 2, "my data"),
        {"MASTER_PORT": "9000", "LOG_DIR": "a log"},
        f"train resnet50{DATA} --ranks 2 --log_dir a log --master 127.0.0.1:9000",
    ),
    ((STAGE_1, "my data"), {}, f"train subspace-1{DATA} --ranks 8"),
    ((STAGE_1, "my data"), {"DEVICES": "2"}, f"train subspace-1{DATA} --ranks 2"),
    ((STAGE_2, "my data", "some.ckpt"), {}, f"train subspace-2{DATA}{START} --ranks 8"),
    (
        (STAGE_2, "my data", "some.ckpt", "pca mat.npy", "--trials", "2"),
        {"DEVICES": "1"},
        f"train subspace-2{DATA}{START} --pca_mat_path pca mat.npy --trials 2",
    ),
    (
        (THOR, "table.json", "my data"),
        {},
        f"train thor --rank_table table.json --node_rank 0{DATA}",
    ),
    (
        (THOR, "table.json", "my data", "my.yaml", "--seed", "2"),
        {"SERVER_ID": "1"},
        f"train thor --rank_table table.json --node_rank 1{DATA} --config my.yaml --seed 2",
    ),
    (
        (THOR_GPU, "my data", "my.yaml"),
        {},
        f"train thor --settings gpu{DATA} --config my.yaml --ranks 8",
    ),
    (
        (THOR_EVAL, "my data", "some.ckpt", "my.yaml"),
        {},
        f"eval thor{DATA}{CHECKPOINT} --config my.yaml",
    ),
    ((THOR_EVAL_GPU, "my data", "some.ckpt"), {}, f"eval thor --settings gpu{DATA}{CHECKPOINT}"),
    (
        (NODES[0], "my data", "--seed", "2"),
        {"MASTER": "10.0.0.1:8118"},
        f"train adasum --node_rank 0{DATA} --seed 2 --ranks 8 --nodes 2 --master 10.0.0.1:8118",
    ),
    (
        (NODES[1], "my data"),
        TABLE,
        f"train adasum --node_rank 1{DATA} --log_dir a log --rank_table table.json",
    ),
]


@pytest.mark.parametrize(("arguments", "environment", "expected"), CALLS)
def test_what_is_started(call, arguments, environment, expected):
    for code in (0, 3):
        done, command = call(*arguments, **environment, CODE=str(code))
        assert done.returncode == code, done.stderr
        assert command == f"python -m labkit.recipes {expected}"


WRONG = [
    (STANDALONE, [], "expected a folder"),
    (EVAL, ["my data"], "expected a folder and a checkpoint"),
    (DISTRIBUTE, ["my data"], "expected a number of devices and a folder"),
    (STAGE_1, [], "expected a folder"),
    (STAGE_2, ["my data"], "expected a folder and a checkpoint"),
    (STAGE_2, ["my data", "some.ckpt", "none.npy"], "none.npy is not a file"),
    (THOR, ["table.json"], "expected a rank table and a folder"),
    (THOR_GPU, [], "expected a folder"),
    (THOR_EVAL, ["my data"], "expected a folder and a checkpoint"),
    (NODES[0], [], "expected a folder"),
    (NODES[0], ["my data"], "expected MASTER=HOST:PORT or RANK_TABLE_FILE"),
]


@pytest.mark.parametrize(("script", "arguments", "message"), WRONG)
def test_wrong_arguments(call, script, arguments, message):
    done, command = call(script, *arguments)
    assert (done.returncode, done.stdout, command) == (2, "", None)
    assert message in done.stderr and f"usage: {Path(script).name} " in done.stderr


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*/*.sh")), ids=lambda path: path.name)
def test_they_are_executable_and_posix(script):
    assert os.access(script, os.X_OK)
    text = script.read_text() + (SCRIPTS / "common.sh").read_text()
    assert text.startswith("#!/bin/sh\n")
    assert not re.search(r"\[\[|function |source |\blocal\b|&>|<<<", text)
    subprocess.run(["sh", "-n", script], check=True)


# A recipe whose training only waits; its exit takes 0.3 s, like the writing of a checkpoint.
WAITING = """#!{python}
import pathlib, time
from labkit.recipes import training
from labkit.recipes.__main__ import main

def train(self, *arguments, **options):
    try:
        pathlib.Path("started").touch()
        time.sleep(60)
    finally:
        time.sleep(0.3)
        pathlib.Path("finally").touch()

training.Recipe.train = train
main(["train", "resnet50", "--dataset_path", "."], "waiting")
"""


@pytest.mark.parametrize(("by", "ranks"), [(signal.SIGINT, []), (signal.SIGTERM, ["2"])])
def test_what_python_does_finally_is_done(tmp_path, by, ranks):
    """A kill at once would leave a locked folder behind."""
    (tmp_path / "waiting").write_text(WAITING.format(python=sys.executable))
    (tmp_path / "waiting").chmod(0o755)
    process = subprocess.Popen(
        ["sh", SCRIPTS / (DISTRIBUTE if ranks else STANDALONE), *ranks, "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": str(tmp_path / "waiting")},
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until((tmp_path / "started").exists)
    process.send_signal(by)
    assert process.wait(60) == (128 + by if by == signal.SIGTERM else -by)
    assert (tmp_path / "finally").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("script", "ranks"), [(EVAL, []), (DISTRIBUTE, ["2"])])
def test_ranks_are_really_started(tmp_path, script, ranks):
    """Bad data is refused by the real program, by each rank."""
    (tmp_path / "bad.ckpt").write_text("no checkpoint")
    (tmp_path / "0").mkdir()
    rest = [] if ranks else [tmp_path / "bad.ckpt"]
    done = real(script, tmp_path, *ranks, tmp_path, *rest)
    assert done.returncode == 2 and "0 is an empty class folder" in done.stderr, done.stderr
    if ranks:
        assert "labkit: 2 ranks by msrun, logs in runs/resnet50-log" in done.stdout
        assert len(list((tmp_path / "runs" / "resnet50-log").glob("worker_*.log"))) == 2


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_is_clean():
    scripts = [*sorted(SCRIPTS.glob("*/*.sh")), SCRIPTS / "common.sh"]
    command = ["shellcheck", "-s", "sh", "-x", *(p.relative_to(SCRIPTS.parent) for p in scripts)]
    done = subprocess.run(command, cwd=SCRIPTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


TINY = (
    "--depth 18 --image_size 32 --batch_size 4 --epoch_size 1 --device_target CPU "
    "--num_parallel_workers 1"
).split()
SMALL = [*TINY, "--precision", "O0"]
STARTS = {
    "ResNet": (DISTRIBUTE, ["2", "DATA", *TINY, "--warmup", "0"], {}, "resnet50"),
    "THOR": (THOR, ["table.json", "DATA", "small.yaml", *SMALL], {}, "thor"),
}


@pytest.mark.long
@pytest.mark.parametrize("case", STARTS)
def test_two_ranks_train_a_resnet_to_the_end(digits, tmp_path, case):
    """The ResNet-18 has its full size; the script for Ascend says what it does on CPU."""
    data = digits(20, 10)
    rank_table.write(
        rank_table.make("10.0.0.1", ["192.1.1.1", "192.1.1.2"]), tmp_path / "table.json"
    )
    (tmp_path / "small.yaml").write_text("frequency: 2\nnet_name: resnet18\n")
    script, arguments, environment, run = STARTS[case]
    given = [data if each == "DATA" else each for each in arguments]
    said = trained(script, tmp_path, *given, **environment)
    assert ("(a rank table is Ascend's" in said) == (case == "THOR")
    folder = tmp_path / "runs" / run
    assert_trained_on_two_ranks(folder, epochs=1)
    found = list(folder.glob("train_parallel0/ckpt_0/resnet-1_2.ckpt"))
    assert bool(found) == (case == "THOR")


@pytest.mark.long
def test_two_ranks_train_both_stages(digits, tmp_path):
    """Stage two searches in directions from the four snapshots that stage one has kept."""
    data, epochs = digits(20, 10), ["--epoch_size", "2"]
    options = [*SMALL, *epochs, "--warmup_epochs", "0", "--lr_max", "0.02"]
    trained(STAGE_1, tmp_path, data, *options, "--snapshots_per_epoch", "2", DEVICES="2")
    first, second = (tmp_path / "runs" / "subspace" / f"stage_{number}" for number in (1, 2))
    assert_trained_on_two_ranks(first, epochs=2)
    assert len(list((first / "checkpoint_pca").glob("step-*"))) == 4
    start = first / "checkpoint" / "step-000000004.safetensors"
    options = [*SMALL, *epochs, "--n_components", "2"]
    said = trained(STAGE_2, tmp_path, data, start, *options, DEVICES="2")
    assert f"labkit: starts from {start}\n" in said
    rows = assert_trained_on_two_ranks(second, epochs=2)
    assert all(int(row["trials"]) >= 1 for row in rows)
    kept = load_file(first / "checkpoint_pca" / "pca_mat.safetensors")
    basis = kept["matrix"].astype(np.float64)
    assert basis.shape[0] == 2 and basis.shape[1] > 11_000_000  # ResNet-18's weights
    np.testing.assert_allclose(basis @ basis.T, np.eye(2), atol=1e-5)


def trained(script, folder, *arguments, **environment):
    """Run a script on two ranks to the end; return what it printed."""
    done = real(script, folder, *arguments, seconds=500, **environment)
    assert done.returncode == 0, done.stderr
    assert "labkit: 2 ranks by msrun" in done.stdout and "top_1_accuracy" in done.stdout
    return done.stdout


def assert_trained_on_two_ranks(run, epochs):
    """Check two updates per epoch, with four images per rank, and that the last one is saved."""
    rows = list(csv.DictReader((run / "records.csv").read_text().splitlines()))
    assert [(row["update"], row["images"]) for row in rows] == [
        (str(update + 1), "8") for update in range(2 * epochs)
    ]
    last = max(path.name for path in (run / "checkpoint").iterdir())
    assert last == f"step-{2 * epochs:09d}.safetensors"
    return rows


@pytest.mark.long
def test_two_servers_on_one_machine(digits, tmp_path):
    """The two Adasum scripts run at the same time, with one rank each."""
    data, port = digits(20, 10), free_port()
    options = [*SMALL, "--node_size", "1", "--warmup_epochs", "0", "--loss_scale", "1"]
    servers = [
        subprocess.Popen(
            ["sh", SCRIPTS / script, data, *options],
            cwd=tmp_path,
            env=os.environ
            | {"PYTHON": sys.executable, "DEVICE_NUM": "1", "MASTER": f"127.0.0.1:{port}"}
            | {"LOG_DIR": f"log{number}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number, script in enumerate(NODES)
    ]
    said = [server.communicate(timeout=500)[0] for server in servers]
    assert [server.returncode for server in servers] == [0, 0], said
    assert "top_1_accuracy" in said[0] and "epoch: 1 step: 2" in said[0]
    for rank in (0, 1):
        assert (tmp_path / "runs" / "adasum" / f"device{rank}" / "train.log").exists()
