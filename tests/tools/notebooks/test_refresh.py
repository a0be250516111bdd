"""`make notebooks`: what it executes and writes, and when it leaves the committed file alone."""

import shutil
from dataclasses import asdict

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit.tools.running.digests import ANCHOR, NAVIGATION
from labkit.tools.running.execution import Failure
from labkit.tools.running.runner import Outcome
from scripts.notebooks import refresh as notebooks
from scripts.notebooks.refresh import main, refresh, why_stale, write_links
from scripts.notebooks.rules import COMPARED, output_faults
from tests.support.lab_cells import printed, shown
from tests.support.notebook_form import source_faults

PARAMETERS = 'import os\npreset = os.environ.get("LABKIT_PRESET", "lab")\ndevice = "auto"'
PNG = (
    "from IPython.display import Image\nimport base64\n"
    'Image(base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk'
    '+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="), alt="one red point")'
)


def cell(source, *tags):
    made = new_code_cell(source)
    made.metadata["tags"] = list(tags)
    return made


def tiny(*cells):
    title = new_markdown_cell("# 01 · Tiny\n\n1 minute\n\n## 1 · Question")
    made = new_notebook(cells=[title, cell(PARAMETERS, "parameters"), *cells])
    made.metadata["kernelspec"] = {"display_name": "old", "language": "python", "name": "python3"}
    made.metadata["language_info"] = {"name": "python", "version": "3.0.0"}
    return made


@pytest.fixture(scope="module")
def refreshed(tmp_path_factory):
    """A project whose one notebook was refreshed once; tests work on copies of it."""
    project = tmp_path_factory.mktemp("refreshed") / "project"
    for folder in ("notebooks", "labkit", "data_scripts"):
        (project / folder).mkdir(parents=True)
    (project / "pyproject.toml").write_text('[project]\nname = "labkit"\n')
    (project / "constraints.txt").write_text("numpy==1.26.4\n")
    (project / "labkit" / "step.py").write_text("rate = 1\n")
    (project / "data_scripts" / "digits.gz").write_bytes(b"\x1f\x8b")
    cells = [
        cell("from pathlib import Path"),
        cell('print("shape", (2, 3))\nprint("preset", preset)', COMPARED),
        cell("import time\ntime.time()"),
        cell(PNG),
        cell(""),
        cell('print("outside:", Path("../note.txt").exists())', COMPARED),
    ]
    nbformat.write(tiny(*cells), project / "notebooks" / "01_tiny.ipynb")
    (project / "work").mkdir()
    (project / "work" / "01_tiny.ipynb").write_text("a learner's own, which nobody executes")
    assert refresh(project) == []
    assert [path.name for path in (project / "work").iterdir()] == ["01_tiny.ipynb"]
    assert "a learner's own" in (project / "work" / "01_tiny.ipynb").read_text()
    return project


@pytest.fixture
def project(refreshed, tmp_path, monkeypatch):
    copy = tmp_path / "project"
    shutil.copytree(refreshed, copy, ignore=shutil.ignore_patterns("runs"))
    monkeypatch.chdir(copy)
    return copy


def path_of(project):
    return project / "notebooks" / "01_tiny.ipynb"


def read(project):
    return nbformat.read(path_of(project), as_version=4)


def edit(project, change):
    notebook = read(project)
    change(notebook)
    nbformat.write(notebook, path_of(project))
    return path_of(project).read_bytes()


@pytest.fixture
def no_execution(monkeypatch):
    monkeypatch.delattr(notebooks.runner, "run")


@pytest.fixture
def executed(monkeypatch):
    """Execution without a kernel: outputs are the notebook's own, except in ``printing``."""

    def execute(printing=(), failure=None, meanwhile=lambda: None):
        def run(request, out, say):
            (lab,) = request.labs
            notebook = nbformat.read(lab.path, as_version=4)
            for number, text in dict(printing).items():
                notebook.cells[number].outputs = printed(text).outputs
            place = out / lab.name / lab.path.name
            place.parent.mkdir(parents=True)
            nbformat.write(notebook, place)
            meanwhile()
            results = {"device": "CPU", "versions": {}, "status": "passed"}
            if failure:
                results |= {"status": "failed", "error": asdict(failure)}
            return [Outcome(lab, {}, place.parent, results)]

        monkeypatch.setattr(notebooks.runner, "run", run)

    return execute


def test_options_are_named_in_full_and_the_nearest_is_said(no_execution, capsys):
    with pytest.raises(SystemExit, match="2"):
        notebooks.main(["--forc"])
    assert "unrecognized arguments: --forc. Did you mean '--force'?" in capsys.readouterr().err


def test_outputs_come_back_clean_with_a_stamp(project):
    notebook = read(project)
    code = [each for each in notebook.cells if each.cell_type == "code"]
    assert [each.execution_count for each in code] == [1, 2, 3, 4, 5, None, 6]
    assert code[2].outputs[0].text == "shape (2, 3)\npreset lab\n"
    assert code[3].outputs[0].execution_count == 4
    assert code[4].outputs[0].metadata["image/png"]["alt"] == "one red point"
    assert set(notebook.metadata) == {"kernelspec", "language_info", "labkit"}
    assert notebook.metadata.kernelspec.display_name == "Python 3 (ipykernel)"
    assert "version" not in notebook.metadata.language_info
    # No injected parameters, no times of papermill: the source is what the author wrote.
    assert all(set(each.metadata) <= {"tags"} for each in notebook.cells)
    assert code[0].source == PARAMETERS
    assert source_faults(notebook) == [] and output_faults(notebook) == []
    stamp = notebook.metadata["labkit"]
    assert set(stamp["inputs"]) == {"notebook", "labkit", "data", "versions"}
    assert stamp["preset"] == "lab"
    assert stamp["versions"]["numpy"].startswith("1.26") and "platform" not in stamp["versions"]


def test_without_a_change_nothing_is_executed_or_written(project, no_execution):
    before = path_of(project).read_bytes()
    assert refresh(project) == []
    assert path_of(project).read_bytes() == before
    assert main(["--check"]) == 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("labkit/nets/new.py", "changed: labkit"),
        ("data_scripts/digits.gz", "changed: data"),
        ("benchmarks/tables/tuning.csv", "changed: data"),
        ("constraints.txt", "changed: versions"),
        ("scripts/notebooks/refresh.py", ""),
        ("data_scripts/.part", ""),
        ("README.md", ""),
    ],
)
def test_a_changed_input_is_named_and_nothing_else(project, name, reason, capsys):
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    with (project / name).open("ab") as file:
        file.write(b"# more\n")
    assert why_stale(project, read(project)) == reason
    assert main(["--check"]) == bool(reason)
    assert f"01_tiny: {reason or 'up to date'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda notebook: notebook.cells[4].update(source="print(1)"), "changed: notebook"),
        (lambda notebook: notebook.cells[4].metadata.update(tags=[]), "changed: notebook"),
        (lambda notebook: notebook.cells[4].update(outputs=[]), "its outputs are not"),
        (lambda notebook: notebook.metadata.pop("labkit"), "it has no stamp"),
    ],
)
def test_an_edited_notebook_is_stale(project, change, reason):
    edit(project, change)
    assert why_stale(project, read(project)).startswith(reason)


def test_only_the_stale_notebook_is_executed(project, executed):
    shutil.copy(path_of(project), project / "notebooks" / "02_other.ipynb")
    write_links(project)
    other = (project / "notebooks" / "02_other.ipynb").read_bytes()
    edit(project, lambda notebook: notebook.cells[4].update(source='print("shape", 7)'))
    executed({4: "shape 7\n"})
    said = []
    assert refresh(project, say=said.append) == []
    assert read(project).cells[4].outputs[0].text == "shape 7\n"
    assert (project / "notebooks" / "02_other.ipynb").read_bytes() == other
    assert "02_other: up to date" in said
    # The stale notebook was not forced: new compared outputs are reported and written.
    assert any("cell 4: compared output was" in line for line in said)
    assert why_stale(project, read(project)) == ""


def test_forced_execution_keeps_compared_outputs_or_says_which_changed(project, executed, capsys):
    executed({5: "another time", 8: "outside: True\n"})
    before = path_of(project).read_bytes()
    assert main(["--force"]) == 1
    assert path_of(project).read_bytes() == before
    said = capsys.readouterr().out
    assert "cell 8: compared output was 'outside: False' and is 'outside: True'" in said
    assert main(["--force", "--accept"]) == 0
    assert read(project).cells[8].outputs[0].text == "outside: True\n"
    # The untagged time differs between two executions, and that is allowed.
    assert read(project).cells[5].outputs != nbformat.reads(before, 4).cells[5].outputs


def test_a_notebook_that_may_not_be_committed_stays_as_it_was(project, executed):
    cells = [printed(f"in {project}"), printed("took 1.5 s", COMPARED), shown("image/png", "aGk=")]
    cells.append(printed("x" * 500_000))
    before = edit(project, lambda notebook: notebook.cells.__setitem__(slice(5, 6), cells))
    said = []
    for failure in (None, Failure("ZeroDivisionError", "division by zero", 5)):
        executed(failure=failure)
        assert refresh(project, say=said.append) == ["01_tiny"]
        assert path_of(project).read_bytes() == before
    faults, raised = (line for line in said if "left as it was" in line)
    assert "In [5]: ZeroDivisionError: division by zero" in raised
    for reason in (
        "cell 5: a path of this machine: ",
        "cell 6: compared (tag nbval-check-output), but this differs between runs: '1.5 s'",
        "cell 7: a PNG without alternative text",
        "expected at most 500000",
    ):
        assert reason in faults
    assert [each.name for each in path_of(project).parent.iterdir()] == ["01_tiny.ipynb"]


def test_an_edit_during_the_execution_is_not_overwritten(project, executed):
    def write(source):
        edit(project, lambda notebook: notebook.cells[4].update(source=source))

    write("print(2)")
    executed({4: "2\n"}, meanwhile=lambda: write("print(3)"))
    assert refresh(project) == ["01_tiny"]
    assert read(project).cells[4].source == "print(3)"


def test_links_are_written_without_an_execution_and_make_nothing_stale(
    project, no_execution, capsys
):
    linked = path_of(project).read_bytes()

    def unlink(notebook):
        notebook.cells = [
            each for each in notebook.cells if NAVIGATION not in each.metadata.get("tags", [])
        ]
        heading = next(each for each in notebook.cells if "## 1" in each.source)
        heading.source = ANCHOR.sub("", heading.source)

    edit(project, unlink)
    assert why_stale(project, read(project)) == ""
    assert main(["--check"]) == 1
    assert "01_tiny: its links are not up to date" in capsys.readouterr().out
    assert main(["--links", "01"]) == 0
    assert capsys.readouterr().out == "01_tiny: links written\n"
    assert path_of(project).read_bytes() == linked
    assert main(["--links"]) == main(["--check"]) == 0
    assert "written" not in capsys.readouterr().out


def test_bad_arguments_exit_with_2(project, capsys):
    assert main(["01_tinny"]) == 2
    assert "Did you mean '01_tiny'?" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["--accept"])
    assert stopped.value.code == 2
