"""A wrong formula in a technique makes its notebook and a unit test of its own fail.

Each mutant is made in a copy of the project. The right formulas pass: for the unit tests an
unchanged copy shows it, for the notebooks nbval, which runs all their cells in ``make test``.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.mutations.mutants import MUTANTS

COPIED = "labkit tests notebooks examples data_scripts pyproject.toml constraints.txt".split()
LEFT_OUT = shutil.ignore_patterns("__pycache__", "rank_[0-9]*", "kernel_meta", ".ipynb_checkpoints")

CASES = [
    pytest.param(notebook, mutant, id=name)
    for notebook, mutants in MUTANTS.items()
    for name, mutant in mutants.items()
]
each_mutant = pytest.mark.parametrize(("notebook", "mutant"), CASES)


def copy_of(root, folder):
    """Copy what a notebook and the unit tests need; return the copy's folder."""
    folder.mkdir()
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=LEFT_OUT)
        else:
            shutil.copy(source, folder / name)
    return folder


def environment(project, **more):
    """Return variables for a process that must import labkit from ``project`` and nowhere else."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return kept | {"PYTHONPATH": str(project), "LABKIT_PRESET": "smoke"} | more


def start_tests(project, *tests):
    """Start pytest over ``tests`` in ``project``, until the first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.Popen(
        command,
        cwd=project,
        env=environment(project),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def first_failure(path, project):
    """Run a notebook's cells until the first one fails; return (its source, error name), or None.

    A cell inserted at the start prints where labkit is imported from.
    """
    notebook = nbformat.read(path, as_version=4)
    where = "import labkit; print(labkit.__file__)"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(where))
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    try:
        client.execute(env=environment(project, LABKIT_RUN=str(project / "runs")))
    except CellExecutionError as error:
        failed = [cell for cell in notebook.cells if _raised(cell)]
        assert len(failed) == 1, error
        return failed[0].source, error.ename
    finally:
        imported = Path(notebook.cells[0].outputs[0].text.strip())
        assert imported.parent == project / "labkit", f"the kernel imported {imported}"
    return None


def _raised(cell):
    return any(output.output_type == "error" for output in cell.get("outputs", ()))


@each_mutant
def test_the_right_formula_stands_there_once(notebook, mutant, root):
    """A formula or a test that has moved or changed its form would no longer be mutated or run."""
    assert (root / "notebooks" / f"{notebook}.ipynb").is_file()
    assert (root / mutant.file).read_text().count(mutant.right) == 1
    assert mutant.wrong != mutant.right
    file, *names = mutant.test.split("::")
    text = (root / file).read_text()
    assert all(re.search(rf"(def|class) {name.partition('[')[0]}\b", text) for name in names), (
        mutant.test
    )


@pytest.mark.long
def test_right_formulas_pass(root, tmp_path):
    project = copy_of(root, tmp_path / "project")
    tests = start_tests(
        project, *(mutant.test for mutants in MUTANTS.values() for mutant in mutants.values())
    )
    printed, _ = tests.communicate()
    assert tests.returncode == 0 and " passed" in printed, printed


@pytest.mark.long
@each_mutant
def test_a_wrong_formula_fails_a_notebook_and_a_unit_test(notebook, mutant, root, tmp_path):
    project = copy_of(root, tmp_path / "project")
    file = project / mutant.file
    file.write_text(file.read_text().replace(mutant.right, mutant.wrong))
    tests = start_tests(project, mutant.test)
    try:
        failed = first_failure(project / "notebooks" / f"{notebook}.ipynb", project)
    finally:
        printed, _ = tests.communicate()
    # 1 means that a test failed; 2 to 5 are other errors, such as a failed import.
    assert tests.returncode == 1 and "1 failed" in printed, printed
    assert failed is not None, "the notebook ran to its end"
    source, error = failed
    assert error == "AssertionError" and re.search(r"assert |lab\.check\(", source), failed
