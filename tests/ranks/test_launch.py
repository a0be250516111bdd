"""Ranks started by ``launch``: its message for each way to end, and that no process is left.

Most programs in these tests do not join (msrun alone numbers them), so that a launch takes 3 s
instead of 12 s.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import labkit
from labkit.base.cores import equal_shares
from labkit.errors import InputError, WorkerFailed, WorkersTimedOut
from labkit.ranks import failures, msrun, processes
from labkit.ranks import plan as launch_plan
from labkit.ranks.failures import Failures, culprit
from labkit.ranks.launch import launch
from labkit.ranks.msrun import SCHEDULER, Job
from tests.support.living import is_alive, ranks_of, wait_until
from tests.support.ports import free_port
from tests.support.programs import run_code

TIMEOUT = 120
# Precedes the code of a test, which runs on ranks 0 and 1 and not on the scheduler.
HEAD = """
import os, signal, subprocess, sys, time
if os.environ["MS_ROLE"] == "MS_SCHED":
    sys.exit()
rank = int(os.environ["RANK_ID"])
print("begins as", rank)
"""
# Variables that MindSpore sets on import: in msrun, and again in each rank.
OF_AN_IMPORT = (
    *("HCCL_CONNECT_TIMEOUT", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"),
    "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",
)
JOINED = """
import sys, time
import labkit
from labkit.ranks.cluster import gather
started = labkit.start("CPU", distribute=True)
for call in range(int(sys.argv[1])):
    print("sum", gather([started.rank + 1]).sum(), "of rank", started.rank, flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def program(tmp_path):
    """A function that writes a program; the test fails if one of its processes is left."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    def write(code, head=HEAD):
        path = tmp_path / "program.py"
        path.write_text(head + code)
        return path

    yield write
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert [child.cmdline() for child in left] == []
    assert about(tmp_path) == []


def about(folder):
    """Return the PIDs of processes with ``folder`` in their command line or working folder."""
    return [
        process.pid
        for process in psutil.process_iter(["cwd", "cmdline", "status"])
        if process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE
        if str(folder) in " ".join([process.info["cwd"] or "", *(process.info["cmdline"] or ())])
    ]


def text(path):
    return path.read_text() if path.exists() else ""


def failure(script, *args, kind=WorkerFailed, **options):
    """Launch two ranks, which must fail; return the error and its text."""
    with pytest.raises(kind) as caught:
        launch(script, *args, **({"workers": 2, "timeout": TIMEOUT} | options))
    return caught.value, str(caught.value)


def planned(path, **changed):
    """Return the plan for two ranks of a program."""
    options = {"workers": 2, "timeout": None, "cluster_timeout": 60, "nodes": 1, "node_rank": 0}
    options |= {"master": None, "cwd": path.parent, "port": 8118}
    return launch_plan.plan(path, (), **options | changed)


def begun(*args, **options):
    """Launch in a thread; return the future of its outcome."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(launch, *args, **options)
    finally:
        pool.shutdown(wait=False)


class TestEnds:
    def test_well(self, program, tmp_path, monkeypatch):
        """The ranks also get the environment that ``msrun`` computes, which a dry run prints."""
        head = (
            "import json, os\n"
            "who = os.environ['MS_ROLE'] + os.environ['RANK_ID']\n"
            "with open(who, 'w') as file: json.dump(dict(os.environ), file)\n"
        )
        code = "import labkit.errors\nprint(sys.argv[1:], labkit.__file__, file=sys.stderr)"
        work, log = tmp_path / "work", tmp_path / "log"
        work.mkdir()
        log.mkdir()
        (log / "worker_0.log").write_text("of an earlier call")
        for name in ("msrun", "scheduler", "worker_1"):
            (tmp_path / f"{name}.mine").write_text("mine")
            (log / f"{name}.log").symlink_to(tmp_path / f"{name}.mine")
        monkeypatch.setenv("RANK_ID", "7")  # as in a rank that itself starts ranks
        monkeypatch.setenv("MS_ROLE", "MS_WORKER")
        monkeypatch.delenv("PYTHONPATH", raising=False)
        path, given = program(code, head=head + HEAD), {"MINE": "given"}
        arguments = ("--of", "two words", Path("a"), 3, 0.5)
        options = {"workers": 2, "timeout": TIMEOUT, "cwd": work, "log_dir": log, "env": given}
        done = launch(path, *arguments, **options)
        assert list(done.logs) == list(done.output) == [0, 1]
        assert {path.read_text() for path in tmp_path.glob("*.mine")} == {"mine"}
        for rank in (0, 1):
            assert done.output[rank] == done.logs[rank].read_text()
            assert done.output[rank].splitlines() == [
                f"begins as {rank}",
                f"{['--of', 'two words', 'a', '3', '0.5']} {labkit.__file__}",
            ]
        assert 0 < done.seconds < TIMEOUT
        for name, who in ((SCHEDULER, "MS_SCHED0"), (0, "MS_WORKER0"), (1, "MS_WORKER1")):
            real = json.loads((work / who).read_text())  # and so ``cwd`` was used
            plan = planned(path, cwd=work, port=int(real["MS_SCHED_PORT"]))
            said = msrun.own_variables(plan, given) | msrun.variables(plan, name)
            assert said.items() >= given.items()
            real = {key: value for key, value in real.items() if key not in OF_AN_IMPORT}
            expected = os.environ | said | {processes.MARK: real[processes.MARK]}
            assert real == {k: v for k, v in expected.items() if k not in OF_AN_IMPORT}

    def test_an_error_names_the_rank_and_shows_its_lines(self, program, tmp_path):
        code = (
            "print('[WARNING] DISTRIBUTED(1,2,python): noise')\n"
            "if rank == 1:\n"
            "    raise ValueError('my own mistake')\n"
            "print('all is well here'); time.sleep(60)"
        )
        error, said = failure(program(code))
        assert said.startswith("rank 1 of 2 failed: ValueError: my own mistake (exit code 1)\n")
        assert "    raise ValueError('my own mistake')" in said and "    begins as 1\n" in said
        assert "well here" not in said and "noise" not in said and "no log is kept" in said
        assert (error.rank, error.ranks, error.exit_code, error.signal) == (1, (1,), 1, None)
        assert error.tail.endswith("ValueError: my own mistake")
        assert "all is well here" in error.output[0] and error.logs == {}

    def test_the_first_cause_and_not_the_first_end(self, program, tmp_path):
        """Rank 0 fails only because rank 1 does, but ends first; the program is a module."""
        program(
            "while rank == 0:\n"
            "    if os.path.exists('there'): raise RuntimeError('Connection to rank 1 was lost')\n"
            "    time.sleep(0.05)\n"
            "import atexit\n"
            "atexit.register(lambda: (open('there', 'w').close(), time.sleep(30)))\n"
            "raise KeyError('the cause')"
        )
        error, said = failure("-m", "program", cwd=tmp_path, log_dir=tmp_path / "log")
        # There is no exit code, because msrun ended the rank when rank 0 had failed.
        assert said.startswith("rank 1 of 2 failed: KeyError: 'the cause'\n")
        assert (error.exit_code, error.signal) == (None, None)
        assert "was lost" not in said and error.rank == 1
        assert f"log: {tmp_path / 'log' / 'worker_1.log'}" in said

    def test_a_rank_that_hangs_shows_where(self, program, tmp_path, monkeypatch):
        """The time is up when one rank has ended and the other hangs."""
        monkeypatch.delenv("PYTHONFAULTHANDLER", raising=False)
        code = "def stuck():\n    print('here')\n    time.sleep(600)\nif rank == 1: stuck()"
        log, look, passed = tmp_path / "log", Job.look, []

        def looked(job):
            look(job)
            if job.codes.get(0) == 0 and "here" in text(log / "worker_1.log"):
                passed.append(TIMEOUT)

        monkeypatch.setattr(Job, "look", looked)
        clock = SimpleNamespace(
            monotonic=lambda: time.monotonic() + sum(passed[:1]), sleep=time.sleep
        )
        monkeypatch.setattr("labkit.ranks.launch.time", clock)
        error, said = failure(program(code), kind=WorkersTimedOut, log_dir=log)
        assert isinstance(error, TimeoutError) and error.ranks == (1,)
        assert said.startswith("not ended after 120 s: rank 1 of 2 still ran, 0 had ended\n")
        assert "line 9 in stuck" in said and "begins as 0" not in said

    def test_a_rank_that_does_not_join_is_named_and_not_who_waited(self, program, tmp_path):
        code = (
            "def load():\n"
            "    open(there, 'w').close()\n"
            "    time.sleep(600)\n"
            f"there = {str(tmp_path / 'there')!r}\n"
            "if rank == 1:\n"
            "    load()\n"
            "while not os.path.exists(there):\n"
            "    time.sleep(0.1)\n"
            "raise RuntimeError('Failed to initialize distributed job cluster because some '\n"
            "                   'processes in the cluster are not successfully spawned.')"
        )
        error, said = failure(program(code), cluster_timeout=7)
        assert said.startswith("rank 1 of 2 had not joined the others in 7 s\n")
        assert "line 9 in load" in said and "initialize" not in said and error.rank == 1


class TestProcesses:
    def test_children_of_a_killed_rank_end_too(self, program, tmp_path, monkeypatch):
        """One child has its own session; the other, with an empty environment, has lost its parent.

        When this process looks again, msrun has already killed the other rank.
        """
        look = Job.look

        def late(job):
            wait_until(lambda: 1 not in job.pids or all(map(msrun._ended, job.pids.values())))
            look(job)

        monkeypatch.setattr(Job, "look", late)
        monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
        code = (
            "if rank == 1:\n"
            "    nap = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
            "    own = subprocess.Popen(nap, start_new_session=True)\n"
            "    bare = subprocess.Popen(nap, env={})\n"
            "    open('pids', 'w').write(f'{own.pid} {bare.pid}')\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "time.sleep(600)"
        )
        error, said = failure(program(code), cwd=tmp_path)
        assert said.startswith("rank 1 of 2 was ended by SIGKILL: from outside, or")
        assert (error.rank, error.signal, error.exit_code) == (1, "SIGKILL", None)
        assert error.tail == "begins as 1"  # not lost in a buffer
        children = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert len(children) == 2 and not any(map(is_alive, children))

    @pytest.mark.slow
    def test_a_rank_killed_while_the_other_waits_in_a_collective(self, program, tmp_path):
        log = tmp_path / "log" / "worker_1.log"
        options = {"workers": 2, "timeout": TIMEOUT, "log_dir": tmp_path / "log", "cwd": tmp_path}
        outcome = begun(program(JOINED, head=""), 100_000, **options)
        wait_until(lambda: text(log).count("sum 3.0 of rank 1") > 3)
        ranks = ranks_of(os.getpid())
        for rank, share in enumerate(equal_shares(2)):
            for task in ranks[rank].threads():
                assert os.sched_getaffinity(task.id) == share  # a rank keeps to its cores
        killed = time.monotonic()
        ranks[1].kill()
        error = outcome.exception(60)
        seconds = time.monotonic() - killed
        print(f"{seconds:.1f} s from SIGKILL to the error")
        assert isinstance(error, WorkerFailed) and seconds < 15
        assert str(error).startswith("rank 1 of 2 was ended by SIGKILL")
        assert "sum 3.0 of rank 1" in error.tail
        assert about(tmp_path) == []

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_the_calling_process_is_ended(self, program, tmp_path, number):
        """It ends by Ctrl-C, or by SIGKILL, which leaves it no time to clean up."""
        path = program("open(f'rank{rank}', 'w').close(); time.sleep(600)")
        call = f"from labkit import launch; launch({str(path)!r}, workers=2, timeout=None)"
        caller = subprocess.Popen(
            [sys.executable, "-c", call],
            cwd=tmp_path,
            env=processes.child_environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: (tmp_path / "rank0").exists() and (tmp_path / "rank1").exists())
        assert len(about(tmp_path)) >= 4  # the caller, msrun, two ranks
        caller.send_signal(number)
        _, said = caller.communicate(timeout=20)
        assert caller.returncode == -number
        assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
        wait_until(lambda: not about(tmp_path), seconds=10)

    def test_msrun_itself_is_killed(self, program, tmp_path):
        code = (
            "msrun = os.getppid()\n"
            "open(f'rank{rank}', 'w').close()\n"
            "while not os.path.exists('rank0'): time.sleep(0.05)\n"
            "if rank == 1: os.kill(msrun, signal.SIGKILL)\n"
            "time.sleep(600)"
        )
        error, said = failure(program(code), cwd=tmp_path)
        assert said.startswith("msrun was ended by SIGKILL") and error.rank is None

    def test_what_another_call_has_started_is_left_alone(self, monkeypatch):
        """A call inside this one is ended too: its guard is a process of this call."""
        nap = ["sleep", "600"]
        with processes.guarded() as first, processes.guarded() as other:
            monkeypatch.setenv(processes.MARK, first[processes.MARK])
            with pytest.warns(RuntimeWarning, match="ended before"), processes.guarded() as inner:
                mine, within, theirs = (
                    subprocess.Popen(nap, env=os.environ | mark) for mark in (first, inner, other)
                )
                processes.end(first[processes.MARK])
                assert mine.wait(5) == within.wait(5) == -signal.SIGKILL
                assert theirs.poll() is None
        assert theirs.wait(5) == -signal.SIGKILL

    def test_a_guard_takes_no_module_of_the_working_folder(self, tmp_path):
        """A learner's signal.py once made the guard end immediately and silently."""
        for name in ("signal", "select", "psutil", "torch", "labkit"):
            (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        code = (
            "import os, subprocess, time\n"
            "from labkit.ranks.processes import guarded\n"
            "with guarded() as mark:\n"
            "    nap = subprocess.Popen(['sleep', '600'], env=os.environ | mark)\n"
            "    print(nap.pid, flush=True)\n"
            "    time.sleep(600)\n"
        )
        caller = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            cwd=tmp_path,
            env=processes.child_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        nap = int(caller.stdout.readline())
        caller.kill()
        assert caller.communicate()[1] == ""
        wait_until(lambda: not is_alive(nap), seconds=20)
        assert not (tmp_path / "ran").exists()

    def test_an_empty_part_of_pythonpath_is_left_out(self):
        here = str(Path(labkit.__file__).parents[1])
        for before in ("", ":", ":/a::/b:", "/a:/b"):
            parts = processes.python_path(before).split(os.pathsep)
            assert parts == [here, *(part for part in before.split(":") if part)]
        assert processes.python_path(None) == here

    def test_a_guard_that_does_not_live_is_spoken_of(self, tmp_path, monkeypatch):
        broken = tmp_path / "python"
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(broken))
        with pytest.warns(RuntimeWarning, match="the guard of this call did not start"):
            with processes.guarded():
                pass
        monkeypatch.undo()
        with pytest.warns(RuntimeWarning, match="ended before the call did"):
            with processes.guarded() as mark:
                (guard,) = [
                    child
                    for child in psutil.Process().children()
                    if mark[processes.MARK] in child.cmdline()
                ]
                guard.kill()
                wait_until(lambda: not is_alive(guard.pid))

    def test_a_session_with_the_number_of_one_that_is_gone(self):
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        try:
            created = processes.created(child.pid)
            processes.end("no such mark", {child.pid: created - 60})
            assert child.poll() is None
            processes.end("no such mark", {child.pid: created})
            assert child.wait(5) == -signal.SIGKILL
        finally:
            child.kill()


class TestNodes:
    OF_TWO = {"workers": 1, "timeout": TIMEOUT, "nodes": 2}

    @pytest.mark.slow
    def test_two_nodes_by_address(self, program, tmp_path):
        """Both nodes are this machine, with one rank each; the ranks join and sum over both."""
        path, port = program(JOINED, head=""), free_port()
        soon = dict.fromkeys(msrun._INTERVAL, "1")  # the interval on one machine
        outcomes = {}
        for node in (1, 0):
            folder = tmp_path / f"node{node}"
            folder.mkdir()
            options = self.OF_TWO | {"node_rank": node, "master": f"127.0.0.1:{port}"}
            options |= {"cwd": folder, "log_dir": folder / "log", "env": soon}
            outcomes[node] = begun(path, 3, **options)
        for node, done in ((node, outcome.result(TIMEOUT)) for node, outcome in outcomes.items()):
            assert list(done.output) == list(done.logs) == [node]
            assert done.output[node].count(f"sum 3.0 of rank {node}") == 3

    def test_the_end_of_node_0_ends_a_rank_that_does_not_hear_of_it(
        self, program, tmp_path, monkeypatch
    ):
        """A rank in a long C function, which handles SIGTERM as an exception, does not notice."""
        monkeypatch.setattr("labkit.ranks.launch._PARTING", 0.5)
        log = tmp_path / "log"
        with socket.create_server(("127.0.0.1", 0)) as scheduler:
            master = f"127.0.0.1:{scheduler.getsockname()[1]}"
            options = self.OF_TWO | {"node_rank": 1, "master": master, "log_dir": log}
            outcome = begun(program("time.sleep(600)"), **options)
            wait_until(lambda: "begins as 1" in text(log / "worker_1.log"))
            scheduler.settimeout(10)
            scheduler.accept()[0].close()
        began = time.monotonic()
        error = outcome.exception(20)
        assert 0.5 <= time.monotonic() - began < 6
        assert isinstance(error, WorkerFailed) and error.ranks == (0,)
        assert str(error) == (
            f"node 0 at {master} has ended: the call there says why; rank 1 of 2 cannot go on "
            f"without it\n  logs: {log}"
        )


REFUSED = {
    "no script": ({"script": "nowhere.py"}, "there is no script .*nowhere.py"),
    "a folder": ({"script": "."}, "there is no script"),
    "no text": ({"script": None}, "script: expected a text, a path or a number, got None"),
    "-m alone": ({"script": "-m"}, "-m: expected the name of a module"),
    "no worker": ({"workers": 0}, "workers: expected an integer >= 1, got 0"),
    "no time": ({"timeout": 0}, "timeout: expected a finite number > 0, got 0"),
    "cluster": ({"cluster_timeout": 0}, "cluster_timeout: expected an integer >= 1, got 0"),
    "no node": ({"nodes": 0}, "nodes: expected an integer >= 1, got 0"),
    "no such node": ({"nodes": 2, "node_rank": 2}, "node_rank: expected .* >= 0 and <= 1, got 2"),
    "no master": ({"nodes": 2}, "master: expected HOST:PORT of node 0 with nodes=2, got None"),
    "no port": ({"master": "127.0.0.1"}, "expected HOST:PORT"),
    "no host": ({"master": ":8118"}, "expected HOST:PORT"),
    "bare IPv6": ({"master": "::1:8118"}, "expected HOST:PORT"),
    "small port": ({"master": "127.0.0.1:1023"}, "expected a port from 1024 to 65535"),
    "large port": ({"master": "127.0.0.1:65536"}, "expected a port from 1024"),
    "bad address": ({"master": "300.1.2.3.4:8118"}, "has no address"),
    "not here": ({"master": "192.0.2.1:8118"}, r"used here \(.*expected a free port at an address"),
    "no folder": ({"cwd": "nowhere"}, "cwd: expected a folder, got .*nowhere, which is not there"),
    "cwd a file": ({"cwd": __file__}, "cwd: expected a folder, got .*, which is a file"),
    "log_dir": ({"log_dir": 3}, "log_dir: expected a folder, got 3"),
    "log_dir a file": (
        {"log_dir": __file__},
        "log_dir: expected a folder, got .*, which is a file",
    ),
    "in a file": ({"log_dir": f"{__file__}/log"}, "cannot be written"),
    "silence": (
        {"nodes": 2, "node_rank": 1, "master": "127.0.0.1:8118", "env": {"MS_NODE_TIMEOUT": "no"}},
        "MS_NODE_TIMEOUT: expected seconds, got 'no'",
    ),
    "env as a list": ({"env": ["A=1"]}, "env: expected a mapping of texts to texts, got"),
    "env": ({"env": {"A": 1}}, "env: expected texts, got {'A': 1}"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_started(case, tmp_path, monkeypatch):
    options, message = REFUSED[case]
    (tmp_path / "a.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", None)  # no process may be started
    options = {"script": "a.py", "workers": 1, "timeout": 60} | options
    with pytest.raises(InputError, match=message):
        launch(options.pop("script"), **options)
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


@pytest.mark.parametrize(("first", "order"), [(10, [0, 1]), (11, [1, 0])])
def test_msrun_says_who_ended_first_of_those_of_one_look(tmp_path, monkeypatch, first, order):
    """Rank 0, process 10, ends after it is looked at and before rank 1 is looked at."""
    plan = SimpleNamespace(nodes=1, ranks=[0, 1])
    job = Job(None, tmp_path, plan, {}, None)
    job.pids |= {0: 10, 1: 11}
    line = f"Worker process {first} exit with exception. Error code: -9.\n"
    (tmp_path / "msrun.log").write_text(line)
    answers = iter([False, True, True, True])
    monkeypatch.setattr(msrun, "_ended", lambda pid: next(answers))
    assert job._ended_since() == order


@pytest.mark.parametrize("missing", ["msrun", "python"])
def test_an_environment_without_msrun(tmp_path, monkeypatch, missing):
    for name in {"a.py", "msrun", "python"} - {missing}:
        (tmp_path / name).write_text("")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    with pytest.raises(InputError, match=f"^{missing} is not beside .*python3; expected"):
        launch(tmp_path / "a.py", workers=1, timeout=60)


def test_a_held_port_is_taken_by_nobody_but_a_server_that_reuses_addresses():
    """MindSpore's scheduler is such a server; names and IPv6 addresses work too."""
    assert launch_plan._address("localhost:8118") == ("localhost", 8118)
    assert launch_plan._address("[::1]:8118") == ("::1", 8118)
    with launch_plan.held_port() as port, socket.socket() as other, socket.socket() as server:
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            pass
    with launch_plan.held_port() as port:
        pass
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


LOWER, UPPER = "MS_RETRY_INTERVAL_LOWER", "MS_RETRY_INTERVAL_UPPER"


@pytest.mark.parametrize(
    ("nodes", "here", "more", "expected"),
    [
        (1, {}, {}, {LOWER: "1", UPPER: "1"}),
        (2, {}, {}, {}),
        (1, {LOWER: "4"}, {}, {}),  # inherited; MindSpore's default for the other
        (1, {}, {LOWER: "2", UPPER: "9"}, {LOWER: "2", UPPER: "9"}),
    ],
)
def test_ranks_of_one_machine_ask_each_other_again_after_a_second(
    tmp_path, monkeypatch, nodes, here, more, expected
):
    """Values from this process or from the caller take precedence."""
    (tmp_path / "a.py").write_text("")
    for name in (LOWER, UPPER):
        monkeypatch.delenv(name, raising=False)
    for name, value in here.items():
        monkeypatch.setenv(name, value)
    master = None if nodes == 1 else "localhost:8118"  # only node 0 checks it
    plan = planned(tmp_path / "a.py", nodes=nodes, node_rank=nodes - 1, master=master)
    own = msrun.own_variables(plan, more)
    assert {name: own[name] for name in (LOWER, UPPER) if name in own} == expected


def test_what_steps_and_runtime_load_is_no_process_supervisor():
    code = "import sys, labkit.runtime, labkit.ranks.cluster; sys.exit('psutil' in sys.modules)"
    assert run_code(code).returncode == 0


class FakeJob:
    """A job with given exit codes and logs."""

    def __init__(self, codes, logs, gone=None):
        self.codes, self.logs, self.pids = codes, logs, dict.fromkeys(logs)
        self.gone = gone

    def without_master(self):
        return self.gone

    def failed(self):
        return [name for name, code in self.codes.items() if code]

    def log(self, name):
        return self.logs.get(name, "")

    def path(self, name):
        return Path("log") / str(name)


class TestOtherNodes:
    """What node 0 or 1 of two says when the other node's rank is gone."""

    COLLECTIVE = (
        "Traceback (most recent call last):\n  File\nRuntimeError: \n"
        f"{'-' * 52}\n- Kernel error:\n{'-' * 52}\n\nLaunch kernel failed: Default/AllReduce-op0\n"
    )
    LOST_1 = "[ERROR] x.cc:548] UpdateTopoState] The node: 1 is timed out. It may exit with"
    GONE = "node 0 at 10.0.0.1:8118 cannot be reached (Connection timed out)"

    def first_cause(self, node, code, scheduler="", log="its lines", gone=None):
        plan = launch_plan.Plan(
            *(Path("msrun"), ("a.py",), 1, 2, node, "10.0.0.1", 8118, 60.0, 60),
        )
        logs = {SCHEDULER: scheduler, node: log}
        return Failures(FakeJob({node: code}, logs, gone), plan, kept=True).first_cause()

    @pytest.mark.parametrize("code", [-signal.SIGTERM, 128 + signal.SIGTERM, 1])
    def test_whose_end_is_known(self, code):
        """The words are those of MindSpore 2.10.0's scheduler after a SIGKILL on node 1."""
        log = self.COLLECTIVE if code == 1 else "its lines"
        error = self.first_cause(0, code, self.LOST_1, log)
        assert str(error).startswith("rank 1 of 2, on another node, stopped answering: the ")
        assert error.rank == 1 and error.output == {0: log}
        error = self.first_cause(1, code, log=self.COLLECTIVE if code == 1 else "", gone=self.GONE)
        said = f"{self.GONE}; rank 1 of 2 cannot go on without it\n  logs: log"
        assert (str(error), error.rank) == (said, 0)

    def test_without_their_word(self):
        error = self.first_cause(1, -signal.SIGTERM)
        assert str(error).startswith(
            "rank 1 of 2 was ended by SIGTERM: from outside, or by MindSpore, because a rank of "
            "another node is gone\n"
        )
        assert (error.rank, error.signal, error.tail) == (1, "SIGTERM", "its lines")
        error = self.first_cause(1, 128 + signal.SIGTERM)
        assert "another node is gone (exit code 143)\n" in str(error) and error.exit_code == 143

    @pytest.mark.parametrize("gone", [None, GONE])
    def test_an_end_of_its_own(self, gone):
        error = self.first_cause(int(gone is not None), 3, self.LOST_1, gone=gone)
        assert re.match(r"rank [01] of 2 failed \(exit code 3\)\n", str(error))

    def test_a_collective_without_the_others(self):
        error = self.first_cause(0, 1, log=self.COLLECTIVE)
        assert str(error).startswith(
            "rank 0 of 2 failed: RuntimeError: Launch kernel failed: Default/AllReduce-op0: not "
            "every rank arrived in time; one has ended, or is behind (exit code 1)\n"
        )


class TestLogs:
    LOST = "Traceback (most recent call last):\n  File\nRuntimeError: {}\n"
    OWN = LOST.replace("RuntimeError: {}", "ValueError: mine")

    def test_the_last_error(self):
        assert failures.last_error("all is well") is None
        assert failures.last_error("Traceback (most recent call last):\n  cut") is None
        log = self.LOST.format("first") + "text\n" + self.OWN + "after\n"
        assert failures.last_error(log) == "ValueError: mine"
        assert failures.last_error(self.LOST.format("")) == "RuntimeError: "

    def test_a_rank_that_waits_for_the_others(self):
        waits = '  File "/lib/mindspore/communication/management.py", line 210 in init\n  File\n'
        assert failures.joins("Fatal Python error: Aborted\n" + waits)
        assert not failures.joins(self.OWN)
        assert failures.lost_ranks("The node: 3 is timed out\nThe node: 1 is timed out") == [1, 3]

    def test_the_tail_leaves_mindspores_notes_out(self):
        log = (
            f"kept\n[INFO] DISTRIBUTED(1): note\n\n{'-' * 52}\n"
            f"- C++ Call Stack: (For framework developers)\n{'-' * 52}\n"
            "mindspore/ccsrc/cluster/init.cc:37 Initialize\n[ERROR] kept too\n"
        )
        assert failures.tail(log) == "kept\n[ERROR] kept too"
        assert failures.tail("a\nb\nc\n", lines=2) == "b\nc"

    @pytest.mark.parametrize(
        "echo",
        [
            "The total number of timed out node is 1. Timed out node list is: {1}",
            "Connection to rank 1 was lost",
            "Failed to connect to the scheduler",
            "no heartbeat from rank 1",
            "\n- Kernel error:\nLaunch kernel failed: Default/AllGather-op2",
        ],
    )
    def test_an_echo_gives_way_to_a_cause(self, echo):
        lost = self.LOST.format(echo)
        assert culprit([0], {"s": "", 0: lost, 1: self.OWN}, last="s") == 1
        assert culprit([0, 1], {"s": "", 0: lost, 1: ""}, last="s") == 0
        assert culprit(["s", 0], {"s": lost, 0: lost, 1: self.OWN}, last="s") == 1

    def test_the_first_to_end_and_the_scheduler_last(self):
        assert culprit([1, 0], {"s": "", 0: self.OWN, 1: self.OWN}, last="s") == 1
        assert culprit(["s", 1], {"s": self.OWN, 0: "", 1: self.OWN}, last="s") == 1
        assert culprit(["s"], {"s": self.OWN, 0: "", 1: ""}, last="s") == "s"
        assert culprit([1], {"s": "", 0: self.OWN, 1: ""}, last="s") == 1
