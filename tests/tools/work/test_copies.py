"""`labkit work`: copies are made once, merged when asked, and never overwritten."""

import json

import nbformat
import pytest

from labkit.tools.labs import find_labs
from labkit.tools.work import copies
from tests.support.command import labkit
from tests.support.lab_projects import ROOT


def make(project, folder="work", **options):
    (copy,) = copies.make(project, project / folder, find_labs(project), **options)
    return copy


def sources(path):
    cells = json.loads(path.read_text())["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in cells}


def test_a_copy_has_the_cells_without_outputs_and_is_a_notebook(project):
    copy = make(project)
    assert (copy.state, copy.path) == ("copied", project / "work" / "01_sums.ipynb")
    assert sources(copy.path) == sources(project / "notebooks" / "01_sums.ipynb")
    notebook = nbformat.read(copy.path, as_version=4)
    nbformat.validate(notebook)
    assert [c.outputs for c in notebook.cells if c.cell_type == "code"] == [[]] * 4
    assert "labkit" not in notebook.metadata
    assert copy.path.read_text() == nbformat.writes(notebook) + "\n"


def test_the_projects_notebooks_can_be_copied(tmp_path):
    for copy in copies.make(ROOT, tmp_path, find_labs(ROOT)):
        assert copy.state == "copied"
        nbformat.validate(nbformat.read(copy.path, as_version=4))
        assert b"image/png" not in copy.path.read_bytes()


def test_an_update_merges_and_keeps_what_was_and_nothing_else_writes(project, edit, change):
    copy = make(project)
    edit(copy.path, e1="my answer", p="seed = 7")
    before, written = copy.path.read_bytes(), copy.path.stat().st_mtime_ns
    assert make(project).state == make(project, update=True).state == "unchanged"
    change(n="import numpy", t="# 01 · Sums, again", e2=None)
    behind = make(project)
    assert behind.state == "behind"
    assert behind.notes == ("3 cells changed in the project since it was copied",)
    assert (copy.path.read_bytes(), copy.path.stat().st_mtime_ns) == (before, written)
    assert [path.name for path in copy.path.parent.iterdir()] == ["01_sums.ipynb"]
    updated = make(project, update=True)
    assert updated.state == "updated"
    merged = sources(copy.path)
    assert (merged["e1"], merged["p"]) == ("my answer", "seed = 7")
    assert (merged["n"], merged["t"]) == ("import numpy", "# 01 · Sums, again")
    (backup,) = (project / "work" / "before_update").iterdir()
    assert backup.read_bytes() == before and backup.name in updated.notes[0]
    assert make(project).state == "unchanged"


def test_a_cell_changed_on_both_sides_stays_and_the_projects_is_beside(project, edit, change):
    copy = make(project)
    edit(copy.path, e1="def normalise(x):\n    return x", p="seed = 7")
    change(e1="def normalise(pixels):\n    pass", p="seed = None\nepochs = None")
    updated = make(project, update=True)
    assert sources(copy.path)["e1"] == "def normalise(x):\n    return x"
    assert updated.notes[1:] == (
        "yours stays, the project's changed too: the parameters cell",
        "yours stays, the project's changed too: def normalise(x):",
        "the project's notebook is beside it: 01_sums.project.ipynb",
    )
    beside = project / "work" / "01_sums.project.ipynb"
    assert sources(beside)["e1"] == "def normalise(pixels):\n    pass"
    assert make(project, update=True).state == "unchanged"  # reported only once


def test_two_updates_in_one_second_keep_two_backups(project, edit, change, monkeypatch):
    monkeypatch.setattr(copies.time, "strftime", lambda form: "20260102-030405")
    make(project)
    for number in (1, 2):
        change(n=f"import math  # {number}")
        make(project, update=True)
    names = {path.name for path in (project / "work" / "before_update").iterdir()}
    assert names == {"01_sums-20260102-030405.ipynb", "01_sums-20260102-030405-2.ipynb"}


ODD_ID = '{"cells": [{"cell_type": "code", "source": "", "id": [1]}]}'


@pytest.mark.parametrize("content", ["", "{", '{"cells": 3}', "[]", "\udce4", ODD_ID])
def test_a_file_that_is_no_notebook_is_left_alone(project, content):
    path = project / "work" / "01_sums.ipynb"
    path.parent.mkdir()
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    before = path.read_bytes()
    left = make(project, update=True)
    assert left.state == "left" and str(path) in left.notes[0]
    assert path.read_bytes() == before


def test_a_copy_made_by_hand_is_left_alone_and_the_projects_put_beside_once(project, edit):
    path = project / "work" / "01_sums.ipynb"
    path.parent.mkdir()
    path.write_bytes((project / "notebooks" / "01_sums.ipynb").read_bytes())
    before = path.read_bytes()
    assert make(project).state == "left"
    for _ in range(2):
        assert make(project, update=True).notes[-1].endswith("01_sums.project.ipynb")
    assert path.read_bytes() == before
    beside = sorted(each.name for each in path.parent.iterdir())
    assert beside == ["01_sums.ipynb", "01_sums.project.ipynb"]
    edit(path.with_name("01_sums.project.ipynb"), e1="an answer, in the wrong file")
    assert make(project, update=True).notes[-1].endswith("01_sums.project-2.ipynb")


@pytest.mark.parametrize("folder", ["work", "mine/deep", "../elsewhere"])
def test_links_of_a_copy_hold_from_its_folder(project, folder):
    (project / "labkit").mkdir()
    (project / "labkit" / "x.py").write_text("")
    copy = make(project, folder)
    title = sources(copy.path)["t"]
    target = title.partition("[code](")[2].partition(")")[0]
    assert (copy.path.parent / target).resolve() == project / "labkit" / "x.py"
    assert "[next](02_b.ipynb) [w](https://a.b/c)" in title
    assert make(project, folder).state == "unchanged"


def test_the_command(project, change):
    assert labkit("work").stdout == "work/01_sums.ipynb: copied\n"
    assert labkit("work", "1").stdout == "work/01_sums.ipynb: there already\n"
    change(n="import math")
    assert labkit("work").stdout.splitlines()[-1].startswith("`labkit work --update` merges")
    assert "updated" in labkit("work", "--update").stdout
    (project / "file").touch()
    for arguments, said in [
        (["--folder", "notebooks"], "where the project writes"),
        (["--folder", "notebooks/mine"], "where the project writes"),
        (["--folder", "runs/notebooks"], "where the project writes"),
        (["--folder", "file"], "--folder: expected a folder, or a new name"),
        (["sum"], "Did you mean 'sums'?"),
    ]:
        refused = labkit("work", *arguments)
        assert refused.exit_code == 2 and said in refused.stderr
