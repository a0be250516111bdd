"""Notebook 00: the numbers of PyTorch that it quotes are true."""

import ast
from pathlib import Path

import pytest

from labkit.tools.labs import read_notebook

CELLS = read_notebook(Path(__file__).parents[2] / "notebooks" / "00_start_here.ipynb")["cells"]


def torch_column():
    """Return PyTorch's numbers that the notebook quotes, by the labels of MindSpore's numbers."""
    values = {}
    for source in (cell["source"] for cell in CELLS if cell["cell_type"] == "code"):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values[node.targets[0].id] = node.value
    labels = [key.value for key in values["here"].keys]
    return dict(zip(labels, ast.literal_eval(values["pytorch"].args[0].args[1]), strict=True))


def test_the_defaults_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    nn, image = torch.nn, torch.zeros(1, 1, 28, 28)
    conv = nn.Conv2d(1, 1, 3)
    assert torch_column() == {
        "Conv2d(1, 1, 3): side of a 28 x 28 image": conv(image).shape[-1],
        "Conv2d(1, 1, 3): tensors of parameters": len(list(conv.parameters())),
        "MaxPool2d(2): side of a 28 x 28 image": nn.MaxPool2d(2)(image).shape[-1],
        "BatchNorm2d: momentum": nn.BatchNorm2d(1).momentum,
        "LayerNorm: epsilon": nn.LayerNorm(1).eps,
        "LeakyReLU()(-1)": round(float(nn.LeakyReLU()(torch.tensor(-1.0))), 3),
    }
