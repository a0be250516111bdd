"""The scripts of the recipes: what they start, their usage, and their exit codes.

Python is a stand-in that records how it was called. Some tests below call the real one, and
test_on_ranks.py trains on two ranks.
"""

import csv
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from labkit.ranks import rank_table
from labkit.ranks.launch import free_port
from tests.support.living import wait_until

SCRIPTS = Path(__file__).parents[2] / "scripts"
STANDALONE, EVAL = "resnet50/run_standalone_train.sh", "resnet50/run_eval.sh"
DISTRIBUTE = "resnet50/run_distribute_train.sh"
STAGE_1, STAGE_2 = "subspace/run_stage_1.sh", "subspace/run_stage_2.sh"
# Stands in for python, and records how it was called.
FAKE = """#!/bin/sh
echo "$(basename "$0")${SERVER_ID:+ of server $SERVER_ID:} $*" >>"$CALLS"
exit ${CODE:-0}
"""


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


# A call as in a shell, and below it what is started after python -m labkit.recipes.
CALLS = """
resnet50/run_standalone_train.sh DATA --lr 1
    train resnet50 --data_path DATA --lr 1
resnet50/run_eval.sh DATA C --lr 1
    eval resnet50 --data_path DATA --checkpoint_path C --lr 1
resnet50/run_distribute_train.sh 8 DATA
    train resnet50 --ranks 8 --data_path DATA
resnet50/run_distribute_train.sh 1 DATA --lr 1
    train resnet50 --ranks 1 --data_path DATA --lr 1
subspace/run_stage_1.sh DATA
    train subspace-1 --ranks 8 --data_path DATA
DEVICES=2 subspace/run_stage_1.sh DATA
    train subspace-1 --ranks 2 --data_path DATA
subspace/run_stage_2.sh DATA C
    train subspace-2 --ranks 8 --data_path DATA --pretrained_weight_path C
DEVICES=1 subspace/run_stage_2.sh DATA C pca.npy
    train subspace-2 --ranks 1 --data_path DATA --pretrained_weight_path C --pca_mat_path pca.npy
thor/run_distribute_train.sh t.json DATA
    train thor --rank_table t.json --data_path DATA
SERVER_ID=1 thor/run_distribute_train.sh t.json DATA my.yaml --lr 1
    of server 1: train thor --rank_table t.json --data_path DATA --config my.yaml --lr 1
thor/run_distribute_train_gpu.sh DATA my.yaml
    train thor --settings gpu --ranks 8 --data_path DATA --config my.yaml
thor/run_eval.sh DATA C my.yaml
    eval thor --data_path DATA --checkpoint_path C --config my.yaml
thor/run_eval_gpu.sh DATA C
    eval thor --settings gpu --data_path DATA --checkpoint_path C
adasum/run_node1.sh DATA --lr 1
    of server 0: train adasum --rank_table rank_table_16pcs.json --data_path DATA --lr 1
RANK_TABLE_FILE=t.json adasum/run_node2.sh DATA
    of server 1: train adasum --rank_table t.json --data_path DATA
"""
WRONG = """
resnet50/run_standalone_train.sh
    expected a folder
resnet50/run_eval.sh DATA
    expected a folder and a checkpoint
resnet50/run_distribute_train.sh DATA
    expected a number of devices and a folder
subspace/run_stage_2.sh DATA C none.npy
    none.npy is not a file
thor/run_distribute_train.sh t.json
    expected a rank table and a folder
adasum/run_node1.sh
    expected a folder
"""


def pairs(text):
    """Return the lines of a text in pairs: a call, and what becomes of it."""
    lines = [line.strip() for line in text.strip().splitlines()]
    of_two = list(zip(lines[::2], lines[1::2], strict=True))
    return pytest.mark.parametrize(("words", "expected"), of_two)


def call(folder, words, code=0):
    """Call a script with a stand-in for Python; return its result, and the stand-in's call."""
    environment, script, *arguments = re.match(r"((?:\w+=\S+ )*)(\S+) ?(.*)", words).groups()
    own = dict(pair.split("=") for pair in environment.split())
    own |= {"PYTHON": str(folder / "python"), "CALLS": str(folder / "calls"), "CODE": str(code)}
    (folder / "python").write_text(FAKE)
    (folder / "python").chmod(0o755)
    (folder / "pca.npy").touch()
    given = [word.replace("DATA", "my data") for word in arguments[0].split()]
    done = real(script, folder, *given, env=own | {"PATH": os.environ["PATH"]})
    calls = folder / "calls"
    return done, calls.read_text().splitlines()[-1] if calls.exists() else None


@pairs(CALLS)
def test_what_is_started(tmp_path, words, expected):
    for code in (0, 3):
        done, command = call(tmp_path, words, code)
        assert done.returncode == code, done.stderr
        form = re.match("(of server .: )?(.*)", expected.replace("DATA", "my data"))
        server, rest = form.groups("")
        assert command == f"python {server}-m labkit.recipes {rest}"


@pairs(WRONG)
def test_wrong_arguments(tmp_path, words, expected):
    done, command = call(tmp_path, words)
    assert (done.returncode, done.stdout, command) == (2, "", None)
    assert expected in done.stderr and f"usage: {words.split()[0].split('/')[1]} " in done.stderr


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
        assert "labkit: 2 of 2 ranks by msrun, logs in runs/resnet50-log" in done.stdout
        assert len(list((tmp_path / "runs" / "resnet50-log").glob("worker_*.log"))) == 2


TINY = (
    "--depth 18 --image_size 32 --batch_size 4 --epoch_size 1 --device_target CPU "
    "--num_parallel_workers 1"
).split()
SMALL = [*TINY, "--precision", "O0"]


@pytest.mark.long
def test_two_ranks_train_a_resnet_to_the_end(digits, tmp_path):
    """The ResNet-18 has its full size; the script for Ascend says what it does on CPU."""
    data, table = digits(20, 10), tmp_path / "table.json"
    trained(DISTRIBUTE, tmp_path, "2", data, *TINY, "--warmup", "0")
    assert_trained_on_two_ranks(tmp_path / "runs" / "resnet50", epochs=1)
    rank_table.write(rank_table.make("10.0.0.1", ["192.1.1.1", "192.1.1.2"]), table)
    (tmp_path / "small.yaml").write_text("frequency: 2\nmomentum: 0.8\n")
    trained("thor/run_distribute_train.sh", tmp_path, table, data, "small.yaml", *SMALL)
    assert_trained_on_two_ranks(tmp_path / "runs" / "thor", epochs=1)
    assert (tmp_path / "runs/thor/train_parallel0/ckpt_0/resnet-1_2.ckpt").exists()


@pytest.mark.long
def test_two_ranks_train_both_stages(digits, tmp_path):
    """Stage two searches in directions from the four snapshots that stage one has kept."""
    data, epochs = digits(20, 10), ["--epoch_size", "2"]
    options = [*SMALL, *epochs, "--warmup_epochs", "0", "--lr_max", "0.02"]
    trained(STAGE_1, tmp_path, data, *options, "--snapshots_per_epoch", "2", DEVICES="2")
    first, second = (tmp_path / "runs" / "subspace" / f"stage_{number}" for number in (1, 2))
    assert_trained_on_two_ranks(first, epochs=2)
    folder = first / "device0_stage_1/checkpoint_stage_1"
    assert len(list(folder.glob("checkpoint_pca/step-*"))) == 4
    options = [*SMALL, *epochs, "--n_components", "2"]
    start = folder / "resnet-2_2.ckpt"
    said = trained(STAGE_2, tmp_path, data, start, *options, DEVICES="2")
    assert f"labkit: starts from {start}\n" in said
    rows = assert_trained_on_two_ranks(second, epochs=2)
    assert all(int(row["trials"]) >= 1 for row in rows)
    basis = load_file(folder / "checkpoint_pca/pca_mat.safetensors")["matrix"]
    assert basis.shape[0] == 2 and basis.shape[1] > 11_000_000  # ResNet-18's weights


def trained(script, folder, *arguments, **environment):
    """Run a script on two ranks to the end; return what it printed."""
    done = real(script, folder, *arguments, seconds=500, **environment)
    assert done.returncode == 0, done.stderr
    assert "labkit: 2 of 2 ranks by msrun" in done.stdout and "top_1_accuracy" in done.stdout
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
    """The two Adasum scripts run at the same time, with one rank each and a folder of their own."""
    data, port = digits(20, 10), free_port()
    one_each = [rank_table.make(f"127.0.0.{n}", [f"10.0.0.{n}"]) for n in (1, 2)]
    table = rank_table.write(rank_table.merge(*one_each), tmp_path / "rank_table_16pcs.json")
    options = [*SMALL, "--node_size", "1", "--warmup_epochs", "0", "--loss_scale", "1"]
    own = {"PYTHON": sys.executable, "RANK_TABLE_FILE": str(table), "MASTER_PORT": str(port)}
    servers = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        servers.append(
            subprocess.Popen(
                ["sh", SCRIPTS / f"adasum/run_node{number}.sh", data, *options],
                cwd=folder,
                env=os.environ | own,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [server.communicate(timeout=500)[0] for server in servers]
    assert [server.returncode for server in servers] == [0, 0], said
    assert "top_1_accuracy" in said[0] and "epoch: 1 step: 2" in said[0]
    # Both number their devices from 0.
    assert (tmp_path / "1/runs/adasum/device0/train.log").exists()
    assert (tmp_path / "2/runs/adasum/rank_1/records.csv").exists()
