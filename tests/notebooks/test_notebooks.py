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


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    compared = new_code_cell('print("preset", preset)\nprint("gap │", time.time(), "│ 1")')
    compared.metadata["tags"] = [COMPARED]
    cells = [new_code_cell(RUN), compared, new_code_cell("print(time.time())")]
    project = tmp_path_factory.mktemp("notebooks") / "project"
    for name, text in {
        "pyproject.toml": '[project]\nname = "mindspore-labs"\n',
        "labkit/step.py": "rate = 1\n",
        "data_scripts/digits.py": "",
        "notebooks/sanitize.cfg": (FOLDER / "sanitize.cfg").read_text(),
        "notebooks/01_tiny.ipynb": nbformat.writes(new_notebook(cells=cells)),
    }.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    assert call(project) == 0
    return project


@pytest.fixture
def project(executed, tmp_path):
    return Path(shutil.copytree(executed, tmp_path / "project"))


def call(project, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        return notebooks.main(list(arguments))


def read(project):
    return nbformat.read(project / "notebooks" / "01_tiny.ipynb", as_version=4)


def edit(project, source):
    notebook = read(project)
    notebook.cells[1].source = source
    nbformat.write(notebook, project / "notebooks" / "01_tiny.ipynb")


def test_outputs_come_back_with_a_stamp_and_nothing_is_executed_twice(project, capsys):
    first = read(project)
    assert first.cells[1].outputs[0].text.startswith("preset lab\n")
    stamp = first.metadata["labkit"]
    assert (stamp["device"], stamp["preset"], stamp["versions"]) == ("CPU", "lab", {"labkit": "1"})
    assert call(project) == 0 and "up to date" in capsys.readouterr().out
    assert read(project) == first
    (project / "labkit" / "tools").mkdir()
    for file, why in {
        "labkit/tools/report.py": "",
        "labkit/step.py": "changed: labkit",
        "data_scripts/digits.gz": "changed: labkit, data",
        "constraints.txt": "changed: labkit, data, versions",
    }.items():
        (project / file).write_text("changed")
        assert notebooks.why_stale(project, first) == why


def test_a_changed_cell_is_executed_and_a_failing_one_leaves_the_file(project, capsys):
    edit(project, "print('new')")
    assert notebooks.why_stale(project, read(project)) == "changed: notebook"
    assert call(project, "01") == 0
    assert read(project).cells[1].outputs[0].text == "new\n"
    edit(project, "1 / 0")
    before = (project / "notebooks" / "01_tiny.ipynb").read_bytes()
    assert call(project) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert (project / "notebooks" / "01_tiny.ipynb").read_bytes() == before


def test_forced_tagged_outputs_must_stay_and_others_may_differ(project, capsys):
    """What a table of claims has measured is masked, as nbval masks it."""
    before = read(project)
    assert call(project, "--force") == 0
    assert read(project).cells[2].outputs != before.cells[2].outputs
    notebook = read(project)
    notebook.cells[1].outputs[0].text = "preset smoke\n"
    nbformat.write(notebook, project / "notebooks" / "01_tiny.ipynb")
    assert call(project, "--force") == 1
    assert "preset smoke" in capsys.readouterr().out
    assert call(project, "--force", "--accept") == 0
    with pytest.raises(SystemExit, match="2"):
        call(project, "nothing")
