"""`labkit lab`: the learner's copies, what is solved in them, and how JupyterLab is started."""

import json
import os
import sys

import pytest

from labkit.tools import work
from tests.support.command import labkit
from tests.support.lab_projects import write_labs

EXERCISE = (
    "def mean(values):\n    raise NotImplementedError\n\n\npassed = check({0!r}, mean)"
).replace("{0!r}", '"mean"')


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    write_labs(folder, {"00_start": [], "01_sums": [EXERCISE]})
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def started(monkeypatch):
    """What `labkit lab` would execute, as (options, other arguments, environment)."""
    calls = []

    def become(path, command, environment):
        assert (path, command[1:4]) == (sys.executable, ["-P", "-m", "jupyterlab"])
        pairs = [part.removeprefix("--").split("=", 1) for part in command[4:] if "=" in part]
        calls.append((dict(pairs), [part for part in command[4:] if "=" not in part], environment))

    monkeypatch.setattr(os, "execve", become)
    return calls


def read(path):
    return json.loads(path.read_text())


def edit(path, change):
    notebook = read(path)
    change(notebook["cells"])
    path.write_text(json.dumps(notebook))


def say(text):
    """Return a change that lets the last cell print ``text``."""
    output = {"output_type": "stream", "name": "stdout", "text": [text]}
    return lambda cells: cells[-1].update(outputs=[output], execution_count=1)


def append(text):
    return lambda cells: cells[-1].update(source=[*cells[-1]["source"], text])


def copies(project):
    done = labkit("lab", "--no-server")
    assert done.exit_code == 0, done.stderr
    return [line for line in done.stdout.splitlines() if "exercises" not in line]


def test_an_unedited_copy_follows_and_an_edited_one_gets_a_neighbour(project):
    source, path = project / "notebooks" / "01_sums.ipynb", project / "work" / "01_sums.ipynb"
    new = path.with_name("01_sums.new.ipynb")
    assert [line.rsplit(": ", 1)[1] for line in copies(project)] == ["copied", "copied"]
    assert copies(project) == []
    edit(path, say("0.5"))  # outputs do not count
    edit(source, append("\n# one"))
    assert "replaced" in copies(project)[0]
    edit(path, append("\n# mine"))
    mine = path.read_bytes()
    edit(source, append("\n# two"))
    assert f"yours stays, see {new.name}" in copies(project)[0]
    assert "# two" in new.read_text() and path.read_bytes() == mine
    assert copies(project) == []
    edit(source, append("\n# three"))
    assert new.name in copies(project)[0] and "# three" in new.read_text()
    new.replace(path)  # the new one taken: a copy without edits again
    edit(source, append("\n# four"))
    assert "replaced" in copies(project)[0] and not new.exists()


def test_an_edited_neighbour_stays_too(project):
    source, path = project / "notebooks" / "01_sums.ipynb", project / "work" / "01_sums.ipynb"
    copies(project)
    edit(path, append("\n# mine"))
    new = path.with_name("01_sums.new.ipynb")
    for text in ("\n# two", "\n# three"):
        edit(source, append(text))
        said = copies(project)[0]
        edit(new, append("\n# merged"))
    assert "edited too, and stays" in said and "# three" not in new.read_text()


def test_a_copy_has_no_outputs_and_links_that_lead_somewhere(project):
    source = project / "notebooks" / "01_sums.ipynb"
    edit(source, say("printed by us"))
    links = "[a](../docs/x.md#y) [b](00_start.ipynb#z) [c](solutions/1.ipynb) [d](https://e.org) "
    edit(source, lambda cells: cells[0].update(source=links))
    assert labkit("lab", "--no-server", "--folder", "mine/deep").exit_code == 0
    copy = read(project / "mine" / "deep" / "01_sums.ipynb")
    assert all(not cell.get("outputs") for cell in copy["cells"])
    assert "".join(copy["cells"][0]["source"]) == (
        "[a](../../docs/x.md#y) [b](00_start.ipynb#z) [c](../../notebooks/solutions/1.ipynb) "
        "[d](https://e.org) "
    )


@pytest.mark.parametrize(
    ("printed", "solved"),
    [
        ("mean: passed (4 of 4 public checks)\n", "1 of 1 exercises solved: mean"),
        ("mean: 2 of 4 public checks passed; you divided\n", "0 of 1 exercises solved"),
        ("mean: not attempted yet\n", "0 of 1 exercises solved"),
    ],
)
def test_saved_outputs_say_what_is_solved(project, printed, solved):
    copies(project)
    edit(project / "work" / "01_sums.ipynb", say(printed))
    assert labkit("lab", "--no-server").stdout == f"01_sums: {solved}\n"


def test_every_exercise_of_the_labs_is_counted(root, tmp_path):
    counts = []
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        asked, solved = work.exercises(path, path)
        counts += [len(asked)] if asked else []
        assert solved == []
    assert counts[1:] == [7, 7, 8, 6, 7]


def test_a_damaged_copy_is_named_and_stops_no_other(project, started):
    copies(project)
    (project / "work" / "01_sums.ipynb").write_text("{")
    done = labkit("lab")
    assert "01_sums.ipynb is not a notebook" in done.stdout and started


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        ([], "work/00_start.ipynb"),
        (["1"], "work/01_sums.ipynb"),
        (["sums", "--folder", "mine"], "mine/01_sums.ipynb"),
        (["notebooks/01_sums.ipynb"], "notebooks/01_sums.ipynb"),
    ],
)
def test_a_lab_or_a_notebook_is_opened(project, started, arguments, url):
    assert labkit("lab", *arguments).exit_code == 0
    options, _, environment = started[0]
    assert options["LabApp.default_url"] == f"/lab/tree/{url}"
    assert options["ServerApp.root_dir"] == str(project)
    assert options["ServerApp.ip"] == "127.0.0.1"
    assert (project / "work").exists() == url.startswith("work")


def test_a_notebook_outside_the_project_is_shown_in_its_own_folder(project, started):
    path = project.parent / "50 % #1.ipynb"
    path.write_bytes((project / "notebooks" / "01_sums.ipynb").read_bytes())
    assert labkit("lab", path).exit_code == 0
    assert started[0][0]["ServerApp.root_dir"] == str(path.parent)
    assert started[0][0]["LabApp.default_url"] == "/lab/tree/50%20%25%20%231.ipynb"


def test_options_reach_jupyterlab_and_a_runs_variables_do_not(project, started, monkeypatch):
    for name in work._NOT_FOR_KERNELS:
        monkeypatch.setenv(name, "x")
    done = labkit("lab", "--port", "9000", "--no-browser", "--", "--debug", "--X.y=1")
    assert done.exit_code == 0, done.stderr
    options, rest, environment = started[0]
    assert options["ServerApp.port"] == "9000" and options["X.y"] == "1"
    assert rest == ["--no-browser", "--debug"]
    assert not set(work._NOT_FOR_KERNELS) & environment.keys()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["7"], "unknown lab '7'"),
        (["none.ipynb"], "no notebook"),
        (["0", "1"], "one lab or notebook"),
        (["--folder", "notebooks"], "a folder of your own"),
    ],
)
def test_what_cannot_be_opened_is_refused(project, started, arguments, words):
    done = labkit("lab", *arguments)
    assert done.exit_code == 2 and words in done.stderr and not started
