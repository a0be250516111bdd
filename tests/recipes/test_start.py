"""How ranks are started: valid options, the call of each process, and how it ends."""

import re
import shlex

import pytest

from labkit.errors import WorkerFailed
from labkit.ranks import rank_table
from labkit.recipes import __main__ as start
from labkit.recipes.__main__ import main
from labkit.recipes.training import Recipe

STEPS = "# the steps"


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    for name in ("RANK_SIZE", "MS_WORKER_NUM", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Recipe, "steps", lambda *_: STEPS)


@pytest.fixture
def device(monkeypatch):
    """A function that sets which device this machine has."""
    return lambda name: monkeypatch.setattr(start.runtime, "available_devices", lambda: (name,))


def table(path, *servers, ids=None):
    """Write the rank table of servers with the given numbers of devices."""
    made = [
        rank_table.make(f"10.0.0.{n}", [f"192.{n}.1.{d}" for d in range(count)], ids)
        for n, count in enumerate(servers, 1)
    ]
    return str(rank_table.write(rank_table.merge(*made), path))


def dry(capsys, *arguments):
    """Return (heading, variables, command) that a dry run prints; it says the steps too."""
    assert main(["train", "thor", "--data_path", "x", *arguments, "--dry-run"], "labkit") == 0
    heading, line, steps = capsys.readouterr().out.splitlines()
    assert steps == STEPS
    words = shlex.split(line)
    count = next(n for n, word in enumerate(words) if "=" not in word)
    return heading, dict(word.split("=", 1) for word in words[:count]), words[count:]


def option(words, name):
    return words[words.index(name) + 1]


def test_a_dry_run_is_the_command_of_msrun(capsys, device):
    device("CPU")
    options = ["--seed", "2", "--ranks", "2", "--set", "batch_size=4", "--log_dir", "my logs"]
    heading, variables, words = dry(capsys, *options)
    assert heading == "# msrun starts ranks 0 to 1" and words[0].endswith("msrun")
    assert option(words, "--log_dir") == "my logs" and option(words, "--worker_num") == "2"
    own = "train thor --data_path x --seed 2 --set batch_size=4 --run_distribute True"
    expected = ["python", "-m", "labkit.recipes", *own.split(), "--device_num", "2"]
    assert words[words.index("python") :] == expected
    assert variables["LOCAL_WORLD_SIZE"] == "2" and "RANK_TABLE_FILE" not in variables


def test_one_process_is_its_command(capsys, device):
    device("CPU")
    heading, variables, words = dry(capsys, "--seed", "2")
    assert (heading, variables) == ("# one process", {})
    assert words == "python -m labkit.recipes train thor --data_path x --seed 2".split()


def test_two_machines_number_their_ranks_through(capsys, device):
    device("CPU")
    nodes = ["--ranks", "8", "--nodes", "2", "--node_rank", "1", "--master", "10.0.0.1:9000"]
    heading, _, words = dry(capsys, *nodes)
    assert heading == "# msrun starts ranks 8 to 15" and option(words, "--worker_num") == "16"
    assert (option(words, "--master_addr"), option(words, "--master_port")) == ("10.0.0.1", "9000")
    assert option(words, "--node_rank") == "1" and words[-1] == "16"


@pytest.mark.parametrize("name", ["Ascend", "CPU"])
def test_a_rank_table_says_ranks_and_master(capsys, device, tmp_path, name):
    device(name)
    path = table(tmp_path / "t.json", 2, 2)
    heading, variables, words = dry(capsys, "--rank_table", path, "--node_rank", "1")
    assert (option(words, "--master_addr"), option(words, "--master_port")) == ("10.0.0.1", "8118")
    assert heading == "# msrun starts ranks 2 to 3"
    assert variables.get("RANK_TABLE_FILE") == (path if name == "Ascend" else None)


WRONG = {
    "--log_dir logs": "expected --ranks N",
    "--nodes 2": "expected --ranks N",
    "--ranks 2 --run_distribute True": "expected neither with --ranks",
    "--ranks 2 --nodes 2": "master: expected HOST:PORT",
    "--rank_table t.json --ranks 3": "expected no --ranks and no --nodes",
    "--rank_table t.json --node_rank 2": ">= 0 and <= 1, got 2",
    "--rank_table u.json": "[(0, 0), (1, 1), (0, 2)]; expected [(0, 0), (0, 1), (0, 2)]: msrun",
    "--rank_table v.json": "(device, rank) [(4, 0), (5, 1)]; expected [(0, 0), (1, 1)]: msrun",
    "--rank_table none.json": "cannot read none.json",
    "--ranks 0": "workers: expected an integer >= 1, got 0",
    "--ranks 2 --seed -1": "seed: expected an integer >= 0",
    "--data_path none": "expected a folder of data, got none",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_what_does_not_go_together(capsys, device, tmp_path, arguments):
    device("CPU")
    table(tmp_path / "t.json", 2, 2)
    table(tmp_path / "u.json", 2, 1)
    table(tmp_path / "v.json", 2, ids=[4, 5])
    given = ["train", "thor", "--data_path", "x", *arguments.split(), "--dry-run"]
    assert main(given, "labkit") == 2
    shown = capsys.readouterr().err
    assert shown.startswith("thor: ") and WRONG[arguments] in shown and shown.count("\n") == 1


def test_logs_that_cannot_be_kept_are_bad_input(capsys, tmp_path):
    (tmp_path / "file").touch()
    given = ["train", "thor", "--data_path", "x", "--ranks", "2", "--log_dir", "file"]
    assert main(given, "labkit") == 2 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "the following arguments are required: command, recipe"),
        ("trian thor", "Did you mean 'train'?"),
        ("train", "required: recipe"),
        ("train tohr", "Did you mean 'thor'?"),
        ("eval subspace_stage_1", "Did you mean 'subspace-1'?"),
        ("train thor", "required: --data_path"),
        ("train thor --data_path x --settings tpu", "invalid choice: 'tpu'"),
        ("train thor --data_path x --run_distribute 1", "expected True or False, got '1'"),
        ("train thor --data_path x --checkpoint_path y", "unrecognized arguments"),
        ("eval thor --data_path x", "required: --checkpoint_path"),
        ("train thor --data_path x --batchsize 3", "Did you mean '--batch_size'?"),
    ],
)
def test_wrong_words_are_named(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(arguments.split(), "labkit")
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and message in shown and "usage: labkit" in shown


def test_a_rank_that_refuses_is_bad_input(monkeypatch, capsys):
    for code, expected in ((2, 2), (1, 1), (None, 1)):

        def fail(*_, code=code, **options):
            raise WorkerFailed("rank 0 failed", exit_code=code)

        monkeypatch.setattr(start, "launch", fail)
        assert main(["train", "thor", "--data_path", "x", "--ranks", "2"], "labkit") == expected
    assert re.fullmatch("(thor: rank 0 failed\n){3}", capsys.readouterr().err)
