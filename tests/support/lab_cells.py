"""Cells of a small lab, and its notebook; cells with an output, as nbformat objects."""

import json

from nbformat.v4 import new_code_cell, new_output

from tests.support import run_folders

CHECK = "from labkit.labs.exercises.accumulation import check\n\n\n"
STUB = "def {0}(pixels):\n    raise NotImplementedError\n\n\npassed = check('{0}', {0})"


def code(name, source, **more):
    return run_folders.code(source) | {"id": name, "metadata": {}, "execution_count": None} | more


def text(name, source):
    return run_folders.markdown(source) | {"id": name}


def printed(said, *tags, source="print(1)"):
    """An executed cell that has printed ``said``."""
    made = new_code_cell(source, execution_count=3)
    made.metadata["tags"] = list(tags)
    made.outputs = [new_output("stream", name="stdout", text=said)]
    return made


def shown(kind, content, about=None):
    """An executed cell with one output of the MIME type ``kind``."""
    made = new_code_cell("show()", execution_count=3)
    made.outputs = [new_output("display_data", data={kind: content}, metadata=about or {})]
    return made


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
    path.write_text(json.dumps(run_folders.notebook(*cells, **metadata)))
    return path
