"""The scripts of the recipes: what they start, their usage, and their exit codes.

Python is a stand-in that records how it was called. Some tests below call the real one, and
test_on_ranks.py trains on two ranks.
"""

import csv
import os
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
from tests.support.shell_scripts import (
    FAKE,
    SIGNALS,
    assert_executable_and_posix,
    assert_nothing_stays,
)

SCRIPTS = Path(__file__).parents[2] / "scripts"
NAMES = (
    "resnet50/run_standalone_train.sh",
    "resnet50/run_eval.sh",
    "resnet50/run_distribute_train.sh",
    "subspace/run_stage_1.sh",
    "subspace/run_stage_2.sh",
    "thor/run_distribute_train.sh",
    "thor/run_distribute_train_gpu.sh",
    "thor/run_eval.sh",
    "thor/run_eval_gpu.sh",
    "adasum/run_node1.sh",
    "adasum/run_node2.sh",
)
STANDALONE, EVAL, DISTRIBUTE, STAGE_1, STAGE_2, *OTHERS = NAMES
THOR, THOR_GPU, THOR_EVAL, THOR_EVAL_GPU, *NODES = OTHERS


@pytest.fixture
def call(tmp_path):
    """A function that calls a script with stand-ins and returns (its result, the last call)."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python").write_text(FAKE)
    (programs / "python").chmod(0o755)
    (tmp_path / "my data").mkdir()
    for name in ("some.ckpt", "pca mat.npy", "table.json", "my.yaml"):
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
CALLS = {
    "alone": (
        (STANDALONE, "my data", "--lr", "0.1", "--resume"),
        {},
        f"train resnet50{DATA} --lr 0.1 --resume",
    ),
    "evaluation": (
        (EVAL, "my data", "some.ckpt", "--device_target", "CPU"),
        {},
        f"eval resnet50{DATA}{CHECKPOINT} --device_target CPU",
    ),
    "several": (
        (DISTRIBUTE, "8", "my data", "--batch_size", "32"),
        {},
        f"train resnet50{DATA} --batch_size 32 --ranks 8",
    ),
    "one of several": ((DISTRIBUTE, "1", "my data"), {}, f"train resnet50{DATA}"),
    "port and logs": (
        (DISTRIBUTE, 2, "my data"),
        {"MASTER_PORT": "9000", "LOG_DIR": "a log"},
        f"train resnet50{DATA} --ranks 2 --log_dir a log --master 127.0.0.1:9000",
    ),
    "the tutorial's stage one": ((STAGE_1, "my data"), {}, f"train subspace-1{DATA} --ranks 8"),
    "stage one on two": (
        (STAGE_1, "my data", "--resume"),
        {"DEVICES": "2"},
        f"train subspace-1{DATA} --resume --ranks 2",
    ),
    "the tutorial's stage two": (
        (STAGE_2, "my data", "some.ckpt"),
        {},
        f"train subspace-2{DATA}{START} --ranks 8",
    ),
    "with a basis": (
        (STAGE_2, "my data", "some.ckpt", "pca mat.npy", "--trials", "2"),
        {},
        f"train subspace-2{DATA}{START} --pca_mat_path pca mat.npy --trials 2 --ranks 8",
    ),
    "stage two alone": (
        (STAGE_2, "my data", "some.ckpt", "--seed", "2"),
        {"DEVICES": "1"},
        f"train subspace-2{DATA}{START} --seed 2",
    ),
    "THOR": (
        (THOR, "table.json", "my data"),
        {},
        f"train thor --rank_table table.json --node_rank 0{DATA}",
    ),
    "THOR with a file, on the second server": (
        (THOR, "table.json", "my data", "my.yaml", "--seed", "2"),
        {"SERVER_ID": "1"},
        f"train thor --rank_table table.json --node_rank 1{DATA} --config my.yaml --seed 2",
    ),
    "THOR on GPU": (
        (THOR_GPU, "my data", "my.yaml"),
        {},
        f"train thor --settings gpu --mpirun{DATA} --config my.yaml --ranks 8",
    ),
    "THOR's evaluation": (
        (THOR_EVAL, "my data", "some.ckpt", "my.yaml"),
        {},
        f"eval thor{DATA}{CHECKPOINT} --config my.yaml",
    ),
    "and on GPU": (
        (THOR_EVAL_GPU, "my data", "some.ckpt", "--top", "1"),
        {},
        f"eval thor --settings gpu{DATA}{CHECKPOINT} --top 1",
    ),
    "Adasum by an address": (
        (NODES[0], "my data", "--seed", "2"),
        {"MASTER": "10.0.0.1:8118"},
        f"train adasum --node_rank 0{DATA} --ranks 8 --nodes 2 --master 10.0.0.1:8118 --seed 2",
    ),
    "Adasum by a rank table": (
        (NODES[1], "my data"),
        TABLE,
        f"train adasum --node_rank 1{DATA} --rank_table table.json --log_dir a log",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_what_is_started(call, case):
    arguments, environment, expected = CALLS[case]
    done, command = call(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    assert command == f"python -m labkit.recipes {expected}"


@pytest.mark.parametrize("script", [STANDALONE, DISTRIBUTE, THOR_GPU])
def test_an_exit_code_is_handed_on(call, script):
    arguments = (2, "my data") if script == DISTRIBUTE else ("my data",)
    assert call(script, *arguments, CODE="3")[0].returncode == 3


@pytest.mark.parametrize("end", [*SIGNALS, 0, 7], ids=str)
@pytest.mark.parametrize("script", [STANDALONE, DISTRIBUTE])
def test_nothing_that_they_started_stays(tmp_path, script, end):
    arguments = [tmp_path] if script == STANDALONE else [2, tmp_path]
    ends = {"by": end} if end in SIGNALS else {"code": end}
    assert_nothing_stays(SCRIPTS / script, arguments, tmp_path, **ends)


# A recipe whose training only waits; its exit takes 0.3 s, like the writing of a checkpoint.
WAITING = """#!{python}
import pathlib, time
from labkit.recipes import command, training

def train(self, *arguments, **options):
    try:
        pathlib.Path("started").touch()
        time.sleep(60)
    finally:
        time.sleep(0.3)
        pathlib.Path("finally").touch()

training.Recipe.train = train
command.main(["train", "resnet50", "--dataset_path", "."], "waiting")
"""


INT, TERM = signal.SIGINT, signal.SIGTERM
SENT = [(INT, True, []), (INT, False, ["2"]), (TERM, True, ["2"]), (TERM, False, [])]
REST = [(INT, True, ["2"]), (INT, False, []), (TERM, True, []), (TERM, False, ["2"])]


@pytest.mark.parametrize(
    ("by", "group", "ranks"), SENT + [pytest.param(*sent, marks=pytest.mark.slow) for sent in REST]
)
def test_what_python_does_finally_is_done(tmp_path, by, group, ranks):
    """After ^C or a signal to the script alone; an immediate kill left a locked folder behind."""
    (tmp_path / "waiting").write_text(WAITING.format(python=sys.executable))
    (tmp_path / "waiting").chmod(0o755)
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
    """A downloaded folder may hold a signal.py; a real Python gets as far as the recipe's error."""
    for name in ("signal", "torch", "argparse", "labkit"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    done = real(STANDALONE, tmp_path, ".", "--set", "no_such=1", PYTHONPATH=path)
    assert done.returncode == 2 and "resnet50: unknown setting" in done.stderr, done.stderr
    assert not (tmp_path / "executed").exists()


WRONG = [
    (STANDALONE, [], {}, "expected a folder"),
    (STANDALONE, ["none"], {}, "none is not a folder"),
    (STANDALONE, ["--set", "lr=1"], {}, "--set is not a folder"),
    (EVAL, ["my data"], {}, "expected a folder and a checkpoint"),
    (EVAL, ["my data", "none.ckpt"], {}, "none.ckpt is not a file"),
    (EVAL, ["some.ckpt", "my data"], {}, "some.ckpt is not a folder"),
    (DISTRIBUTE, ["my data"], {}, "expected a number of devices and a folder"),
    (DISTRIBUTE, ["8", "none"], {}, "none is not a folder"),
    *(
        (DISTRIBUTE, [devices, "my data"], {}, f"DEVICES is '{devices}'")
        for devices in ("0", "", "-1", "2x", "08", "my data")
    ),
    (STAGE_1, [], {}, "expected a folder"),
    (STAGE_1, ["none"], {}, "none is not a folder"),
    (STAGE_2, ["my data"], {}, "expected a folder and a checkpoint"),
    (STAGE_2, ["none", "some.ckpt"], {}, "none is not a folder"),
    (STAGE_2, ["my data", "none.ckpt"], {}, "none.ckpt is not a file"),
    (STAGE_2, ["my data", "some.ckpt", "none.npy"], {}, "none.npy is not a file"),
    *((STAGE_1, ["my data"], {"DEVICES": n}, f"DEVICES is '{n}'") for n in ("0", "", "two")),
    (THOR, ["table.json"], {}, "expected a rank table and a folder"),
    (THOR, ["none.json", "my data"], {}, "none.json is not a file"),
    (THOR, ["table.json", "my data", "none.yaml"], {}, "none.yaml is not a file"),
    (THOR_GPU, ["my data", "none.yaml"], {}, "none.yaml is not a file"),
    (THOR_EVAL, ["my data"], {}, "expected a folder and a checkpoint"),
    (NODES[0], [], {"MASTER": "x:9000"}, "expected a folder"),
    (NODES[0], ["my data"], {}, "expected MASTER=HOST:PORT or RANK_TABLE_FILE"),
    (
        NODES[1],
        ["my data"],
        {"RANK_TABLE_FILE": "no"},
        "RANK_TABLE_FILE is no, which is not a file",
    ),
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


@pytest.mark.parametrize("script", [EVAL, STAGE_2])
def test_bad_data_is_refused_by_the_real_program(tmp_path, script):
    (tmp_path / "bad.ckpt").write_text("no checkpoint")
    (tmp_path / "0").mkdir()
    done = real(script, tmp_path, tmp_path, tmp_path / "bad.ckpt", DEVICES="1")
    assert done.returncode == 2 and "0 is an empty class folder" in done.stderr, done.stderr


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
    "THOR on GPU": (THOR_GPU, ["DATA", *SMALL], {"DEVICES": "2"}, "thor"),
}


@pytest.mark.long
@pytest.mark.parametrize("case", STARTS)
def test_two_ranks_train_a_resnet_to_the_end(digits, tmp_path, case):
    """The ResNet-18 has its full size; the scripts for Ascend and GPU say what they do on CPU."""
    data = digits(20, 10)
    rank_table.write(
        rank_table.make("10.0.0.1", ["192.1.1.1", "192.1.1.2"]), tmp_path / "table.json"
    )
    (tmp_path / "small.yaml").write_text("frequency: 2\nnet_name: resnet18\n")
    script, arguments, environment, run = STARTS[case]
    given = [data if each == "DATA" else each for each in arguments]
    said = trained(script, tmp_path, *given, **environment)
    assert ("(a rank table is Ascend's" in said) == (case == "THOR")
    assert ("(MindSpore takes mpirun on GPU alone" in said) == (case == "THOR on GPU")
    folder = tmp_path / "runs" / run
    assert_trained_on_two_ranks(folder, epochs=1)
    found = list(folder.glob("train_parallel0/ckpt_0/resnet-1_2.ckpt"))
    assert bool(found) == case.startswith("THOR")


@pytest.mark.long
def test_two_ranks_train_both_stages(digits, tmp_path):
    """Stage two searches in directions from the four snapshots that stage one has kept."""
    data, epochs = digits(20, 10), ["--epoch_size", "2"]
    options = [*SMALL, *epochs, "--warmup_epochs", "0", "--lr_max", "0.02"]
    trained(STAGE_1, tmp_path, data, *options, "--snapshots_per_epoch", "2", DEVICES="2")
    first, second = (tmp_path / "runs" / "subspace" / f"stage_{number}" for number in (1, 2))
    assert_trained_on_two_ranks(first, epochs=2)
    assert len(list((first / "checkpoint_pca").glob("step-*"))) == 4
    start = first / "checkpoint" / "step-000000004.ckpt"
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
    assert (
        max(path.name for path in (run / "checkpoint").iterdir()) == f"step-{2 * epochs:09d}.ckpt"
    )
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


@pytest.mark.slow
def test_ranks_are_really_started(tmp_path):
    (tmp_path / "0").mkdir()
    done = real(DISTRIBUTE, tmp_path, "2", tmp_path, MASTER_PORT=str(free_port()))
    assert done.returncode == 2 and "0 is an empty class folder" in done.stderr
    assert "labkit: 2 ranks by msrun, logs in runs/resnet50-log" in done.stdout
    assert len(list((tmp_path / "runs" / "resnet50-log").glob("worker_*.log"))) == 2
