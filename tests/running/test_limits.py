"""A lab that fails, hangs, takes too much memory or loses its kernel is reported as just that."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from labkit.errors import InputError
from labkit.tools.running import execution
from labkit.tools.running.watch import Limits, memory_of
from tests.running.test_runner import ROOT, write_labs
from tests.support.living import MARK, is_alive, marked

# Its child leaves the session, as msrun's ranks do, and outlives a killed kernel.
CHILD = """import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
open(f"child-{child.pid}", "w").close()
"""
LABS = {
    "01_fails": ["print('before')\n1 / 0"],
    "02_hangs": [CHILD, "import time\nwhile True:\n    time.sleep(0.1)"],
    "03_deaf": [
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)"
    ],
    "04_hungry": [
        CHILD,
        "import time\nkept = []\nwhile True:\n    kept.append(b'x' * 20_000_000)\n"
        "    time.sleep(0.02)",
    ],
    "05_killed": [
        CHILD,
        "import os, signal, sys, time\nsys.__stderr__.write('last words\\n')\n"
        "sys.__stderr__.flush()\nopen('killed-at', 'w').write(str(time.time()))\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
    ],
    "06_good": ["print('good')"],
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """`labkit run` of LABS: (project, process, JSON lines, when it ended)."""
    project = tmp_path_factory.mktemp("faults")
    write_labs(project, LABS)
    command = [sys.executable, "-m", "labkit.tools.cli", "run", "--json", "--timeout", "15"]
    command += ["--memory", "0.7", "--out", str(project / "out")]
    done = subprocess.run(
        command,
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(ROOT), MARK: str(project)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return project, done, [json.loads(line) for line in done.stdout.splitlines()]


def ended(ran, lab):
    return next(one for one in ran[2] if one["event"] == "ended" and one["lab"] == lab)


def test_the_others_go_on_and_the_exit_code_is_1(ran):
    assert ran[1].returncode == 1
    assert [one["lab"] for one in ran[2] if one["event"] == "ended"] == list(LABS)
    assert ended(ran, "06_good")["status"] == "passed"
    assert ran[2][-1]["exit_code"] == 1
    assert ran[2][-1]["labs"]["06_good"] == "passed"


@pytest.mark.parametrize(
    ("lab", "cause", "cell", "message"),
    [
        ("01_fails", "exception", 3, "division by zero"),
        ("02_hangs", "timeout", 4, "it took longer than 15 s"),
        ("03_deaf", "timeout", 3, "it took longer than 15 s"),
        ("04_hungry", "memory", 4, "it held 0.7 GB; at most 0.7 GB"),
        ("05_killed", "died", 4, "the kernel was ended by SIGKILL"),
    ],
)
def test_each_cause_is_named_with_its_cell(ran, lab, cause, cell, message):
    error = ended(ran, lab)["error"]
    assert (error["cause"], error["cell"]) == (cause, cell)
    assert error["message"].replace("0.8 GB;", "0.7 GB;") == message
    stored = json.loads((ran[0] / "out" / lab / "results.json").read_text())
    assert stored["status"] == "failed"
    assert stored["error"] == error


@pytest.mark.parametrize(
    ("lab", "why"),
    [("01_fails", "ZeroDivisionError"), ("02_hangs", "out of time"), ("04_hungry", "out of memory"),
     ("05_killed", "its kernel died")],
)  # fmt: skip
def test_the_log_ends_with_the_cause(ran, lab, why):
    last = (ran[0] / "out" / lab / "log.txt").read_text().splitlines()[-1]
    assert f"({why}) after" in last


def test_the_last_lines_of_the_log_are_told(ran):
    assert ended(ran, "05_killed")["error"]["log"][-1] == "last words"
    assert ended(ran, "01_fails")["error"]["log"] == ["before"]


def test_what_a_kernel_says_when_it_is_ended_is_not_why(tmp_path):
    """It writes that, or not, before it is gone."""
    log = tmp_path / "kernel.log"
    assert execution._lines(log) == []
    log.write_text("the cause\n\n[IPKernelApp] KeyboardInterrupt caught in kernel.\n")
    assert execution._lines(log) == ["the cause"]


def test_a_hanging_cell_leaves_its_traceback_in_the_notebook(ran):
    text = (ran[0] / "out" / "02_hangs" / "02_hangs.ipynb").read_text()
    assert "KeyboardInterrupt" in text and "time.sleep" in text


def test_a_killed_kernel_is_reported_within_ten_seconds(ran):
    killed = float((ran[0] / "notebooks" / "killed-at").read_text())
    reported = (ran[0] / "out" / "05_killed" / "results.json").stat().st_mtime
    assert 0 <= reported - killed < 10


def test_no_process_is_left(ran):
    children = [int(path.name.split("-")[1]) for path in ran[0].glob("notebooks/child-*")]
    assert len(children) == 3
    assert not [pid for pid in children if is_alive(pid)]
    assert not marked(ran[0])


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
            time.sleep(0.1)
            assert 300e6 < memory_of(process.pid) < 400e6
        finally:
            for one in psutil.Process(process.pid).children(recursive=True):
                one.kill()
    assert memory_of(process.pid) == 0


@pytest.mark.parametrize("limits", [{"seconds": 0}, {"memory": -1}, {"cell_seconds": float("nan")}])
def test_a_limit_that_is_none_is_refused(limits):
    with pytest.raises(InputError, match=next(iter(limits))):
        Limits(**limits)
