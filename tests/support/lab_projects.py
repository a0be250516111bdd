"""Projects of small labs, for tests that run them."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit.tools.running.execution import Execution

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS = """import os
preset = os.environ.get("LABKIT_PRESET", "lab")
device = "auto"
rate = None
sizes = None"""
OPEN = """import sys
from labkit.labs.run import Run
run = Run.open("lab", preset=preset, parameters={"rate": rate})
print("half a", end=" ")
print("line\\n    bar 1%\\r    bar 2%\\nthe end", end="")"""


def write_labs(project, labs, **options):
    """Write a project of labs (name -> sources of its cells); options as in ``write_lab``."""
    (project / "notebooks").mkdir(parents=True)
    (project / "pyproject.toml").write_text('[project]\nname = "mindspore-labs"\n')
    for name, sources in labs.items():
        write_lab(project, name, *sources, **options)


def write_lab(project, name, *sources, parameters=(PARAMETERS,), card=""):
    """Write one lab: its card, the cells tagged ``parameters``, and the cells of ``sources``."""
    card = card or f"# {name[:2]} · {name[3:]}\n\n[The project](../pyproject.toml), [here](#here)"
    tagged = [new_code_cell(source) for source in parameters]
    for cell in tagged:
        cell.metadata["tags"] = ["parameters"]
    cells = [new_markdown_cell(card), *tagged, *map(new_code_cell, sources)]
    # No kernelspec and no language: papermill alone would refuse such a notebook.
    nbformat.write(new_notebook(cells=cells), project / "notebooks" / f"{name}.ipynb")


def execute_nothing(source, output, parameters, environment, say, limits, stop=None):
    """Stand in for ``execution.execute``: copy the notebook, append an x to the file "executed"."""
    output.write_text(source.read_text())
    with output.with_name("executed").open("a") as file:
        file.write("x")
    return Execution(None, 0.0)
