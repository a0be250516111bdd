"""Projects of small labs, for tests that run them."""

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PARAMETERS = """import os
preset = os.environ.get("LABKIT_PRESET", "lab")
device = "auto"
rate = None
sizes = None"""
FINISH = """from labkit.labs.run import Run
run = Run.open("lab", preset=preset, parameters={"rate": rate})
run.finish({"doubled": 2 * (rate or 0), "word": "w"}, headline=["doubled"])"""


def write_labs(project, labs):
    """Write a project of labs (name -> sources of its cells); return its folder."""
    (project / "notebooks").mkdir(parents=True)
    (project / "pyproject.toml").write_text('[project]\nname = "mindspore-labs"\n')
    for name, sources in labs.items():
        write_lab(project, name, *sources)
    return project


def write_lab(project, name, *sources):
    """Write one lab: card, parameters, a cell that may and does raise, and those of ``sources``."""
    card = f"# {name[:2]} · {name[3:]}\n\n[The project](../pyproject.toml), `[a](../b)`, $x^2$"
    tagged = new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    raising = new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]})
    cells = [new_markdown_cell(card), tagged, raising, *map(new_code_cell, sources)]
    nbformat.write(new_notebook(cells=cells), project / "notebooks" / f"{name}.ipynb")
