"""Every committed notebook keeps the rules that papermill, nbval and a reader rely on."""

import json
import re
import subprocess
from pathlib import Path, PurePosixPath

import nbformat
import pytest

from labkit.tools.notebooks import rules
from tests.support import notebook_form

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_notebooks_are_numbered_in_reading_order():
    names = [path.stem for path in NOTEBOOKS]
    assert names and names[0] == "00_start_here"
    assert all(re.fullmatch(r"\d\d_[a-z0-9_]+", name) for name in names), names
    assert [int(name[:2]) for name in names] == list(range(len(names)))


@each_notebook
def test_source_sections_proofs_and_the_header_card_keep_the_form(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook_form.source_faults(notebook) == []
    assert notebook_form.form_faults(notebook) == []
    assert notebook.cells[0].source.startswith(f"# {path.stem[:2]} · ")


@pytest.fixture(scope="module")
def committed(root):
    """What git has, or would have with the next commit of all that is there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no git checkout: what is committed cannot be asked")
    return {name for name in done.stdout.splitlines() if (root / name).exists()}


@each_notebook
def test_every_link_leads_somewhere(path, root, committed):
    place = PurePosixPath(path.relative_to(root).as_posix())
    notebook = nbformat.read(path, as_version=4)
    assert notebook_form.link_faults(notebook, place, root, committed) == []


@each_notebook
def test_outputs_are_those_of_the_lab_preset_and_can_be_committed(path):
    """Whether they are up to date is for `make notebooks`: it takes minutes, and may wait."""
    notebook = nbformat.read(path, as_version=4)
    stamp = notebook.metadata.get("labkit", {})
    assert stamp.get("preset") == "lab", "not executed by `make notebooks`"
    assert stamp["outputs"] == rules.output_digest(notebook), "outputs edited: `make notebooks`"
    assert rules.output_faults(notebook) == []
    assert path.stat().st_size <= rules.MAX_BYTES
    assert any(rules.COMPARED in rules.tags(cell) for cell in notebook.cells)


@each_notebook
def test_no_trace_of_the_execution_is_kept(path):
    """papermill's and JupyterLab's times would make a difference out of every refresh."""
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert set(notebook["metadata"]) <= {"kernelspec", "language_info", "labkit"}
    keys = {key for cell in notebook["cells"] for key in cell["metadata"]}
    assert not keys & {"papermill", "execution", "ExecuteTime", "collapsed"}
    assert text == nbformat.writes(nbformat.from_dict(notebook)).rstrip("\n") + "\n"
