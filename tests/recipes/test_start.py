"""How ranks are started: valid options, the call of each rank, and how it ends."""

import re
from types import SimpleNamespace

import pytest

from labkit.errors import WorkerFailed
from labkit.ranks import rank_table
from labkit.recipes import __main__ as start
from labkit.recipes import parts
from labkit.recipes.__main__ import main


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    for name in ("RANK_SIZE", "MS_WORKER_NUM", "OMPI_COMM_WORLD_SIZE", "SERVER_ID", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    data = SimpleNamespace(get_dataset_size=lambda: 625)
    monkeypatch.setattr(parts, "datasets", lambda *_: (data,))


def table(path, *servers, ids=None):
    """Write the rank table of servers with the given numbers of devices."""
    made = [
        rank_table.make(f"10.0.0.{n}", [f"192.{n}.1.{d}" for d in range(count)], ids)
        for n, count in enumerate(servers, 1)
    ]
    return str(rank_table.write(rank_table.merge(*made), path))


def dry(capsys, *arguments):
    """Return the lines that a dry run prints, the last of them being the steps."""
    assert main(["train", "thor", "--data_path", "x", *arguments, "--dry-run"], "labkit") == 0
    *lines, steps = capsys.readouterr().out.splitlines()
    assert steps.startswith("labkit: 625 micro-batches of ")
    return lines


@pytest.fixture
def launched(monkeypatch):
    """The calls of ``launch``, which starts nothing."""
    calls = []
    monkeypatch.setattr(start, "launch", lambda *words, **given: calls.append((words, given)))
    return calls


def test_a_dry_run_is_the_command_of_a_rank(capsys):
    assert dry(capsys, "--seed", "2", "--ranks", "2") == [
        "labkit: 2 of 2 ranks by msrun, logs in runs/thor-log",
        "python -m labkit.recipes train thor --data_path x --seed 2 --run_distribute True "
        "--device_num 2",
    ]
    assert dry(capsys, "--seed", "2") == [
        "labkit: one process",
        "python -m labkit.recipes train thor --data_path x --seed 2",
    ]


def test_a_rank_table_says_ranks_and_master(launched, tmp_path, monkeypatch, capsys):
    path = table(tmp_path / "t.json", 2, 2)
    for number in ("2", "one", "1"):
        monkeypatch.setenv("SERVER_ID", number)
        code = main(["train", "thor", "--data_path", "x", "--rank_table", path], "labkit")
        assert code == (0 if number == "1" else 2)
    assert "SERVER_ID: expected an integer >= 0 and <= 1, got 'one'" in capsys.readouterr().err
    ((words, given),) = launched
    assert words[-4:] == ("--run_distribute", "True", "--device_num", "4")
    assert given["workers"] == 2 and given["nodes"] == 2 and given["node_rank"] == 1
    assert given["master"] == "10.0.0.1:8118" and given["env"] == {"RANK_TABLE_FILE": path}
    assert given["log_dir"] == "runs/thor-log/server1"


WRONG = {
    "--rank_table t.json --ranks 3": "--rank_table says how many ranks; expected no --ranks",
    "--rank_table u.json": "[(0, 0), (1, 1), (0, 2)]; expected [(0, 0), (0, 1), (0, 2)]: msrun",
    "--rank_table v.json": "(device, rank) [(4, 0), (5, 1)]; expected [(0, 0), (1, 1)]: msrun",
    "--rank_table none.json": "cannot read none.json",
    "--ranks 0": "workers: expected an integer >= 1, got 0",
    "--ranks 2 --seed -1": "seed: expected an integer >= 0",
    "--data_path none": "expected a folder of data, got none",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_what_does_not_go_together(capsys, tmp_path, arguments):
    table(tmp_path / "t.json", 2, 2)
    table(tmp_path / "u.json", 2, 1)
    table(tmp_path / "v.json", 2, ids=[4, 5])
    assert main(["train", "thor", "--data_path", "x", *arguments.split()], "labkit") == 2
    shown = capsys.readouterr().err
    assert shown.startswith("thor: ") and WRONG[arguments] in shown and shown.count("\n") == 1


MISSPELLED = {
    "trian thor": "Did you mean 'train'?",
    "train tohr": "Did you mean 'thor'?",
    "train thor": "required: --data_path",
    "train thor --data_path x --checkpoint_path y": "unrecognized arguments",
    "eval thor --data_path x": "required: --checkpoint_path",
    "train thor --data_path x --batchsize 3": "Did you mean '--batch_size'?",
}


@pytest.mark.parametrize("arguments", MISSPELLED)
def test_wrong_words_are_named(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments.split(), "labkit")
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and MISSPELLED[arguments] in shown and "usage: labkit" in shown


def test_a_rank_that_refuses_is_bad_input(monkeypatch, capsys):
    for code, expected in ((2, 2), (1, 1), (None, 1)):

        def fail(*_, code=code, **options):
            raise WorkerFailed("rank 0 failed", exit_code=code)

        monkeypatch.setattr(start, "launch", fail)
        assert main(["train", "thor", "--data_path", "x", "--ranks", "2"], "labkit") == expected
    assert re.fullmatch("(thor: rank 0 failed\n){3}", capsys.readouterr().err)
