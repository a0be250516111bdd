"""`labkit lab`: the learner's copies, what is solved in them, and how JupyterLab is started."""

import json
import os
import re
import sys

import pytest

from labkit.labs import language
from labkit.tools import work
from labkit.tools.labs import find_labs
from tests.support.lab_projects import write_labs
from tests.support.trainings import ROOT

EXERCISE = 'def mean(values):\n    raise NotImplementedError\n\n\npassed = check("mean", mean)'


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    write_labs(folder, {"00_start": [], "01_sums": [EXERCISE]})
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def started(monkeypatch):
    """What `labkit lab` would execute, as (options, environment)."""
    calls = []

    def become(path, command, environment):
        assert (path, command[1:4]) == (sys.executable, ["-P", "-m", "jupyterlab"])
        options = dict(part.removeprefix("--").split("=", 1) for part in command[4:])
        calls.append((options, environment))

    monkeypatch.setattr(os, "execve", become)
    return calls


def edit(path, change):
    notebook = json.loads(path.read_text())
    change(notebook["cells"])
    path.write_text(json.dumps(notebook))


def say(text):
    """Return a change that lets the last cell print ``text``."""
    output = {"output_type": "stream", "name": "stdout", "text": [text]}
    return lambda cells: cells[-1].update(outputs=[output], execution_count=1)


def append(text):
    return lambda cells: cells[-1].update(source=[*cells[-1]["source"], text])


@pytest.fixture
def copies(call, project):
    """A function that makes the copies and returns what is said of them."""

    def make():
        code, out, err = call("lab", "--no-server")
        assert code == 0, err
        return [line for line in out.splitlines() if "exercises" not in line]

    return make


def test_an_unedited_copy_follows_and_an_edited_one_gets_a_neighbour(project, copies):
    source, path = project / "notebooks" / "01_sums.ipynb", project / "work" / "01_sums.ipynb"
    new = path.with_name("01_sums.new.ipynb")
    assert [line.rsplit(": ", 1)[1] for line in copies()] == ["copied", "copied"]
    assert copies() == []
    edit(path, say("0.5"))  # outputs do not count
    edit(source, append("\n# one"))
    assert copies() == [f"{path}: replaced"]
    edit(path, append("\n# mine"))
    mine = path.read_bytes()
    edit(source, append("\n# two"))
    assert copies() == [f"{new}: copied beside yours, which is edited"]
    assert "# two" in new.read_text() and path.read_bytes() == mine
    new.unlink()  # taken over by hand
    assert copies() == []
    edit(source, append("\n# three"))
    assert f"{new}: copied" in copies()[0] and "# three" in new.read_text()
    edit(new, append("\n# merged"))
    edit(source, append("\n# four"))
    assert "edited and stays" in copies()[0] and "# four" not in new.read_text()
    edit(new, lambda cells: cells[-1]["source"].pop())
    copies()
    new.replace(path)  # the new one taken: a copy without edits again
    edit(source, append("\n# five"))
    assert copies() == [f"{path}: replaced"] and not new.exists()
    path.write_text("{")
    (said,) = copies()
    assert "cannot read the notebook" in said and said.endswith("move it away for a new copy")
    assert path.read_text() == "{"


def test_a_copy_has_no_outputs_and_links_that_lead_somewhere(project, call):
    source = project / "notebooks" / "01_sums.ipynb"
    edit(source, say("printed by us"))
    links = "[a](../docs/x.md#y) [b](00_start.ipynb#z) [c](solutions/1.ipynb) [d](https://e.org) "
    edit(source, lambda cells: cells[0].update(source=links))
    assert call("lab", "--no-server", "--folder", "mine/deep")[0] == 0
    cells = work.read_notebook(project / "mine" / "deep" / "01_sums.ipynb")["cells"]
    assert all(not cell.get("outputs") for cell in cells)
    assert cells[0]["source"] == (
        "[a](../../docs/x.md#y) [b](00_start.ipynb#z) [c](../../notebooks/solutions/1.ipynb) "
        "[d](https://e.org) "
    )


def test_saved_outputs_say_what_is_solved(project, call, copies):
    copies()
    for printed, solved in (
        ("mean: passed (4 of 4 public checks)\n", "1 of 1 exercises solved: mean"),
        ("mean: 2 of 4 public checks passed; you divided\n", "0 of 1 exercises solved"),
    ):
        edit(project / "work" / "01_sums.ipynb", say(printed))
        assert call("lab", "--no-server")[1] == f"01_sums: {solved}\n"


def test_chinese_copies_have_chinese_words_and_the_same_code(project, call, started, monkeypatch):
    edit(project / "notebooks" / "01_sums.ipynb", lambda cells: cells[0].update(source="# Sums"))
    for page, message, words in (
        ("notebooks/00_start", "# Start", "# 开始"),
        ("notebooks/01_sums", "# Sums", "# 求和"),
    ):
        path = project / "locale" / "zh" / f"{page}.po"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'msgid "{message}"\nmsgstr "{words}"\n', "utf-8")
    assert call("lab", "01", "--language", "zh")[0] == 0
    english = work.read_notebook(project / "notebooks" / "01_sums.ipynb")["cells"]
    chinese = work.read_notebook(project / "work" / "zh" / "01_sums.ipynb")["cells"]
    assert [cell["source"] for cell in chinese] == ["# 求和"] + [
        cell["source"] for cell in english[1:]
    ]
    ((options, environment),) = started
    assert options["LabApp.default_url"] == "/lab/tree/work/zh/01_sums.ipynb"
    assert environment["LABKIT_LANGUAGE"] == "zh"  # of the kernels, which check exercises
    with monkeypatch.context() as kernel:
        kernel.setattr(language, "labs_source", lambda: ROOT)
        kernel.setenv("LABKIT_LANGUAGE", "zh")
        printed = language.said("passed ({all} of {all} public checks)", all=4)
    edit(project / "work" / "zh" / "01_sums.ipynb", say(f"mean: {printed}\n"))
    assert "1 of 1 exercises solved: mean" in call("lab", "--no-server", "--language", "zh")[1]
    code, _, err = call("lab", "--language", "fr", "--no-server")
    assert code == 2 and "unknown --language 'fr'; expected one of: en, zh" in err


def test_a_lab_without_a_translation_is_copied_in_english_and_said(project, call):
    code, out, _ = call("lab", "--no-server", "--language", "zh")
    assert code == 0 and out.count("it is copied in English") == 2
    copied = work.read_notebook(project / "work" / "zh" / "01_sums.ipynb")["cells"]
    assert copied[0]["source"].startswith("# 01 · sums") and EXERCISE in copied[-1]["source"]


def test_every_exercise_of_the_labs_is_counted(root):
    said = work.progress(find_labs(root), root / "notebooks")
    counts = [re.search(r": 0 of (\d) exercises solved$", line)[1] for line in said]
    assert counts[1:] == list("544443")


@pytest.mark.parametrize(
    ("arguments", "root", "url"),
    [
        ([], "", "work/00_start.ipynb"),
        (["sums", "--folder", "mine"], "", "mine/01_sums.ipynb"),
        (["sums", "--folder", "../else/where"], "../else/where", "01_sums.ipynb"),
        (["notebooks/01_sums.ipynb"], "", "notebooks/01_sums.ipynb"),
        (["../50 % #1.ipynb"], "..", "50%20%25%20%231.ipynb"),
    ],
)
def test_a_lab_or_a_notebook_is_opened(project, started, call, monkeypatch, arguments, root, url):
    outside = project.parent / "50 % #1.ipynb"
    outside.write_bytes((project / "notebooks" / "01_sums.ipynb").read_bytes())
    for name in work._NOT_FOR_KERNELS:
        monkeypatch.setenv(name, "x")
    assert call("lab", *arguments, "--port", "9000", "--no-browser")[::2] == (0, "")
    ((options, environment),) = started
    assert options["LabApp.default_url"] == f"/lab/tree/{url}"
    names = ("root_dir", "ip", "port", "open_browser")
    own = [options[f"ServerApp.{name}"] for name in names]
    assert own == [str((project / root).resolve()), "127.0.0.1", "9000", "False"]
    assert not set(work._NOT_FOR_KERNELS) & environment.keys()
    assert (project / "work").exists() == url.startswith("work")
