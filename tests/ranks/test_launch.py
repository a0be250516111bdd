"""Ranks started by ``launch``: its message for each way to end, and that no process is left.

Most programs in these tests do not join (msrun alone numbers them), so that a launch takes 3 s
instead of 12 s.
"""

import concurrent.futures
import signal
import subprocess
import sys
import time

import psutil
import pytest

from labkit.errors import InputError, WorkerFailed, WorkersTimedOut
from labkit.ranks.launch import child_environment, free_port, launch
from tests.support.living import wait_until

TIMEOUT = 120
# Precedes the code of a test, which runs on ranks 0 and 1 and not on the scheduler.
HEAD = """
import os, signal, subprocess, sys, time
if os.environ["MS_ROLE"] == "MS_SCHED":
    sys.exit()
rank = int(os.environ["RANK_ID"])
print("begins as", rank)
"""
JOINED = """
import sys, time
import labkit
from labkit.ranks.cluster import gather
started = labkit.start("CPU", distribute=True)
for call in range(int(sys.argv[1])):
    print("sum", gather([started.rank + 1]).sum(), "of rank", started.rank, flush=True)
    time.sleep(0.01)
"""

MARK = "MARKED_BY"  # variable that a test sets for what it starts; children inherit it


def marked(by):
    """Return the living processes started with ``MARK=by`` in their environment."""
    every = psutil.process_iter(["environ"])
    return [process for process in every if (process.info["environ"] or {}).get(MARK) == str(by)]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A function that writes a program; the test fails if one of its processes is left."""
    monkeypatch.setenv(MARK, str(tmp_path))

    def write(code, head=HEAD):
        path = tmp_path / "program.py"
        path.write_text(head + code)
        return path

    yield write
    wait_until(lambda: not marked(tmp_path), 10)


def failure(script, *args, kind=WorkerFailed, **options):
    """Launch two ranks, which must fail; return the error."""
    with pytest.raises(kind) as caught:
        launch(script, *args, **({"workers": 2, "timeout": TIMEOUT} | options))
    return caught.value


def test_output_arguments_folder_and_variables_of_ranks_that_end_well(program, tmp_path):
    code = "print(sys.argv[1:], os.getcwd(), os.environ['MINE'], file=sys.stderr)"
    # The environment's programs are found whatever the PATH.
    variables = {"MINE": "given", "PATH": "/usr/bin:/bin"}
    options = {"cwd": tmp_path, "log_dir": tmp_path / "log", "env": variables}
    said = launch(program(code), "--of", "two words", 3, workers=2, timeout=TIMEOUT, **options)
    for rank in (0, 1):
        assert said[rank] == (tmp_path / "log" / f"worker_{rank}.log").read_text()
        words = [f"begins as {rank}", f"['--of', 'two words', '3'] {tmp_path} given"]
        assert said[rank].splitlines() == words


def test_an_error_names_the_rank_and_shows_its_lines(program, tmp_path, capsys):
    code = "print('[INFO] CORE(1,2,python): x', flush=True)\nprint('half', end='', flush=True)\n"
    code += "if rank == 1: raise ValueError('of this rank')\ntime.sleep(60)"
    error = failure(program(code), show=True, log_dir=tmp_path / "log")
    assert capsys.readouterr().out == "begins as 0\nhalf"  # of the first rank, but for the log
    assert (error.rank, error.exit_code) == (1, 1)
    where = tmp_path / "log" / "worker_1.log"
    assert str(error).startswith(f"rank 1 ended with exit code 1; log: {where}\n")
    assert "ValueError: of this rank" in error.tail


def test_a_killed_rank_and_its_children_end(program):
    code = "subprocess.Popen(['sleep', '300'])\n"
    code += "if rank == 0: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)"
    error = failure(program(code))
    assert (error.rank, error.exit_code) == (0, -9)
    assert str(error).startswith("rank 0 was ended by SIGKILL\n")  # and no log that is gone


def test_a_rank_that_ends_before_the_next_begins(program, tmp_path):
    """msrun collects it before this process has seen both, which a busy machine makes likely."""
    code = "import os, subprocess, time\ninit = subprocess.Popen.__init__\n"
    code += "def late(*words, **options):\n"
    code += "    time.sleep(os.environ.get('RANK_ID') == '1')\n    init(*words, **options)\n"
    (tmp_path / "sitecustomize.py").write_text(code + "subprocess.Popen.__init__ = late\n")
    path = program("if rank == 0: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)")
    error = failure(path, env={"PYTHONPATH": str(tmp_path)})
    assert (error.rank, error.exit_code) == (0, -9)


def test_a_rank_that_hangs_shows_where(program):
    code = "def waits_here():\n    time.sleep(300)\nif rank == 1:\n    waits_here()"
    began = time.monotonic()
    error = failure(program(code), kind=WorkersTimedOut, timeout=20)
    assert "not ended after 20 s: rank 1\n" in str(error) and "waits_here" in error.tail
    assert time.monotonic() - began < 40


@pytest.mark.slow
def test_a_rank_killed_while_the_other_waits_in_a_collective(program):
    code = "    if call == 3 and started.rank == 1:\n        import os; os.kill(os.getpid(), 9)\n"
    error = failure(program(code, head=JOINED), 500)
    assert (error.rank, error.exit_code) == (1, -9)


@pytest.mark.slow
def test_the_calling_process_is_killed(program, tmp_path):
    """The kernel ends msrun with its caller, and the ranks that have joined with msrun."""
    path, log = str(program("", head=JOINED)), tmp_path / "log"
    options = f"workers=2, timeout=None, log_dir={str(log)!r}"
    code = f"import labkit; labkit.launch({path!r}, 100000, {options})"
    caller = subprocess.Popen([sys.executable, "-c", code], env=child_environment())
    logs = [log / f"worker_{rank}.log" for rank in (0, 1)]
    wait_until(lambda: all(path.exists() and "sum" in path.read_text() for path in logs), 120)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    wait_until(lambda: not marked(tmp_path), 60)


@pytest.mark.slow
def test_two_nodes_by_address(program):
    """The ranks of a node go on from those of the one before."""
    path, master = program("", head=JOINED), f"127.0.0.1:{free_port()}"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        options = {"workers": 2, "timeout": TIMEOUT, "nodes": 2, "master": master}
        calls = [pool.submit(launch, path, 2, node_rank=node, **options) for node in (0, 1)]
        outputs = [call.result() for call in calls]
    assert [list(output) for output in outputs] == [[0, 1], [2, 3]]
    for rank, text in (outputs[0] | outputs[1]).items():
        assert f"sum 10.0 of rank {rank}\n" in text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"timeout": 0}, "timeout: expected a finite number > 0, got 0"),
        ({"workers": 0}, "workers: expected an integer >= 1, got 0"),
        ({"nodes": 2}, "master: expected HOST:PORT of node 0 for 2 nodes, got None"),
        ({"master": "here"}, "master: expected HOST:PORT .* got 'here'"),
        ({"nodes": 2, "node_rank": 2}, "node_rank: expected an integer >= 0 and <= 1, got 2"),
        (
            {"script": "none.py"},
            "script: expected a Python file, or -m and a module, got 'none.py'",
        ),
    ],
)
def test_what_cannot_be_started(tmp_path, changed, message):
    (tmp_path / "a.py").touch()
    with pytest.raises(InputError, match=message):
        launch(**({"script": tmp_path / "a.py", "workers": 1, "timeout": 60} | changed))
