"""How ranks are started: valid options, the call of each process, and how it ends."""

import argparse
import shlex

import pytest

from labkit.ranks import rank_table
from labkit.recipes import ranks as start
from labkit.recipes.command import main
from labkit.recipes.training import Recipe

STEPS = "# the steps"


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
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


def test_mpirun_is_for_gpus(capsys, device, monkeypatch):
    device("GPU")
    monkeypatch.setattr(start.shutil, "which", lambda name: f"/bin/{name}")
    heading, variables, words = dry(capsys, "--mpirun", "--ranks", "8")
    assert variables == {}
    assert heading == "# mpirun" and words[0] == "/bin/mpirun"
    assert words[words.index("-n") + 1] == "8" and words[-1] == "8"
    device("CPU")
    assert dry(capsys, "--mpirun", "--ranks", "2")[0].startswith("# msrun")


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
        ([], "train|eval"),
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

    made = start.Start((), 2, 1, 0, None, start.Path("logs"), why="why not")
    for code, expected in ((2, 2), (1, 1), (None, 1)):

        def fail(*_, code=code, **options):
            raise WorkerFailed("rank 0 failed", exit_code=code)

        monkeypatch.setattr(start, "launch", fail)
        assert start.run(made, "thor") == expected
    shown = capsys.readouterr()
    assert "thor: rank 0 failed" in shown.err and "(why not)" in shown.out
