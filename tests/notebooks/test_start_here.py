"""Notebook 00: its statements on PyTorch are true."""

import ast
from pathlib import Path

import pytest

from labkit.tools.labs import read_notebook

CELLS = read_notebook(Path(__file__).parents[2] / "notebooks" / "00_start_here.ipynb")["cells"]
CODE = [cell["source"] for cell in CELLS if cell["cell_type"] == "code"]


def torch_column():
    """Return PyTorch's numbers that the notebook quotes, by the labels of MindSpore's numbers."""
    nodes = [node for source in CODE for node in ast.walk(ast.parse(source))]
    values = {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    labels = [key.value for key in values["here"].keys]
    numbers = ast.literal_eval(values["pytorch"].args[0].args[1])
    return dict(zip(labels, numbers, strict=True))


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


def test_what_the_text_says_of_pytorch():
    torch = pytest.importorskip("torch")
    a = torch.tensor([1.0, 2.0])
    b = a
    b += 1
    assert a.tolist() == [2, 3]
    a.numpy()[0] = 9
    assert a[0] == 9
    norm = torch.nn.BatchNorm2d(1)
    norm(torch.ones(1, 1, 28, 28))
    assert float(norm.running_mean) == pytest.approx(0.1)
    loss_fn = torch.nn.CrossEntropyLoss()
    assert loss_fn.reduction == "mean" and norm.training
    logits, labels = torch.zeros(4, 2, requires_grad=True), torch.tensor([0, 1, 1, 0])
    for _ in range(2):
        loss_fn(logits, labels).backward()
    twice = logits.grad.clone()
    logits.grad = None
    loss_fn(logits, labels).backward()
    assert torch.equal(twice, 2 * logits.grad)  # gradients accumulate
    with pytest.raises(RuntimeError, match="Int"):
        loss_fn(logits, labels.int())
    layer = torch.nn.Linear(2, 32)
    assert layer.weight.shape == (32, 2) and layer.bias.shape == (32,)
