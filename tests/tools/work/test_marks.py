"""`labkit progress`: the marks of answers, what is executed of a notebook, and what ends it."""

import importlib
import json
import os
import sys
import time

import pytest

from labkit.errors import InputError
from labkit.tools import notebook_files
from labkit.tools.labs import find_labs
from labkit.tools.work import answers, marks
from tests.support.command import labkit
from tests.support.lab_cells import CHECK, code, lab_cells, write
from tests.support.lab_projects import ROOT
from tests.support.living import MARK, interrupted, is_alive, marked

RIGHT = "def normalise(pixels):\n    return (pixels / 255 - 0.1307) / 0.3081\n"
SWAPPED = "def normalise(pixels):\n    return (pixels / 0.3081 - 0.1307 / 0.3081) / 255\n"
HALF = "def half(x):\n    return x / 255"
ASKS = "passed = check('normalise', normalise)"


def look_at_each(project, notebooks, seconds=30.0):
    """Return the mark of ``normalise`` for each learner's notebook that ends with these cells."""
    before = {}
    for number, cells in enumerate(notebooks, 1):
        name = f"{number:02}_sums.ipynb"
        write(project / "notebooks" / name, lab_cells())
        own = [code(f"own{n}", source) for n, source in enumerate(cells)]
        path = write(project / "work" / name, lab_cells()[:3] + own)
        before[path] = path.read_bytes()
    labs = marks.look(project / "work", find_labs(project), seconds)
    assert {path: path.read_bytes() for path in before} == before
    assert sorted((project / "work").iterdir()) == sorted(before)
    assert {mark.name for lab in labs for mark in lab.marks} == {"normalise", "mean_gradient"}
    return [lab.marks[0] for lab in labs]


def test_the_exercises_of_every_lab_are_found_in_its_notebook():
    for lab in find_labs(ROOT):
        asked = answers.exercises(answers.code_cells(notebook_files.read(lab.path)))
        if lab.name.endswith("_in_depth"):
            assert asked == {}
            continue
        (exercises,) = map(importlib.import_module, set(asked.values()))
        assert asked.keys() == {each.name for each in exercises.EXERCISES}


PASSED = [
    ([RIGHT], "its check is gone; checked all the same"),
    (["def normalise(x):\n    return x\n", CHECK + RIGHT + ASKS], "is defined in 2 cells"),
    ([CHECK + RIGHT + ASKS, "def normalise(:\n"], "another cell of it does not count: "),
    ([CHECK + RIGHT.replace("normalise", "mine") + "check('normalise', mine)"], None),
    ([CHECK + "check('normalise', lambda x: (x / 255 - 0.1307) / 0.3081)"], None),
    (["MEAN = 0.1307", RIGHT.replace("0.1307", "MEAN"), ASKS], None),
    ([HALF, RIGHT.replace("pixels / 255", "half(pixels)")], "check is gone"),
    ([RIGHT.replace("pixels / 255", "np.divide(pixels, 255)"), ASKS], None),
    (["%matplotlib inline\n!ls\n" + RIGHT + ASKS], None),
    (["import os\nos._exit(1)", "%%time\n" + RIGHT + ASKS, "train("], None),
    (["scale = (1000\n    % 745)", RIGHT.replace("255", "scale") + ASKS], None),
    (["half = 127.5\nscale = half * 2", RIGHT.replace("255", "scale") + ASKS], None),
    (["raise SystemExit", RIGHT + "print(undefined)\n" + ASKS], None),
    ([RIGHT + "print('normalise: passed')\n" + ASKS], None),
    ([RIGHT.replace("return", "print('x' * 10**6)\n    return"), ASKS], None),
]
# An answer that detaches a process; the process makes a file named by its pid in the folder FOLDER.
ESCAPE = """
def normalise(pixels):
    import os, sys
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            open(f"FOLDER/{os.getpid()}", "w").close()
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(300)"], {})
        os._exit(0)
    while not os.listdir("FOLDER"):
        pass
    ENDING
    return (pixels / 255 - 0.1307) / 0.3081
"""
ENDINGS = {"pass": "passed", "os._exit(3)": "error", "os.kill(os.getpid(), 9)": "error"}
COMPUTED = ["scale = sum(range(10 ** 12))", RIGHT.replace("255", "scale") + ASKS]
# An answer that writes to every pipe that it can find.
FORGED = """
def normalise(pixels):
    import os
    for pipe in range(3, 64):
        try:
            os.write(pipe, b'["best", ""]\\n')
        except OSError: pass
"""
NOT_PASSED = [
    ([CHECK + SWAPPED + ASKS], "wrong", "which step is first?"),
    (["def normalise(pixels):\n    return input()"], "wrong", "it raised EOFError"),
    (["def normalise(pixels):\n    raise SystemExit"], ("wrong", "error"), "it raised SystemExit"),
    ([cell["source"] for cell in lab_cells()[3:]], "not attempted", ""),
    # 3 GB, although 2 are allowed, none of it touched.
    (["def normalise(x):\n    [np.empty(2**25) for _ in range(12)]"], "wrong", "MemoryError"),
    ([], "error", "no cell defines normalise or checks it"),
    ([CHECK + RIGHT.replace("lise", "lize") + ASKS], "error", "no cell defines normalise"),
    ([CHECK + RIGHT.replace(":", "", 1) + ASKS], "error", "its cell is not Python: expected ':'"),
    (["import os\ndef normalise(pixels):\n    os._exit(3)"], "error", "ended with exit code 3"),
    (["import os\ndef normalise(pixels):\n    os.abort()"], "error", "ended by SIGABRT"),
    ([RIGHT + "check('normalise', *both)"], "error", "checked as *both, which is not a function"),
    ([RIGHT + "check('normalise', normalize)"], "error", "no cell defines normalize"),
    (["def normalise(pixels):\n    return return"], "error", "not Python: invalid syntax (line 2)"),
    (COMPUTED, "wrong", "NameError: name 'scale'"),
    ([FORGED, ASKS], "error", "its process wrote something other than a verdict"),
    (["def normalise(pixels):\n    open('DISK', 'wb').write(bytes(1 << 24))", ASKS], "wrong", ""),
]


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """The marks of all answers above, by one call, and the folder of their files: disk, loose/."""
    project, outside = tmp_path_factory.mktemp("each"), tmp_path_factory.mktemp("outside")
    (project / "pyproject.toml").write_text('[project]\nname = "labkit"\n')
    notebooks = [cells for cells, *_ in PASSED + NOT_PASSED]
    for number, ending in enumerate(ENDINGS, 1):
        folder = outside / "loose" / str(number)
        folder.mkdir(parents=True)
        body = ESCAPE.replace("FOLDER", str(folder)).replace("ENDING", ending)
        notebooks.append([body, ASKS])
    place = str(outside / "disk")
    notebooks = [[text.replace("DISK", place) for text in cells] for cells in notebooks]
    return look_at_each(project, notebooks), outside


def test_an_answer_is_found_by_its_name_wherever_it_is(looked):
    for mark, (cells, note) in zip(looked[0], PASSED, strict=False):
        assert (mark.state, mark.message) == ("passed", "2 of 2 public checks"), (cells, mark)
        assert mark.notes == () if note is None else any(note in text for text in mark.notes)


def test_a_check_of_something_too_deep_is_an_error():
    source = f"check('normalise', {' + '.join('1' * 600)})"
    cells = answers.code_cells({"cells": [{"cell_type": "code", "source": source}]})
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # MindSpore raises it
    try:
        answer = answers.find(cells, "normalise", "")
    finally:
        sys.setrecursionlimit(before)
    assert "nested too deep to be read" in answer.problem


def test_what_does_not_pass_says_why(looked):
    for mark, (cells, state, message) in zip(looked[0][len(PASSED) :], NOT_PASSED, strict=False):
        assert mark.state in state and message in mark.message, (cells, mark)
        if state == "not attempted":
            assert mark == marks.Mark("normalise", "not attempted")
        if cells is COMPUTED:
            note = "it uses scale, which another cell computes; that cell was not run"
            assert mark.notes == (note,)


def test_what_an_answer_leaves_is_ended_and_no_disk_is_filled(looked):
    seen, outside = looked
    assert [mark.state for mark in seen[-len(ENDINGS) :]] == list(ENDINGS.values())
    loose = list((outside / "loose").glob("*/*"))
    assert len({path.parent for path in loose}) == len(ENDINGS)
    assert not any(is_alive(int(path.name)) for path in loose)
    assert (outside / "disk").stat().st_size <= 1 << 20


def test_an_endless_answer_is_ended_and_the_next_is_checked(project, monkeypatch):
    monkeypatch.setenv(MARK, str(project))
    bodies = [
        "while True: pass",
        "import time; time.sleep(1000)",
        "\n    while True:\n        try: normalise(pixels)\n        except BaseException: pass",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32)); signal.pause()",
        "import os, time; os.fork(); time.sleep(1000)",
    ]
    began = time.monotonic()
    notebooks = [[f"def normalise(pixels):\n    {body}\n"] for body in [*bodies, "return 1"]]
    *endless, last = look_at_each(project, notebooks, 0.5)
    said = "the check took longer than 0.5 s: does a loop never end?"
    assert {mark.message for mark in endless} == {said}
    assert last.state == "wrong"
    assert time.monotonic() - began < 20 * len(bodies)
    assert set(marked(project)) <= {os.getpid()}


def test_every_answer_of_the_solutions_of_lab_01_passes():
    (lab,) = (each for each in find_labs(ROOT) if each.number == "01")
    (result,) = marks.look(ROOT / "notebooks" / "solutions", [lab], 60)
    assert [(mark.state, mark.notes) for mark in result.marks] == [("passed", ())] * 7


def test_the_command_shows_states_hints_and_counts(project):
    done = labkit("progress")
    assert done.exit_code == 2 and "`labkit work` makes them" in done.stderr
    write(project / "work" / "01_sums.ipynb", [*lab_cells()[:3], code("e", CHECK + RIGHT + ASKS)])
    done = labkit("progress")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "01_sums: 1 of 2 passed",
        "    normalise      passed",
        "    mean_gradient  error          no cell defines mean_gradient or checks it: was it "
        "renamed or deleted?",
        "1 of 2 exercises passed",
    ]
    record = json.loads(labkit("progress", "--json").stdout)
    assert (record["lab"], record["passed"], record["count"]) == ("01_sums", 1, 2)
    assert record["exercises"][0] == {
        "name": "normalise", "state": "passed", "message": "2 of 2 public checks", "notes": [],
    }  # fmt: skip


def test_a_lab_without_a_readable_copy_says_so_and_counts(project):
    (project / "work").mkdir()
    said = "01_sums: 0 of 2 passed (no copy yet)\n0 of 2 exercises passed\n"
    assert labkit("progress").stdout == said
    (project / "work" / "01_sums.ipynb").write_text("{")
    assert "cannot read the notebook" in labkit("progress").stdout
    assert json.loads(labkit("progress", "--json").stdout)["problem"].startswith("cannot read")


def test_ctrl_c_leaves_no_process(project, monkeypatch):
    started = project / "started"
    endless = f"def normalise(pixels):\n    open({str(started)!r}, 'w')\n    while True: pass"
    write(project / "work" / "01_sums.ipynb", [code("a", endless)])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = interrupted(["progress", "--timeout", "60"], project, started.exists)
    assert done == (130, "", "labkit: interrupted\n")


def test_no_module_of_the_folder_that_it_is_called_in_is_executed(project, tmp_path, monkeypatch):
    """In a student's folder with a signal.py, neither the judge nor its imports are from there."""
    here = tmp_path / "downloaded"
    here.mkdir()
    for name in ("signal", "select", "torch", "resource", "labkit"):
        (here / f"{name}.py").write_text(f"open({str(here / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    (mark,) = look_at_each(project, [[CHECK + RIGHT + ASKS]])
    assert mark.state == "passed"
    assert not (here / "ran").exists()


def test_an_answer_that_ends_the_judge_is_named(project, tmp_path):
    place = tmp_path / "pid"
    body = "def normalise(pixels):\n    import os\n"
    body += f"    if os.fork() == 0:\n        open({str(place)!r}, 'w').write(str(os.getpid()))\n"
    body += "        os.setsid()\n        while True: pass\n"
    body += f"    while not os.path.exists({str(place)!r}): pass\n    os.kill(os.getppid(), 9)\n"
    with pytest.raises(InputError, match=r"ended by SIGKILL, with the answer to normalise: does"):
        look_at_each(project, [[body, ASKS]])
    assert not is_alive(int(place.read_text()))
