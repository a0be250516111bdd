"""How ranks are started: valid options, the call of each process, and how it ends."""

import argparse
import shlex

import pytest

from labkit.ranks import rank_table
from labkit.recipes import RECIPES, start
from labkit.recipes.command import main


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("RANK_SIZE", "MS_WORKER_NUM", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


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
    """Return (heading, variables, command) of each process that a dry run prints."""
    assert main(["train", "thor", "--data_path", "x", *arguments, "--dry-run"], "labkit") == 0
    lines = capsys.readouterr().out.splitlines()
    processes = []
    for heading, line in zip(lines[::2], lines[1::2], strict=True):
        words = shlex.split(line)
        count = next(n for n, word in enumerate(words) if "=" not in word)
        variables = dict(word.split("=", 1) for word in words[:count])
        processes.append((heading, variables, words[count:]))
    return processes


def test_a_dry_run_has_every_process(capsys, device):
    device("CPU")
    options = ["--seed", "2", "--ranks", "2", "--set", "batch_size=4", "--log_dir", "my logs"]
    (_, shared, msrun), (heading, variables, words), *ranks = dry(capsys, *options)
    assert heading == "# the scheduler, started by msrun"
    assert (variables["MS_ROLE"], variables["RANK_SIZE"]) == ("MS_SCHED", "2")
    assert words == msrun[msrun.index("python") :]
    assert msrun[0].endswith("msrun") and msrun[msrun.index("--log_dir") + 1] == "my logs"
    for number, (heading, variables, words) in enumerate(ranks):
        assert heading == f"# rank {number}, started by msrun"
        assert (variables["RANK_ID"], variables["RANK_SIZE"]) == (str(number), "2")
        assert shared.items() < variables.items() and shared["PYTHONSAFEPATH"] == "1"
        assert variables["DEVICE_ID"] == str(number)
        assert words == msrun[msrun.index("python") :]
        assert words[:3] == ["python", "-m", "labkit.recipes.thor"]
        assert (
            words[3:]
            == (
                "train --data_path x --seed 2 --set batch_size=4 "
                "--run_distribute True --device_num 2"
            ).split()
        )
    assert len(ranks) == 2


def test_a_dry_run_of_one_process(capsys, device, monkeypatch):
    device("CPU")
    ((heading, variables, words),) = dry(capsys, "--seed", "2")
    assert (heading, variables) == ("# one process", {})
    assert words == "python -m labkit.recipes.thor train --data_path x --seed 2".split()


def test_two_machines_number_their_ranks_through(capsys, device):
    device("CPU")
    shared = ["--ranks", "2", "--nodes", "2", "--master", "127.0.0.1:39121"]
    for node in (0, 1):
        (_, _, msrun), *ranks = dry(capsys, *shared, "--node_rank", str(node))
        if node == 0:  # only node 0 has the scheduler
            assert ranks.pop(0)[1]["MS_ROLE"] == "MS_SCHED"
        assert [rank[1]["RANK_ID"] for rank in ranks] == [str(2 * node), str(2 * node + 1)]
        assert [rank[1]["DEVICE_ID"] for rank in ranks] == ["0", "1"]
        assert msrun[msrun.index("--node_rank") + 1] == str(node)
        assert ranks[0][2][-1] == "4"


@pytest.mark.parametrize("name", ["Ascend", "CPU"])
def test_a_rank_table_says_ranks_and_master(capsys, device, tmp_path, name):
    device(name)
    path = table(tmp_path / "t.json", 2, 2)
    (_, variables, msrun), *ranks = dry(capsys, "--rank_table", path, "--node_rank", "1")
    assert msrun[msrun.index("--master_addr") + 1] == "10.0.0.1"
    assert msrun[msrun.index("--master_port") + 1] == "8118"
    assert [rank[1]["RANK_ID"] for rank in ranks] == ["2", "3"]
    for each in (variables, *(rank[1] for rank in ranks)):
        assert each.get("RANK_TABLE_FILE") == (path if name == "Ascend" else None)


def test_mpirun_is_for_gpus(capsys, device, monkeypatch):
    device("GPU")
    monkeypatch.setattr(start.shutil, "which", lambda name: f"/bin/{name}")
    ((heading, variables, words),) = dry(capsys, "--mpirun", "--ranks", "8")
    assert list(variables) == ["PYTHONPATH"]
    assert heading == "# mpirun" and words[0] == "/bin/mpirun"
    assert words[words.index("-n") + 1] == "8" and words[-1] == "8"
    device("CPU")
    assert dry(capsys, "--mpirun", "--ranks", "2")[0][0] == "# msrun"


WRONG = {
    "logs of no rank": (["--log_dir", "logs"], "expected --ranks N"),
    "no number": (["--nodes", "2"], "expected --ranks N"),
    "both ways": (["--ranks", "2", "--run_distribute", "True"], "expected neither with --ranks"),
    "no master": (["--ranks", "2", "--nodes", "2"], "master: expected HOST:PORT"),
    "more than the table has": (
        ["--rank_table", "t.json", "--ranks", "3"],
        "--ranks: expected 2, as in the rank table, got 3",
    ),
    "another server": (["--rank_table", "t.json", "--node_rank", "2"], ">= 0 and <= 1, got 2"),
    "no server": (["--rank_table", "t.json", "--node_rank", "-1"], ">= 0 and <= 1, got -1"),
    "unequal servers": (["--rank_table", "u.json"], "the servers have [1, 2] devices"),
    "other devices": (["--rank_table", "v.json"], "has device 4 as rank 0; expected device 0"),
    "no table": (["--rank_table", "none.json"], "cannot read none.json"),
    "no ranks": (["--ranks", "0"], "ranks: expected an integer >= 1, got 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_go_together(capsys, device, tmp_path, case):
    device("CPU")
    table(tmp_path / "t.json", 2, 2)
    table(tmp_path / "u.json", 2, 1)
    table(tmp_path / "v.json", 2, ids=[4, 5])
    arguments, message = WRONG[case]
    assert main(["train", "thor", "--data_path", "x", *arguments, "--dry-run"], "labkit") == 2
    shown = capsys.readouterr().err
    assert shown.startswith("thor: ") and message in shown and shown.count("\n") == 1


@pytest.mark.parametrize(("name", "by"), [("CPU", []), ("GPU", ["--mpirun"])])
def test_logs_that_cannot_be_kept_are_bad_input(capsys, device, monkeypatch, tmp_path, name, by):
    device(name)
    monkeypatch.setattr(start.shutil, "which", lambda name: f"/bin/{name}")
    (tmp_path / "file").touch()
    for folder in ("file", "file/logs"):
        given = ["train", "thor", "--data_path", "x", "--ranks", "2", *by, "--log_dir", folder]
        assert main(given, "labkit") == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_settings_are_checked_before_any_rank_starts(capsys, monkeypatch):
    monkeypatch.setattr(start, "run", lambda *_: pytest.fail("started"))
    assert main(["train", "thor", "--data_path", "x", "--ranks", "2", "--seed", "-1"], "l") == 2
    assert "seed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "train|eval|predict|plan"),
        (["trian", "thor"], "Did you mean 'train'?"),
        (["train"], "got ''"),
        (["train", "tohr"], "Did you mean 'thor'?"),
        (["eval", "subspace_stage_1"], "Did you mean 'subspace-1'?"),
    ],
)
def test_commands_and_recipes(capsys, arguments, message):
    assert main(arguments, "labkit") == 2
    assert message in capsys.readouterr().err


def test_an_unknown_option_has_its_nearest_name(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "thor", "--data_path", "x", "--batchsize", "3"], "labkit")
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert "labkit train thor: error: unrecognized arguments: --batchsize 3" in shown
    assert "Did you mean '--batch_size'?" in shown


def test_every_recipe_has_a_name():
    assert len(set(RECIPES.values())) == len(RECIPES) == 6


def test_what_only_the_start_knows_is_not_handed_on():
    given = "train --ranks 2 --seed 3 --nodes=2 --mpirun --dry-run --set a=b".split()
    assert start.without_options(given) == "train --seed 3 --set a=b".split()
    assert not start.asked(
        argparse.Namespace(
            **dict.fromkeys(("ranks", "nodes", "node_rank", "master", "rank_table", "log_dir")),
            mpirun=False,
            dry_run=False,
        )
    )


def test_what_the_first_rank_writes_is_shown_once_and_without_mindspores_log(tmp_path, capsys):
    log = tmp_path / "log"
    log.write_text("of an earlier run\n")
    with start._shown(log):
        assert not log.exists()
        log.write_bytes(b"one\n[INFO] DISTRIBUTED(1,2,python): x\ntwo \xff\nhalf")
    assert capsys.readouterr().out == "one\ntwo \ufffd\nhalf"


def test_a_rank_that_refuses_is_bad_input(monkeypatch, capsys):
    from labkit.errors import WorkerFailed

    made = start.Start((), 2, 1, 0, None, start.Path("logs"), "msrun", {}, "why not")
    for code, expected in ((2, 2), (1, 1), (None, 1)):

        def fail(_, code=code):
            raise WorkerFailed("rank 0 failed", exit_code=code)

        monkeypatch.setattr(start, "_by_msrun", fail)
        assert start.run(made, "thor") == expected
    shown = capsys.readouterr()
    assert "thor: rank 0 failed" in shown.err and "(why not)" in shown.out
