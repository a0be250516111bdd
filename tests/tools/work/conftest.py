"""A small project with one lab."""

import json

import pytest

CHECK = "from labkit.labs.exercises.accumulation import check\n\n\n"
STUB = "def {0}(pixels):\n    raise NotImplementedError\n\n\npassed = check('{0}', {0})"


def code(name, source, **more):
    made = {"cell_type": "code", "id": name, "metadata": {}, "source": source}
    return made | {"outputs": [], "execution_count": None} | more


def text(name, source):
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def lab_cells():
    parameters = code("p", 'preset = "lab"\ndevice = "auto"\nseed = None')
    parameters["metadata"]["tags"] = ["parameters"]
    printed = {"output_type": "stream", "name": "stdout", "text": "1\n"}
    return [
        text("t", "# 01 · Sums\n\n[code](../labkit/x.py) [next](02_b.ipynb) [w](https://a.b/c)"),
        parameters,
        code("n", "import numpy as np\nimport math", outputs=[printed], execution_count=3),
        code("e1", CHECK + STUB.format("normalise")),
        code("e2", STUB.format("mean_gradient")),
    ]


def write(path, cells, **metadata):
    path.parent.mkdir(parents=True, exist_ok=True)
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook))
    return path


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with notebooks/01_sums.ipynb, which is the working folder."""
    root = tmp_path / "project"
    write(root / "notebooks" / "01_sums.ipynb", lab_cells(), labkit={"preset": "lab"})
    (root / "pyproject.toml").write_text('[project]\nname = "labkit"\n')
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def change(project):
    """Change cells of the project's notebook: ``change(e1="new source")``, None removes one."""

    def changed(**sources):
        path = project / "notebooks" / "01_sums.ipynb"
        cells = json.loads(path.read_text())["cells"]
        cells = [cell | {"source": sources.get(cell["id"], cell["source"])} for cell in cells]
        write(path, [cell for cell in cells if cell["source"] is not None])

    return changed


@pytest.fixture
def edit():
    """Change cells of a notebook's file as JupyterLab does: ``edit(path, e1="new source")``."""

    def edited(path, **sources):
        notebook = json.loads(path.read_text())
        for cell in notebook["cells"]:
            if cell["id"] in sources:
                cell["source"] = sources[cell["id"]]
        path.write_text(json.dumps(notebook, indent=1))

    return edited
