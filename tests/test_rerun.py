"""An executed notebook is opened in its own folder and runs there again, wherever that is."""

import json
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from labkit.tools import jupyter as lab_server

ROOT = Path(lab_server.__file__).resolve().parents[3]


class Kernel(AsyncKernelManager):
    """As `labkit lab` starts it."""

    def _kernel_spec_manager_default(self):
        return lab_server.OwnKernel()


def executed():
    """Lab 01 to the end of its data section, with parameters as `labkit run` puts them in."""
    notebook = nbformat.read(ROOT / "notebooks/01_gradient_accumulation.ipynb", as_version=4)
    last = next(n for n, cell in enumerate(notebook.cells) if "one image" in cell.source)
    notebook.cells = notebook.cells[: last + 1]
    given = new_code_cell('preset = "smoke"\ndevice = "CPU"')
    given.metadata["tags"] = ["injected-parameters"]
    at = next(n for n, c in enumerate(notebook.cells) if c.metadata.get("tags") == ["parameters"])
    notebook.cells.insert(at + 1, given)
    return notebook


@pytest.mark.slow
def test_a_run_outside_the_project_runs_again_in_its_folder(tmp_path, monkeypatch):
    """It finds labkit, the project and its data sets, and writes below itself."""
    other = tmp_path / "jupyter" / "kernels" / "python3"
    other.mkdir(parents=True)
    spec = {"argv": ["/bin/false"], "display_name": "Another", "language": "python"}
    (other / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(other.parents[1]))  # looked at before all others
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    folder = tmp_path / "out" / "01_gradient_accumulation"
    folder.mkdir(parents=True)
    notebook = executed()
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=180, kernel_manager_class=Kernel, resources=where).execute()
    printed = "".join(output.text for output in notebook.cells[-1].outputs)
    assert "labels [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" in printed
    assert [path.name for path in folder.iterdir()] == ["runs"]
    assert (ROOT / "datasets" / "MNIST_Data" / "train").is_dir()
