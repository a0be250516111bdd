"""The scripts of the recipes: what they start, their usage, and their exit codes."""

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
from labkit.training.records import read_records
from tests.support.living import wait_until

SCRIPTS = Path(__file__).parents[2] / "scripts"
DISTRIBUTE = "resnet50/run_distribute_train.sh"
# Stands in for python, and records how it was called.
FAKE = """#!/bin/sh
echo "$(basename "$0")${SERVER_ID:+ of server $SERVER_ID:} $*" >>"$CALLS"
exit ${CODE:-0}
"""


def real(script, folder, *arguments, env=None, **more):
    """Call a script with the variables ``env``, by default this process's and its Python."""
    command = ["sh", SCRIPTS / script, *map(str, arguments)]
    env = env or os.environ | {"PYTHON": sys.executable} | more
    options = {"capture_output": True, "text": True, "timeout": 500}
    return subprocess.run(command, cwd=folder, env=env, **options)


# A call as in a shell, and below it what is started after python -m labkit.recipes, or refused.
CALLS = """
resnet50/run_standalone_train.sh DATA --lr 1
    train resnet50 --data_path DATA --lr 1
resnet50/run_eval.sh DATA C --lr 1
    eval resnet50 --data_path DATA --checkpoint_path C --lr 1
resnet50/run_distribute_train.sh 1 DATA --lr 1
    train resnet50 --ranks 1 --data_path DATA --lr 1
subspace/run_stage_1.sh DATA
    train subspace-1 --ranks 8 --data_path DATA
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
resnet50/run_standalone_train.sh
    refused: expected a folder
resnet50/run_eval.sh DATA
    refused: expected a folder and a checkpoint
resnet50/run_distribute_train.sh DATA
    refused: expected a number of devices and a folder
subspace/run_stage_2.sh DATA C none.npy
    refused: none.npy is not a file
thor/run_distribute_train.sh t.json
    refused: expected a rank table and a folder
adasum/run_node1.sh
    refused: expected a folder
"""
LINES = [line.strip() for line in CALLS.strip().splitlines()]


@pytest.mark.parametrize(("words", "expected"), [*zip(LINES[::2], LINES[1::2], strict=True)])
def test_what_is_started(tmp_path, words, expected):
    """Python is a stand-in."""
    own, script, given = re.match(r"((?:\w+=\S+ )*)(\S+) ?(.*)", words).groups()
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(FAKE)
    python.chmod(0o755)
    (tmp_path / "pca.npy").touch()
    env = dict(pair.split("=") for pair in own.split()) | {"PATH": os.environ["PATH"]}
    env |= {"PYTHON": str(python), "CALLS": str(calls)}
    given = [word.replace("DATA", "my data") for word in given.split()]
    for code in (0, 3):
        done = real(script, tmp_path, *given, env=env | {"CODE": str(code)})
        if expected.startswith("refused: "):
            assert (done.returncode, done.stdout, calls.exists()) == (2, "", False)
            assert expected.removeprefix("refused: ") in done.stderr
            assert f"usage: {Path(script).name} " in done.stderr
            continue
        assert done.returncode == code, done.stderr
        form = re.match("(of server .: )?(.*)", expected.replace("DATA", "my data"))
        server, rest = form.groups("")
        assert calls.read_text().splitlines()[-1] == f"python {server}-m labkit.recipes {rest}"


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


@pytest.mark.parametrize(
    ("by", "words"),
    [(signal.SIGINT, "resnet50/run_standalone_train.sh ."), (signal.SIGTERM, f"{DISTRIBUTE} 2 .")],
)
def test_what_python_does_finally_is_done(tmp_path, by, words):
    """A kill at once would leave a locked folder behind."""
    (tmp_path / "waiting").write_text(WAITING.format(python=sys.executable))
    (tmp_path / "waiting").chmod(0o755)
    script, *rest = words.split()
    process = subprocess.Popen(
        ["sh", SCRIPTS / script, *rest],
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
@pytest.mark.parametrize("script", ["resnet50/run_eval.sh", DISTRIBUTE])
def test_ranks_are_really_started(tmp_path, script):
    """Bad data is refused by the real program, by each rank."""
    (tmp_path / "bad.ckpt").write_text("no checkpoint")
    (tmp_path / "0").mkdir()
    words = ["2", tmp_path] if script == DISTRIBUTE else [tmp_path, tmp_path / "bad.ckpt"]
    done = real(script, tmp_path, *words)
    assert done.returncode == 2 and "0 is an empty class folder" in done.stderr, done.stderr
    if script == DISTRIBUTE:
        assert "labkit: 2 of 2 ranks by msrun, logs in runs/resnet50-log" in done.stdout
        assert len(list((tmp_path / "runs" / "resnet50-log").glob("worker_*.log"))) == 2


SMALL = (
    "--depth 18 --image_size 32 --batch_size 4 --device_target CPU --num_parallel_workers 1 "
    "--epoch_size 1 --precision O0"
).split()


def trained(script, folder, run, *arguments):
    """Train on two ranks, two updates an epoch of four images each; return output and records."""
    done = real(script, folder, *arguments, DEVICES="2")
    assert done.returncode == 0, done.stderr
    assert "labkit: 2 of 2 ranks by msrun" in done.stdout and "top_1_accuracy" in done.stdout
    records = read_records(folder / "runs" / run / "records.csv")
    updates = 4 if "subspace" in run else 2  # in two epochs, or one
    assert records.column("update") == list(range(1, updates + 1))
    assert set(records.column("images")) == {8}
    last = max(path.name for path in (folder / "runs" / run / "checkpoint").iterdir())
    assert last == f"step-{updates:09d}.safetensors"
    return done.stdout, records


@pytest.mark.long
def test_two_ranks_train_a_resnet_to_the_end(digits, tmp_path):
    """The ResNet-18 has its full size; the script for Ascend says what it does on CPU."""
    data, table = digits(20, 10), tmp_path / "table.json"
    rank_table.write(rank_table.make("10.0.0.1", ["192.1.1.1", "192.1.1.2"]), table)
    (tmp_path / "small.yaml").write_text("frequency: 2\nmomentum: 0.8\n")
    script = "thor/run_distribute_train.sh"
    trained(script, tmp_path, "thor", table, data, "small.yaml", *SMALL)
    assert (tmp_path / "runs/thor/train_parallel0/ckpt_0/resnet-1_2.ckpt").exists()


@pytest.mark.long
def test_two_ranks_train_both_stages(digits, tmp_path):
    """Stage two searches in directions from the four snapshots that stage one has kept."""
    data, options = digits(20, 10), [*SMALL, "--epoch_size", "2"]
    own = ["--warmup_epochs", "0", "--lr_max", "0.02", "--snapshots_per_epoch", "2"]
    trained("subspace/run_stage_1.sh", tmp_path, "subspace/stage_1", data, *options, *own)
    folder = tmp_path / "runs/subspace/stage_1/device0_stage_1/checkpoint_stage_1"
    assert len(list(folder.glob("checkpoint_pca/step-*"))) == 4
    start, own = folder / "resnet-2_2.ckpt", ["--n_components", "2"]
    script, run = "subspace/run_stage_2.sh", "subspace/stage_2"
    said, records = trained(script, tmp_path, run, data, start, *options, *own)
    assert f"labkit: starts from {start}\n" in said
    assert min(records.column("trials")) >= 1
    basis = load_file(folder / "checkpoint_pca/pca_mat.safetensors")["matrix"]
    assert basis.shape[0] == 2 and basis.shape[1] > 11_000_000  # ResNet-18's weights


@pytest.mark.long
def test_two_servers_on_one_machine(digits, tmp_path):
    """The two Adasum scripts run at the same time, with one rank each and a folder of their own."""
    data, port = digits(20, 10), free_port()
    one_each = [rank_table.make(f"127.0.0.{n}", [f"10.0.0.{n}"]) for n in (1, 2)]
    table = rank_table.write(rank_table.merge(*one_each), tmp_path / "rank_table_16pcs.json")
    options = [*SMALL, "--node_size", "1", "--warmup_epochs", "0", "--loss_scale", "1"]
    own = {"PYTHON": sys.executable, "RANK_TABLE_FILE": str(table), "MASTER_PORT": str(port)}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    servers = []
    for number in (1, 2):
        (folder := tmp_path / str(number)).mkdir()
        command = ["sh", SCRIPTS / f"adasum/run_node{number}.sh", data, *options]
        servers.append(subprocess.Popen(command, cwd=folder, env=os.environ | own, **output))
    said = [server.communicate(timeout=500)[0] for server in servers]
    assert [server.returncode for server in servers] == [0, 0], said
    assert "top_1_accuracy" in said[0] and "epoch: 1 step: 2" in said[0]
    # Both number their devices from 0.
    assert (tmp_path / "1/runs/adasum/device0/train.log").exists()
    assert (tmp_path / "2/runs/adasum/rank_1/records.csv").exists()
