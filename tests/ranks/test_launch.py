"""Ranks started by ``launch``: what it says of each way to end, and that nothing stays behind.

Most programs here do not join (msrun alone numbers them): a launch takes 3 s instead of 12.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
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
from tests.support.living import is_alive
from tests.support.ports import free_port

TIMEOUT = 120
# Before the code of a test, which runs on ranks 0 and 1 and not on the scheduler.
HEAD = """
import os, signal, subprocess, sys, time
if os.environ["MS_ROLE"] == "MS_SCHED":
    sys.exit()
rank = int(os.environ["RANK_ID"])
print("begins as", rank)
"""
# Variables that MindSpore sets where it is imported: by msrun, and by each rank again.
OF_AN_IMPORT = (
    *("HCCL_CONNECT_TIMEOUT", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"),
    "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",
)
JOINED = """
import sys, time
import numpy as np
import labkit
started = labkit.start("CPU", distribute=True)
from mindspore import Tensor, nn, ops

class Sum(nn.Cell):
    def __init__(self):
        super().__init__()
        self.reduce = ops.AllReduce()

    def construct(self, values):
        return self.reduce(values)

cell = Sum()
for call in range(int(sys.argv[1])):
    total = cell(Tensor(np.full(3, started.rank + 1, np.float32))).asnumpy()
    print("sum", total[0], "of rank", started.rank, flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def program(tmp_path):
    """Write a program; what of it is left at the end fails the test."""
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
    """Pids of the processes whose command line or working folder is in ``folder``."""
    result = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            if str(folder) in " ".join([process.cwd(), *process.cmdline()]):
                result.append(process.pid)
        except psutil.Error:
            continue
    return result


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < until, "not in time"
        time.sleep(0.05)
    return result


def text(path):
    return path.read_text() if path.exists() else ""


def failure(script, *args, kind=WorkerFailed, **options):
    """Launch two ranks, which must fail; return the error and its text."""
    with pytest.raises(kind) as caught:
        launch(script, *args, **({"workers": 2, "timeout": TIMEOUT} | options))
    return caught.value, str(caught.value)


def in_thread(call, *args, **options):
    """Start ``call`` in a thread; return it and the list that its outcome is added to."""
    outcome = []

    def run():
        try:
            outcome.append(call(*args, **options))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


class TestEnds:
    def test_well(self, program, tmp_path, monkeypatch):
        code = (
            "import labkit.errors\n"
            "print(sys.argv[1:], os.environ['MINE'], os.getcwd(), labkit.__file__)\n"
            "print(os.environ['RANK_SIZE'], os.environ['DEVICE_ID'], file=sys.stderr)"
        )
        (tmp_path / "work").mkdir()
        (tmp_path / "log").mkdir()
        (tmp_path / "log" / "worker_0.log").write_text("of an earlier call")
        for name in ("msrun", "scheduler", "worker_1"):
            (tmp_path / f"{name}.mine").write_text("mine")
            (tmp_path / "log" / f"{name}.log").symlink_to(tmp_path / f"{name}.mine")
        monkeypatch.setenv("RANK_ID", "7")  # as in a rank that starts ranks of its own
        monkeypatch.setenv("MS_ROLE", "MS_WORKER")
        monkeypatch.delenv("PYTHONPATH", raising=False)
        done = launch(
            program(code),
            *("--of", "two words", Path("a"), 3, 0.5),
            workers=2,
            timeout=TIMEOUT,
            cwd=tmp_path / "work",
            log_dir=tmp_path / "log",
            env={"MINE": "given"},
        )
        assert list(done.logs) == list(done.output) == [0, 1]
        assert {path.read_text() for path in tmp_path.glob("*.mine")} == {"mine"}
        for rank in (0, 1):
            assert done.output[rank] == done.logs[rank].read_text()
            given = ["--of", "two words", "a", "3", "0.5"]
            assert done.output[rank].splitlines() == [
                f"begins as {rank}",
                f"{given} given {tmp_path / 'work'} {labkit.__file__}",
                f"2 {rank}",
            ]
        assert 0 < done.seconds < TIMEOUT

    def test_the_environment_of_each_process_is_the_one_that_is_said(self, program, tmp_path):
        """And so a dry run, which prints what ``own_variables`` and ``variables`` return."""
        head = "import json, os\nwho = os.environ['MS_ROLE'] + os.environ['RANK_ID']\n"
        code = "with open(who, 'w') as file: json.dump(dict(os.environ), file)"
        given = {"MINE": "given"}
        path = program(code, head=head)
        launch(path, workers=2, timeout=TIMEOUT, cwd=tmp_path, env=given)
        for name, who in ((SCHEDULER, "MS_SCHED0"), (0, "MS_WORKER0"), (1, "MS_WORKER1")):
            real = json.loads((tmp_path / who).read_text())
            plan = launch_plan.plan(
                path, (), workers=2, timeout=None, cluster_timeout=60, nodes=1, node_rank=0,
                master=None, cwd=tmp_path, port=int(real["MS_SCHED_PORT"]),
            )  # fmt: skip
            said = msrun.own_variables(plan, given) | msrun.variables(plan, name)
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
        assert "    raise ValueError('my own mistake')" in said and "begins as 1" in said
        assert "well here" not in said and "noise" not in said and "no log is kept" in said
        assert (error.rank, error.ranks, error.exit_code, error.signal) == (1, (1,), 1, None)
        assert error.tail.endswith("ValueError: my own mistake")
        assert "all is well here" in error.output[0] and error.logs == {}

    def test_the_first_cause_and_not_the_first_end(self, program, tmp_path):
        """Rank 0 fails because rank 1 does, and is the first to end."""
        code = (
            "if rank == 0:\n"
            "    time.sleep(0.5)\n"
            "    raise RuntimeError('Connection to rank 1 was lost')\n"
            "import atexit; atexit.register(time.sleep, 30)\n"
            "raise KeyError('the cause')"
        )
        error, said = failure(program(code), log_dir=tmp_path / "log")
        # No exit code: msrun has ended it, because of rank 0.
        assert said.startswith("rank 1 of 2 failed: KeyError: 'the cause'\n")
        assert (error.exit_code, error.signal) == (None, None)
        assert "was lost" not in said and error.rank == 1
        assert f"log: {tmp_path / 'log' / 'worker_1.log'}" in said

    def test_a_rank_that_hangs_shows_where(self, program, tmp_path, monkeypatch):
        monkeypatch.delenv("PYTHONFAULTHANDLER", raising=False)
        code = "def stuck():\n    time.sleep(600)\nif rank == 1: stuck()"
        began = time.monotonic()
        error, said = failure(
            program(code), kind=WorkersTimedOut, timeout=8, log_dir=tmp_path / "log"
        )
        assert 8 <= time.monotonic() - began < 14
        assert isinstance(error, TimeoutError) and error.ranks == (1,)
        assert said.startswith("not ended after 8 s: rank 1 of 2 still ran, 0 had ended\n")
        assert "line 8 in stuck" in said and "begins as 0" not in said

    def test_a_rank_that_does_not_join_is_named_and_not_who_waited(self, program, tmp_path):
        code = (
            "def load():\n"
            "    time.sleep(600)\n"
            f"there = {str(tmp_path / 'there')!r}\n"
            "if rank == 1:\n"
            "    open(there, 'w').close()\n"
            "    load()\n"
            "while not os.path.exists(there):\n"
            "    time.sleep(0.1)\n"
            "time.sleep(1)\n"
            "raise RuntimeError('Failed to initialize distributed job cluster because some '\n"
            "                   'processes in the cluster are not successfully spawned.')"
        )
        error, said = failure(program(code), cluster_timeout=7)
        assert said.startswith("rank 1 of 2 had not joined the others in 7 s\n")
        assert "line 8 in load" in said and "initialize" not in said and error.rank == 1

    def test_an_exit_code_without_a_word_and_a_module(self, program, tmp_path):
        program("print('before'); sys.exit(3 * rank)")
        error, said = failure("-m", "program", cwd=tmp_path)
        assert said.startswith("rank 1 of 2 failed (exit code 3)\n")
        assert error.exit_code == 3 and "    before\n" in said


class TestProcesses:
    def test_children_of_a_killed_rank_end_too(self, program, tmp_path, monkeypatch):
        """One in a session of its own, one with another environment that has lost its parent."""
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
        assert (error.signal, error.exit_code) == ("SIGKILL", None)
        assert error.tail == "begins as 1"  # not lost in a buffer
        children = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert len(children) == 2 and not any(map(is_alive, children))

    def test_a_rank_killed_between_two_looks(self, program, tmp_path, monkeypatch):
        """msrun has killed the other one by the time that this process comes to look again."""
        look = Job.look

        def late(job):
            wait_for(lambda: 1 not in job.pids or all(map(msrun._ended, job.pids.values())))
            look(job)

        monkeypatch.setattr(Job, "look", late)
        code = "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)"
        error, said = failure(program(code), cwd=tmp_path)
        assert said.startswith("rank 1 of 2 was ended by SIGKILL") and error.rank == 1

    @pytest.mark.slow
    def test_a_rank_killed_while_the_other_waits_in_a_collective(self, program, tmp_path):
        log = tmp_path / "log" / "worker_1.log"
        options = {"workers": 2, "timeout": TIMEOUT, "log_dir": tmp_path / "log", "cwd": tmp_path}
        thread, outcome = in_thread(launch, program(JOINED, head=""), 100_000, **options)
        wait_for(lambda: text(log).count("sum 3.0 of rank 1") > 3)
        pids = {environment(pid).get("RANK_ID"): pid for pid in about(tmp_path)}
        for rank, share in zip("01", equal_shares(2), strict=True):
            for task in psutil.Process(pids[rank]).threads():
                assert os.sched_getaffinity(task.id) == share  # a rank keeps to its cores
        victim = pids["1"]
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        thread.join(60)
        seconds = time.monotonic() - killed
        print(f"{seconds:.1f} s from SIGKILL to the error")
        assert isinstance(outcome[0], WorkerFailed) and seconds < 15
        assert str(outcome[0]).startswith("rank 1 of 2 was ended by SIGKILL")
        assert "sum 3.0 of rank 1" in outcome[0].tail
        assert about(tmp_path) == []

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_the_calling_process_is_ended(self, program, tmp_path, number):
        """By Ctrl-C, and by what leaves it no time to tidy up."""
        path = program("open(f'rank{rank}', 'w').close(); time.sleep(600)")
        call = f"from labkit import launch; launch({str(path)!r}, workers=2, timeout=None)"
        caller = subprocess.Popen(
            [sys.executable, "-c", call],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(Path(labkit.__file__).parents[1])},
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for(lambda: (tmp_path / "rank0").exists() and (tmp_path / "rank1").exists())
        assert len(about(tmp_path)) >= 4  # the caller, msrun, two ranks
        caller.send_signal(number)
        _, said = caller.communicate(timeout=20)
        assert caller.returncode == -number
        assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
        wait_for(lambda: not about(tmp_path), seconds=10)

    def test_msrun_itself_is_killed(self, program, tmp_path):
        code = (
            "if rank == 1:\n"
            "    time.sleep(1)\n"
            "    os.kill(os.getppid(), signal.SIGKILL)\n"
            "time.sleep(600)"
        )
        error, said = failure(program(code))
        assert said.startswith("msrun was ended by SIGKILL") and error.rank is None

    def test_what_another_call_has_started_is_left_alone(self):
        with processes.guarded() as first, processes.guarded() as other:
            assert first != other
            nap = [sys.executable, "-c", "import time; time.sleep(600)"]
            mine = subprocess.Popen(nap, env=os.environ | first)
            theirs = subprocess.Popen(nap, env=os.environ | other)
            processes.end(first[processes.MARK])
            assert mine.wait(5) == -signal.SIGKILL and theirs.poll() is None
        assert theirs.wait(5) == -signal.SIGKILL

    def test_a_guard_takes_no_module_of_the_working_folder(self, tmp_path):
        """And so it lives: a learner's signal.py once made it end at once, without a word."""
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
            env=os.environ | {"PYTHONPATH": f"{Path(labkit.__file__).parents[1]}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        nap = int(caller.stdout.readline())
        caller.kill()
        assert caller.communicate()[1] == ""
        wait_for(lambda: not is_alive(nap), seconds=20)
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
                wait_for(lambda: not is_alive(guard.pid))

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

    def test_a_call_inside_a_call_ends_with_it(self, monkeypatch):
        with processes.guarded() as outer:
            monkeypatch.setenv(processes.MARK, outer[processes.MARK])
            # The inner guard is one of the outer call's processes.
            with pytest.warns(RuntimeWarning, match="ended before"), processes.guarded() as inner:
                child = subprocess.Popen(["sleep", "600"], env=os.environ | inner)
                processes.end(outer[processes.MARK])
                assert child.wait(5) == -signal.SIGKILL


class TestNodes:
    @pytest.mark.slow
    def test_two_nodes_by_address(self, program, tmp_path):
        """Both on this machine, one rank each: they find each other and sum over both."""
        path, port = program(JOINED, head=""), free_port()
        calls = []
        for node in (1, 0):
            folder = tmp_path / f"node{node}"
            folder.mkdir()
            calls.append(
                in_thread(
                    *(launch, path, 3),
                    workers=1,
                    timeout=TIMEOUT,
                    nodes=2,
                    node_rank=node,
                    master=f"127.0.0.1:{port}",
                    cwd=folder,
                    log_dir=folder / "log",
                )
            )
        for thread, _ in calls:
            thread.join(TIMEOUT)
        for node, (_, (done,)) in zip((1, 0), calls, strict=True):
            assert list(done.output) == list(done.logs) == [node]
            assert done.output[node].count(f"sum 3.0 of rank {node}") == 3

    def test_the_end_of_node_0_ends_a_rank_that_does_not_hear_of_it(
        self, program, tmp_path, monkeypatch
    ):
        """As one does not that is in a long function in C, and takes SIGTERM as an exception."""
        monkeypatch.setattr("labkit.ranks.launch._PARTING", 2.0)
        log = tmp_path / "log"
        with socket.create_server(("127.0.0.1", 0)) as scheduler:
            master = f"127.0.0.1:{scheduler.getsockname()[1]}"
            thread, outcome = in_thread(
                *(launch, program("time.sleep(600)")),
                workers=1,
                timeout=TIMEOUT,
                nodes=2,
                node_rank=1,
                master=master,
                log_dir=log,
            )
            wait_for(lambda: "begins as 1" in text(log / "worker_1.log"))
            scheduler.settimeout(10)
            scheduler.accept()[0].close()
        began = time.monotonic()
        thread.join(20)
        assert 2 <= time.monotonic() - began < 6
        (error,) = outcome
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
    "not here": ({"master": "192.0.2.1:8118"}, "expected a free port at an address of this"),
    "no folder": ({"cwd": "nowhere"}, "cwd .*nowhere is not there"),
    "cwd a file": ({"cwd": __file__}, "is not a folder"),
    "log_dir": ({"log_dir": 3}, "log_dir: expected a folder, got 3"),
    "log_dir a file": ({"log_dir": __file__}, "log_dir .* is not a folder"),
    "in a file": ({"log_dir": f"{__file__}/log"}, "cannot be written"),
    "silence": (
        {"nodes": 2, "node_rank": 1, "master": "127.0.0.1:8118", "env": {"MS_NODE_TIMEOUT": "no"}},
        "MS_NODE_TIMEOUT: expected seconds, got 'no'",
    ),
    "env": ({"env": {"A": 1}}, "env: expected texts, got {'A': 1}"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_started(case, tmp_path, monkeypatch):
    options, message = REFUSED[case]
    (tmp_path / "a.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", None)  # it must not come to that
    options = {"script": "a.py", "workers": 1, "timeout": 60} | options
    with pytest.raises(InputError, match=message):
        launch(options.pop("script"), **options)
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


@pytest.mark.parametrize(("first", "order"), [(10, [0, 1]), (11, [1, 0])])
def test_msrun_says_who_ended_first_of_those_of_one_look(tmp_path, monkeypatch, first, order):
    """Rank 0, process 10, ends after it was looked at and before rank 1 is."""
    plan = SimpleNamespace(nodes=1, ranks=[0, 1])
    job = Job(None, tmp_path, plan, {}, None)
    job.pids |= {0: 10, 1: 11}
    line = f"Worker process {first} exit with exception. Error code: -9.\n"
    (tmp_path / "msrun.log").write_text(line)
    answers = iter([False, True, True, True])
    monkeypatch.setattr(msrun, "_ended", lambda pid: next(answers))
    assert job._ended_since() == order


def test_a_port_that_is_taken(tmp_path):
    (tmp_path / "a.py").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        master = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=r"cannot be used here \(Address already in use\)"):
            launch(tmp_path / "a.py", workers=1, timeout=60, master=master)


@pytest.mark.parametrize("missing", ["msrun", "python"])
def test_an_environment_without_msrun(tmp_path, monkeypatch, missing):
    for name in {"a.py", "msrun", "python"} - {missing}:
        (tmp_path / name).write_text("")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    with pytest.raises(InputError, match=f"^{missing} is not beside .*python3; expected"):
        launch(tmp_path / "a.py", workers=1, timeout=60)


def test_a_master_by_name_and_by_ipv6():
    assert launch_plan._address("localhost:8118") == ("localhost", 8118)
    assert launch_plan._address("[::1]:8118") == ("::1", 8118)


def test_a_held_port_is_taken_by_nobody_but_a_server_that_reuses_addresses():
    """As MindSpore's scheduler does."""
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


@pytest.mark.parametrize(
    ("nodes", "here", "more", "expected"),
    [
        (1, {}, {}, ("1", "1")),
        (2, {}, {}, (None, None)),
        (1, {"LOWER": "4"}, {}, (None, None)),  # inherited: MindSpore's own for the other
        (1, {}, {"LOWER": "2", "UPPER": "9"}, ("2", "9")),
    ],
)
def test_ranks_of_one_machine_ask_each_other_again_after_a_second(
    tmp_path, monkeypatch, nodes, here, more, expected
):
    """But for what this process, or who calls, has chosen."""
    (tmp_path / "a.py").write_text("")
    for end in ("LOWER", "UPPER"):
        monkeypatch.delenv(f"MS_RETRY_INTERVAL_{end}", raising=False)
    for end, value in here.items():
        monkeypatch.setenv(f"MS_RETRY_INTERVAL_{end}", value)
    master = None if nodes == 1 else "localhost:8118"  # looked at on node 0 alone
    plan = launch_plan.plan(
        tmp_path / "a.py", (), workers=2, timeout=None, cluster_timeout=60, nodes=nodes,
        node_rank=nodes - 1, master=master, cwd=tmp_path, port=8118,
    )  # fmt: skip
    own = msrun.own_variables(plan, {f"MS_RETRY_INTERVAL_{end}": x for end, x in more.items()})
    assert tuple(own.get(f"MS_RETRY_INTERVAL_{end}") for end in ("LOWER", "UPPER")) == expected


def test_what_steps_and_runtime_load_is_no_process_supervisor():
    code = "import sys, labkit.runtime, labkit.ranks.cluster; sys.exit('psutil' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


class FakeJob:
    """A job whose ends and logs are given."""

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
    """What node 0 or 1 of two says when the other one's rank is gone."""

    COLLECTIVE = (
        "Traceback (most recent call last):\n  File\nRuntimeError: \n"
        f"{'-' * 52}\n- Kernel error:\n{'-' * 52}\nLaunch kernel failed: Default/AllReduce-op0\n\n"
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
    def test_the_scheduler_knows_who(self, code):
        """The words of MindSpore 2.10.0's scheduler after a SIGKILL on node 1."""
        log = self.COLLECTIVE if code == 1 else "its lines"
        error = self.first_cause(0, code, self.LOST_1, log)
        assert str(error).startswith("rank 1 of 2, on another node, stopped answering: the ")
        assert error.rank == 1 and error.output == {0: log}

    @pytest.mark.parametrize("code", [-signal.SIGTERM, 128 + signal.SIGTERM, 1])
    def test_node_0_is_gone(self, code):
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
            "every rank came in time; one has ended, or is behind (exit code 1)\n"
        )


class TestLogs:
    LOST = "Traceback (most recent call last):\n  File\nRuntimeError: {}\n"
    OWN = "Traceback (most recent call last):\n  File\nValueError: mine\n"

    def test_the_last_error(self):
        assert failures.last_error("all is well") is None
        assert failures.last_error("Traceback (most recent call last):\n  cut") is None
        log = self.LOST.format("first") + "text\n" + self.OWN + "after\n"
        assert failures.last_error(log) == "ValueError: mine"
        log = self.LOST.format("")
        assert failures.last_error(log) == "RuntimeError: "
        log += f"{'-' * 52}\n- Kernel error:\n{'-' * 52}\n\nLaunch kernel failed: X\nmore\n"
        assert failures.last_error(log) == "RuntimeError: Launch kernel failed: X"

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


def environment(pid):
    """Variables of a rank, not of the scheduler; nothing of a process that is gone."""
    try:
        result = psutil.Process(pid).environ()
    except psutil.Error:
        return {}
    return result if result.get("MS_ROLE") == "MS_WORKER" else {}
