"""The command: exit codes, what goes to which stream, tables for people and for pipes."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict

import psutil
import pytest
import typer

from labkit.tools import cli, console
from labkit.tools.labs import find_labs
from labkit.tools.running import runner, watch
from labkit.tools.running.execution import Failure
from labkit.tools.running.watch import Limits
from tests.support.command import labkit
from tests.support.lab_projects import ROOT, write_lab, write_labs
from tests.support.living import interrupted, is_alive
from tests.support.programs import run_code

LAB = {"card": "# 01 · The sums", "parameters": ['preset = "lab"\ndevice = "auto"\nepochs = None']}


@pytest.fixture
def project(tmp_path, monkeypatch):
    source = "from labkit.errors import InputError\nraise InputError('bad!')"
    write_labs(tmp_path, {"01_sums": [source]}, **LAB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("LABKIT_PRESET", "LABKIT_RUN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def outcome(project, failure=None, **results):
    (lab,) = find_labs(project)
    status = "failed" if failure else "passed"
    results = {"status": status, "device": "CPU", "total_seconds": 3.14, "metrics": {}, **results}
    results |= {"error": asdict(failure)} if failure else {}
    return runner.Outcome(lab, {}, project / "out", results)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_longer_than_a_pipe_holds_is_whole_beside_another_threads(unbuffered):
    code = (
        "import threading; from labkit.tools.console import line\n"
        "def write(letter, times, lines):\n"
        "    for _ in range(lines): line(letter * times)\n"
        "threads = [threading.Thread(target=write, args=each)\n"
        "           for each in (('a', 300_000, 20), ('b', 1, 5000))]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    done = run_code(code, env={"PYTHONUNBUFFERED": unbuffered}, check=True)
    lines = done.stdout.splitlines()
    assert sorted(lines, key=len) == ["b"] * 5000 + ["a" * 300_000] * 20


def test_a_reader_who_leaves_stops_nothing():
    code = (
        "import sys; from labkit.tools.console import line\n"
        "line('first')\nsys.stdin.read()\nline('second')\nline('third')"
    )
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as process:
        assert process.stdout.readline() == "first\n"
        process.stdout.close()
        process.stdin.close()
        stderr = process.stderr.read()
    assert process.returncode == 0
    assert stderr == "labkit: nobody reads standard output any more; going on\n"


def test_help_and_list_answer_at_once_and_import_no_mindspore(project):
    code = (
        "import sys, time; began = time.process_time(); from labkit.tools.cli import app\n"
        "try: app(['list'])\n"
        "except SystemExit: pass\n"
        "heavy = {'mindspore', 'papermill', 'nbformat', 'numpy'} & sys.modules.keys()\n"
        "print(time.process_time() - began, *heavy)"
    )
    done = run_code(code, check=True)
    # 0.15 s measured; the imports that are left out take 1.4 s each.
    seconds, *heavy = done.stdout.splitlines()[-1].split()
    assert heavy == []
    assert float(seconds) < 1


def test_list_shows_the_labs_as_plain_columns(project):
    write_lab(project, "02_second_order", card="# 02 · The second_order")
    done = labkit("list")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "number  lab              title             presets          minutes",
        "01      01_sums          The sums          smoke lab paper",
        "02      02_second_order  The second_order  smoke lab paper",
    ]


def commands(group=None, words=()):
    """Yield the words that call each command."""
    group = group or typer.main.get_command(cli.app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name)


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_the_help_of_every_command_shows_an_example(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = labkit(*words, "--help")
    assert done.exit_code == 0
    assert f"Example: labkit {' '.join(words)}" in done.stdout


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ru", "run"),
        ("run 01", "01_sums"),
        ("run 01_sums -p ep", "epochs="),
        ("sweep 01 -p ep", "epochs="),
        ("run -p e", "epochs=\nerror_rate="),
        ("run 02 -p e", "error_rate="),
        ("run --preset s", "smoke"),
        ("sweep 01 --device C", "CPU"),
        ("run -p de", ""),  # device has its own option
        ("doctor ker", "kernel"),
    ],
)
def test_a_shell_completes(project, line, expected):
    write_lab(project, "02_more", parameters=["preset = device = None\nerror_rate = 1"])
    words = f"labkit {line}"
    asked = {"_LABKIT_COMPLETE": "complete_bash", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(len(words.split()) - 1)
    done = labkit(env=asked, prog_name="labkit")
    assert done.exit_code == 0 and done.stdout.strip() == expected, done.output


def test_version():
    done = labkit("--version")
    assert done.exit_code == 0
    assert done.stdout.startswith("labkit ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "7"], "unknown lab '7'"),
        (["run", ""], "LAB: expected a number or name, or nothing for all, got ''"),
        (["run", "--resume", "notebooks"], "notebooks holds no readable run.json"),
        (["run", "--out", "pyproject.toml"], "is not a folder"),
        (["run", "--cell-timeout", "0"], "--cell-timeout"),
        (["rum"], "Did you mean 'run'?"),
        (["run", "--presett", "lab"], "--preset"),
        (["run"], "Did you mean 'smoke'?"),
    ],
)
def test_bad_usage_is_exit_2_on_stderr_with_nothing_created(project, monkeypatch, arguments, said):
    before = sorted(project.rglob("*"))
    if arguments == ["run"]:
        monkeypatch.setenv("LABKIT_PRESET", "smoek")
    done = labkit(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(project.rglob("*")) == before


def test_bad_input_found_by_the_notebook_is_exit_2(project):
    done = labkit("run", "--preset", "smoke", "--out", "out")
    assert done.exit_code == 2
    assert done.stderr == "labkit: 01_sums: bad!\n"
    head, row = done.stdout.splitlines()[-2:]
    assert head.split() == ["lab", "status", "device", "seconds", "headline", "notebook"]
    assert row.split()[:3] == ["01_sums", "failed", "-"]
    assert row.endswith(os.path.join("out", "01_sums", "01_sums.ipynb"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_kernel_too(project, number, code):
    # A worker that has left the session, as msrun's ranks do.
    source = (
        "import os, subprocess, sys, time\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(100)']\n"
        "worker = subprocess.Popen(sleep, start_new_session=True)\n"
        "open('pid', 'w').write(f'{os.getpid()} {worker.pid}.')\ntime.sleep(100)"
    )
    write_lab(project, "01_sums", source, **LAB)
    pid = project / "notebooks" / "pid"
    returned, _, stderr = interrupted(
        ["run", "--out", "out"],
        project,
        lambda: pid.exists() and pid.read_text().endswith("."),
        by=number,
    )
    assert returned == code
    assert not [number for number in pid.read_text().rstrip(".").split() if is_alive(int(number))]
    results = json.loads((project / "out" / "01_sums" / "results.json").read_text())
    assert results["status"] == "interrupted"
    resumable = "labkit: go on with: labkit run --resume out\n"
    assert (resumable in stderr) == (number == signal.SIGINT)


@pytest.fixture
def asked(project, monkeypatch):
    """The requests of `labkit run` to a runner that does nothing."""
    calls = []

    def pretend(lab, request, folder, say, limits, stop=None):
        calls.append((request, folder, limits))
        return outcome(project)

    monkeypatch.setattr(runner, "run_lab", pretend)
    return calls


def test_run_hands_everything_on(project, asked):
    done = labkit("run", "1,sums", "--preset", "smoke", "--device", "CPU", "-p", "epochs=2",
                  "--out", "there", "--cell-timeout", "9", "--timeout", "99", "--memory", "3",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    ((request, folder, limits),) = asked
    assert folder == project / "there" / "01_sums"
    assert limits == Limits(seconds=99, cell_seconds=9, memory=3e9)
    (lab,) = request.labs
    assert (lab.name, request.preset, request.device) == ("01_sums", "smoke", "CPU")
    assert request.of(lab) == {"epochs": 2}


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        (["--preset", "smoke"], 900),
        ([], 3600),
        (["--preset", "paper"], None),
        (["--timeout", "inf"], float("inf")),
    ],
)
def test_labs_are_limited_if_nobody_says(asked, arguments, seconds):
    free = psutil.virtual_memory().available
    assert labkit("run", *arguments).exit_code == 0
    limits = asked[0][-1]
    assert 0.7 * free < limits.memory < 0.95 * free
    assert limits.seconds == seconds


def test_without_free_memory_a_limit_must_be_given(asked, monkeypatch):
    monkeypatch.setattr(watch, "free_memory", lambda: 0.0)
    done = labkit("run")
    assert done.exit_code == 2 and "no memory is free here" in done.stderr and asked == []
    assert labkit("run", "--memory", "3").exit_code == 0 and len(asked) == 1


def test_the_closing_table_shows_the_headline(project, capsys):
    metrics = {"test accuracy": 0.981234, "updates": 1407, "equal": True, "other": 1}
    console.outcomes([outcome(project, metrics=metrics, headline=list(metrics)[:3])])
    assert capsys.readouterr().out.splitlines()[-1] == (
        "01_sums  passed  CPU     3.1      test accuracy 0.9812, updates 1407, equal True  "
        + os.path.join("out", "01_sums.ipynb")
    )


def test_a_failed_lab_is_explained_in_two_lines(project, capsys):
    console.outcomes([outcome(project, Failure("ValueError", "no\nand no", 7))])
    assert capsys.readouterr().err.splitlines() == [
        "labkit: 01_sums failed in cell 7: ValueError: no",
        "    out/01_sums.ipynb shows where",
    ]


def test_a_terminal_gets_a_drawn_table(project, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    console.outcomes([outcome(project)])
    drawn = capsys.readouterr().out
    assert "───" in drawn and "01_sums" in drawn and "\x1b[32mpassed" in drawn


def test_a_path_that_may_not_be_looked_at_is_bad_input(tmp_path, monkeypatch):
    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os.path, "isdir", denied)
    done = labkit("report", str(tmp_path / "x"))
    assert done.exit_code == 2 and done.stderr.startswith("labkit: [Errno 13] Permission denied: ")
    assert done.stderr.count("\n") == 1
