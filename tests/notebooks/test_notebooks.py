"""Every committed notebook is one that papermill, nbval and GitHub can use; `make notebooks`."""

import json
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from scripts import notebooks
from scripts.notebooks import COMPARED

FOLDER = Path(__file__).parents[2] / "notebooks"
# A folder of a user or of an installation, not the path of a URL.
PATH = re.compile(r"(?<![\w.:/])/(?:home|root|Users|tmp|var|opt|mnt|usr|work)/[\w.+@-]+")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_it_is_executed_at_lab_and_can_be_committed(path):
    """`make notebooks` checks whether outputs are up to date, which takes minutes and may wait."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata["labkit"]["preset"] == "lab"
    assert path.stat().st_size <= 500_000
    assert path.read_text(encoding="utf-8") == nbformat.writes(notebook).rstrip("\n") + "\n"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.execution_count or not cell.source, cell.source
            assert not PATH.search(json.dumps(cell.outputs)), f"a local path: {cell.source}"
            assert not any(output.output_type == "error" for output in cell.outputs)


RUN = """
import json, os, time
from pathlib import Path
preset = os.environ["LABKIT_PRESET"]
folder = Path(os.environ["LABKIT_RUN"])
results = {"device": "CPU", "versions": {"labkit": "1", "platform": "x"}}
written = (folder / "results.json").write_text(json.dumps(results))
"""


class Project:
    """A small project in ``folder``, whose notebook ``python -m scripts.notebooks`` executes."""

    def __init__(self, folder):
        self.folder, self.path = folder, folder / "notebooks" / "01_tiny.ipynb"

    def call(self, *arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            return notebooks.main(list(arguments))

    def write(self, name, text):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def read(self):
        return nbformat.read(self.path, as_version=4)

    def edit(self, source):
        notebook = self.read()
        notebook.cells[1].source = source
        nbformat.write(notebook, self.path)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    compared = new_code_cell('print("preset", preset)\nprint("gap │", time.time(), "│ 1")')
    compared.metadata["tags"] = [COMPARED]
    cells = [new_code_cell(RUN), compared, new_code_cell("print(time.time())")]
    project = Project(tmp_path_factory.mktemp("notebooks") / "project")
    project.write("pyproject.toml", '[project]\nname = "mindspore-labs"\n')
    project.write("labkit/step.py", "rate = 1\n")
    project.write("data_scripts/digits.py", "")
    project.write("notebooks/sanitize.cfg", (FOLDER / "sanitize.cfg").read_text())
    project.write("notebooks/01_tiny.ipynb", nbformat.writes(new_notebook(cells=cells)))
    assert project.call() == 0
    return project


@pytest.fixture
def project(executed, tmp_path):
    return Project(Path(shutil.copytree(executed.folder, tmp_path / "project")))


def test_outputs_come_back_with_a_stamp_and_nothing_is_executed_twice(project, capsys):
    first = project.read()
    assert first.cells[1].outputs[0].text.startswith("preset lab\n")
    stamp = first.metadata["labkit"]
    assert (stamp["device"], stamp["preset"], stamp["versions"]) == ("CPU", "lab", {"labkit": "1"})
    assert project.call() == 0 and "up to date" in capsys.readouterr().out
    assert project.read() == first
    for file, why in {
        "labkit/tools/report.py": "",
        "labkit/step.py": "changed: labkit",
        "data_scripts/digits.gz": "changed: labkit, data",
        "constraints.txt": "changed: labkit, data, versions",
    }.items():
        project.write(file, "changed")
        assert notebooks.why_stale(project.folder, first) == why


def test_a_changed_cell_is_executed_and_a_failing_one_leaves_the_file(project, capsys):
    project.edit("print('new')")
    assert notebooks.why_stale(project.folder, project.read()) == "changed: notebook"
    assert project.call("01") == 0
    assert project.read().cells[1].outputs[0].text == "new\n"
    project.edit("1 / 0")
    before = project.path.read_bytes()
    assert project.call() == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert project.path.read_bytes() == before


def test_forced_tagged_outputs_must_stay_and_others_may_differ(project, capsys):
    """What a table of claims has measured is masked, as nbval masks it."""
    before = project.read()
    assert project.call("--force") == 0
    notebook = project.read()
    assert notebook.cells[2].outputs != before.cells[2].outputs
    notebook.cells[1].outputs[0].text = "preset smoke\n"
    nbformat.write(notebook, project.path)
    assert project.call("--force") == 1
    assert "preset smoke" in capsys.readouterr().out
    assert project.call("--force", "--accept") == 0
    with pytest.raises(SystemExit, match="2"):
        project.call("nothing")
