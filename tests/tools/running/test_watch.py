"""The limits of one lab, and what happens to a kernel that exceeds them or dies.

The kernels are plain processes here; real ones are in test_failing_labs.py.
"""

import contextlib
import subprocess
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest

from labkit.errors import InputError
from labkit.ranks.processes import MARK, guarded
from labkit.tools.running import watch
from labkit.tools.running.watch import Limits, Watch, memory_of


@pytest.mark.parametrize(("left", "share"), [(None, 18e9), (10e9, 9e9), (40e9, 18e9), (0, 0)])
def test_nine_tenths_of_what_machine_and_container_have(monkeypatch, left, share):
    monkeypatch.setattr(watch, "left_in_container", lambda: left)
    monkeypatch.setattr(watch.psutil, "virtual_memory", lambda: SimpleNamespace(available=20e9))
    assert watch.free_memory() == pytest.approx(share)


@pytest.mark.parametrize("limits", [{"seconds": 0}, {"memory": -1}, {"cell_seconds": float("nan")}])
def test_a_limit_that_is_not_above_zero_is_refused(limits):
    with pytest.raises(InputError, match=f"{next(iter(limits))}: expected a number > 0, got"):
        Limits(**limits)
    assert Limits(seconds=float("inf")).seconds == float("inf")
    assert str(Limits(float("inf"), 9, 3e9)) == ", at most 9 s a cell, 3 GB"


def test_memory_is_what_a_process_and_its_children_hold():
    code = (
        "import mmap, time\nown = bytearray(300_000_000)\nshared = mmap.mmap(-1, 200_000_000)\n"
        "shared.write(b'x' * len(shared))\nprint(flush=True)\ntime.sleep(60)"
    )
    for _ in range(2):  # a grandchild
        code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            assert 300e6 < memory_of(process.pid) < 400e6
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
    assert memory_of(process.pid) == 0


@contextlib.contextmanager
def kernel(code, **variables):
    """A process that has begun to run ``code``."""
    command = [sys.executable, "-c", f"import signal\n{code}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=variables) as process:
        try:
            process.stdout.readline()
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("code", "kills", "cause", "reason"),
    [
        ("exit(9)", 0, "died", "the kernel's process exited with code 9"),
        ("signal.raise_signal(9)", 0, "died", "the kernel was ended by SIGKILL"),
        ("signal.raise_signal(9)", 1, "memory", "the kernel was ended by SIGKILL, by the system "
         "for want of memory; it held 0.0 GB"),
        ("print(flush=True)\nsignal.pause()", 0, "died", "the kernel does not answer any more"),
    ],
)  # fmt: skip
def test_a_kernel_that_died_says_how(monkeypatch, code, kills, cause, reason):
    ended = Watch("no mark", Limits())
    monkeypatch.setattr(watch, "_out_of_memory_kills", lambda: ended._kills + kills)
    with ended, kernel(code) as process:
        ended.kernel_started(process)
        if "pause" not in code:
            process.wait()
        ended.kernel_died()
    assert (ended.cause, ended.reason) == (cause, reason)


@pytest.mark.parametrize(
    ("stopped", "limits", "cause", "reason"),
    [
        (False, Limits(seconds=0.01), "timeout", "it took longer than 0.01 s"),
        (False, Limits(memory=1e3), "memory", "it held 0.0 GB; at most 1e-06 GB"),
        (True, Limits(), "interrupted", "stopped from outside"),
    ],
)
def test_a_kernel_that_takes_too_much_is_ended_though_it_is_deaf(
    monkeypatch, stopped, limits, cause, reason
):
    monkeypatch.setattr(watch, "_GRACE", 0.1)
    stop = threading.Event()
    deaf = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nprint(flush=True)\nsignal.pause()"
    with guarded() as mark, Watch(mark[MARK], limits, stop) as ended:
        with kernel(deaf, **mark) as process:
            ended.kernel_started(process)
            if stopped:
                stop.set()
            assert process.wait(30) == -9
    assert (ended.cause, ended.reason) == (cause, reason)
    assert ended.peak > 1e6
