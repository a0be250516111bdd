"""A small project with one lab."""

import json

import pytest

from tests.support.lab_cells import lab_cells, write


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
