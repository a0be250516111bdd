"""Every committed notebook keeps the rules that papermill, nbval and a reader rely on."""

import json
import re
from pathlib import Path

import nbformat
import pytest

from labkit.tools import notebook_files
from labkit.tools.labs import find_labs
from scripts.notebooks import navigation, rules
from tests.support import notebook_form

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_notebooks_are_numbered_in_reading_order():
    names = [path.stem for path in NOTEBOOKS]
    assert names and names[0] == "00_start_here"
    assert all(re.fullmatch(r"\d\d_[a-z0-9_]+", name) for name in names), names
    labs = [name for name in names if not name.endswith("_in_depth")]
    assert [int(name[:2]) for name in labs] == list(range(len(labs)))
    seconds = [name.removesuffix("_in_depth") for name in names if name.endswith("_in_depth")]
    assert set(seconds) <= set(labs), "a second notebook has the name of its lab"


@each_notebook
def test_source_sections_proofs_and_the_header_card_keep_the_form(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook_form.source_faults(notebook) == []
    assert notebook_form.form_faults(notebook) == []
    assert notebook.cells[0].cell_type == "markdown"
    title = notebook.cells[0].source.splitlines()[0]
    assert title.startswith(f"# {path.stem[:2]} · ")
    assert title.endswith(" in depth") == path.stem.endswith("_in_depth")


# Not linked yet: run `python -m scripts.notebooks.refresh --links`, then empty the list.
UNLINKED: list[str] = []


def test_links_between_notebooks_and_to_their_sections_are_up_to_date(root):
    labs = find_labs(root)
    outdated = [lab.name for lab in navigation.outdated(root, labs, labs)]
    assert outdated == UNLINKED, "`make notebooks` writes them; it executes what is stale"


LONGEST = (70, 2200, 15)  # cells, words, lines of a cell


def test_a_lesson_is_no_longer_than_an_evening():
    long = [
        path.stem
        for path in NOTEBOOKS
        if any(size > limit for size, limit in zip(sizes(path), LONGEST, strict=True))
    ]
    assert long == []


def sizes(path):
    """Count cells, words of text (contents, markup, code too), lines of the longest code cell."""
    cells = nbformat.read(path, as_version=4).cells
    words = [len(cell.source.split()) for cell in cells if cell.cell_type == "markdown"]
    lines = [len(cell.source.splitlines()) for cell in cells if cell.cell_type == "code"]
    return len(cells), sum(words), max(lines)


@each_notebook
def test_outputs_are_those_of_the_lab_preset_and_can_be_committed(path):
    """`make notebooks` checks whether they are up to date, which takes minutes and may wait."""
    notebook = nbformat.read(path, as_version=4)
    stamp = notebook.metadata.get("labkit", {})
    assert stamp.get("preset") == "lab", "not executed by `make notebooks`"
    assert stamp["outputs"] == rules.output_digest(notebook), "outputs edited: `make notebooks`"
    assert rules.output_faults(notebook) == []
    assert path.stat().st_size <= rules.MAX_BYTES
    assert any(rules.COMPARED in notebook_files.tags(cell) for cell in notebook.cells)


@each_notebook
def test_no_trace_of_the_execution_is_kept(path):
    """With the times of papermill and JupyterLab, every refresh would change the file."""
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    # papermill stops without the first two, and needs a separate cell for its parameters.
    assert set(notebook["metadata"]) == {"kernelspec", "language_info", "labkit"}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    tagged = [cell for cell in notebook["cells"] if "parameters" in notebook_files.tags(cell)]
    assert len(tagged) == 1
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    keys = {key for cell in notebook["cells"] for key in cell["metadata"]}
    assert not keys & {"papermill", "execution", "ExecuteTime", "collapsed"}
    assert text == nbformat.writes(nbformat.from_dict(notebook)).rstrip("\n") + "\n"
