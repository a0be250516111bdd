"""Notebook 00: its statements on PyTorch are true, and its terms link to where they are used."""

import ast
import re
from pathlib import Path

import pytest

from labkit.tools.labs import find_labs, read_notebook
from tests.support.texts import markdown

ROOT = Path(__file__).parents[2]
CELLS = read_notebook(ROOT / "notebooks" / "00_start_here.ipynb")["cells"]
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


@pytest.fixture(scope="module")
def sections():
    """Text of each section of each lab, by file name and anchor."""
    texts = {}
    for lab in find_labs(ROOT):
        notebook = read_notebook(lab.path)
        text = "\n".join(markdown(notebook["cells"]))
        _, *parts = re.split(r'<a id="([\w-]+)"></a>\n+## ', text)
        anchors, parts = parts[::2], parts[1::2]
        texts |= {(lab.path.name, name): part for name, part in zip(anchors, parts, strict=True)}
    return texts


WORDS = re.findall(r"^\|\[\*\*(.+?)\*\*\]\((\S+?)\)", CELLS[-3]["source"], re.M)


def test_every_word_is_there():
    assert CELLS[-3]["source"].count("|[**") == len(WORDS) == 24


@pytest.mark.parametrize(("word", "link"), WORDS)
def test_a_word_stands_where_its_link_leads(word, link, sections):
    target, _, anchor = link.partition("#")
    if target.endswith(".md"):
        text = (ROOT / "notebooks" / target).resolve().read_text(encoding="utf-8")
    else:
        text = sections[target or "00_start_here.ipynb", anchor]
    assert re.search(rf"\b{word}(?:s|es|ed)?\b", text, re.IGNORECASE)
