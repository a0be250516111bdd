"""Labs that fail, hang, take too much memory, lose their kernel or harm their own folder.

Two `labkit run` commands execute them: each failure is reported as what it is, and the other labs
continue.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from labkit.tools.running import execution
from tests.support.lab_projects import OPEN, ROOT, write_labs
from tests.support.living import MARK, is_alive, marked

# The child process leaves the session, as msrun's ranks do, and outlives a killed kernel.
CHILD = """import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
open(f"child-{child.pid}", "w").close()
"""
LABS = {
    # The runner, not ``finish``, decides the final status.
    "01_fails": [OPEN, "run.finish({'rate': 1})", "print('before')\n1 / 0"],
    "02_hangs": [CHILD, "import time\nwhile True:\n    time.sleep(0.1)"],
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
    "06_long": [
        "print('y' * 1_000_000, end='')\nprint('z' * 1_000_000, file=__import__('sys').stderr)"
    ],
    "07_left": ["import sys\nsys.exit(0)", "print('end')"],
    "08_caught": [
        "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('no')"
    ],
    "09_gone": ["import os, shutil\nshutil.rmtree(os.environ['LABKIT_RUN'])"],
    "10_odd": [
        OPEN,
        "import json\nplace = run.finish({})\nresults = json.loads(place.read_text())\n"
        "results |= {'metrics': [1], 'headline': None, 'total_seconds': 'long'}\n"
        "place.write_text(json.dumps(results))",
    ],
    "11_good": ["print('good')"],
}
HANGING = ("02_hangs", "08_caught")
GOOD = "11_good"
FAILURES = {
    "01_fails": ("exception", 5, "division by zero", "ZeroDivisionError"),
    "02_hangs": ("timeout", 4, "it took longer than 10 s", "out of time"),
    "04_hungry": ("memory", 4, "it held 0.7 GB; at most 0.7 GB", "out of memory"),
    "05_killed": ("died", 4, "the kernel was ended by SIGKILL", "its kernel died"),
    "07_left": ("exception", 3, "the notebook was left before its end", "SystemExit"),
}


def labkit(project, *arguments):
    command = [sys.executable, "-m", "labkit.tools.cli", *arguments]
    variables = {"PYTHONPATH": str(ROOT), "LABKIT_PRESET": "smoke", MARK: str(project)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=project, env=os.environ | variables, **pipes)


def by_lab(events):
    return {event["lab"]: event for event in events if event["event"] == "ended"}


class Ran:
    """Results of two `labkit run` commands at the same time.

    One runs the labs that hang and a good one after them, the other all labs that do not hang.
    """

    def __init__(self, project):
        self.project = project
        write_labs(project, LABS)
        others = [lab for lab in LABS if lab not in HANGING]
        limits = ("--timeout", "10", "--cell-timeout", "9.5", "--memory", "0.7")
        several = str(min(2, len(os.sched_getaffinity(0))))
        processes = [
            labkit(project, "run", *labs, "--json", "--out", out, "--jobs", several, *limits)
            for labs, out in ((others, "out"), ((*HANGING, GOOD), "hanging"))
        ]
        try:
            written = [process.communicate(timeout=600) for process in processes]
        finally:
            for process in processes:
                process.kill()
        self.codes = [process.returncode for process in processes]
        self.stderr = "".join(stderr for _, stderr in written)
        self.events = [[json.loads(line) for line in out.splitlines()] for out, _ in written]
        self.said = [event for events in self.events for event in events]
        self.ended = by_lab(self.said)
        started = [event for event in self.said if event["event"] == "started"]
        self.folder = {event["lab"]: Path(event["folder"]) for event in started}

    def stored(self, lab):
        return json.loads((self.folder[lab] / "results.json").read_text())


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return Ran(tmp_path_factory.mktemp("project"))


def test_the_others_go_on_and_the_exit_code_is_1(ran):
    passed = ("06_long", "10_odd", "11_good")
    statuses = {lab: "passed" if lab in passed else "failed" for lab in LABS}
    assert {lab: event["status"] for lab, event in ran.ended.items()} == statuses
    last = [events[-1] for events in ran.events]
    assert ran.codes == [event["exit_code"] for event in last] == [1, 1]
    assert {event["event"] for event in last} == {"finished"}
    assert last[0]["labs"] == {lab: how for lab, how in statuses.items() if lab not in HANGING}
    assert last[1]["labs"] == {**dict.fromkeys(HANGING, "failed"), GOOD: "passed"}
    assert ran.stored(GOOD)["metrics"] == {}
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("lab", FAILURES)
def test_each_cause_is_named_with_its_cell(ran, lab):
    cause, cell, message, words = FAILURES[lab]
    error = ran.ended[lab]["error"]
    assert (error["cause"], error["cell"]) == (cause, cell)
    if cause == "timeout" and "cell" in error["message"]:  # the limit of the cell was reached first
        message = error["message"]
    assert error["message"].replace("0.8 GB;", "0.7 GB;") == message
    assert (ran.stored(lab)["status"], ran.stored(lab)["error"]) == ("failed", error)
    last = (ran.folder[lab] / "log.txt").read_text().splitlines()[-1]
    assert f"({words}) after" in last


def test_results_written_before_a_failure_are_kept_and_do_not_count(ran):
    assert ran.stored("01_fails")["metrics"] == {"rate": 1}
    executed = nbformat.read(ran.folder["01_fails"] / "01_fails.ipynb", as_version=4)
    assert [cell for cell in executed.cells if cell.get("execution_count") == 5]


def test_the_last_lines_of_the_log_are_kept(ran):
    assert ran.ended["05_killed"]["error"]["log"][-1] == "last words"
    assert ran.ended["01_fails"]["error"]["log"] == ["before"]


def test_what_a_kernel_says_when_it_is_ended_is_not_why(tmp_path):
    """A kernel may or may not write this line before it ends."""
    log = tmp_path / "kernel.log"
    assert execution._log_lines(log) == []
    log.write_text("the cause\n\n[IPKernelApp] KeyboardInterrupt caught in kernel.\n")
    assert execution._log_lines(log) == ["the cause"]


def test_a_hanging_cell_leaves_its_traceback_in_the_notebook(ran):
    text = (ran.folder["02_hangs"] / "02_hangs.ipynb").read_text()
    assert "KeyboardInterrupt" in text and "time.sleep" in text


def test_a_killed_kernel_is_reported_within_ten_seconds(ran):
    killed = float((ran.project / "notebooks" / "killed-at").read_text())
    reported = (ran.folder["05_killed"] / "results.json").stat().st_mtime
    assert 0 <= reported - killed < 10


def test_no_process_is_left(ran):
    children = [int(path.name.split("-")[1]) for path in ran.project.glob("notebooks/child-*")]
    assert len(children) == 3
    assert not [pid for pid in children if is_alive(pid)]
    assert not marked(ran.project)


def test_a_line_of_a_million_characters_is_kept_and_passed_on_short(ran):
    notebook = json.loads((ran.folder["06_long"] / "06_long.ipynb").read_text())
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    texts = {output["name"]: "".join(output["text"]) for output in outputs}
    assert texts == {"stdout": 1_000_000 * "y", "stderr": 1_000_000 * "z" + "\n"}
    lasts = [event["last"] for event in ran.said if event["event"] == "progress" if "last" in event]
    assert all(len(last) <= 120 for last in lasts)


def test_a_cell_that_catches_its_own_time_limit_has_not_kept_it(ran):
    error = ran.ended["08_caught"]["error"]
    assert error["cause"] == "timeout"
    # nbclient counts whole seconds.
    assert error["message"] == "it took longer than 10 s" or "10 seconds" in error["message"]


def test_a_lab_whose_folder_vanishes_is_that_labs_failure(ran):
    error = ran.ended["09_gone"]["error"]
    assert error["name"] == "FileNotFoundError" and error["cell"] == 3
    assert not (ran.folder["09_gone"] / "09_gone.ipynb").exists()


def test_what_cannot_be_in_results_is_left_out_and_said(ran):
    results = ran.stored("10_odd")
    assert (results["metrics"], results["headline"], results["status"]) == ({}, [], "passed")
    assert results["total_seconds"] == ran.ended["10_odd"]["total_seconds"] > 0
    said = [event["text"] for event in ran.said if event["event"] == "output"]
    assert "results.json: metrics is [1], left out" in said
