"""Fine-tuning of the ResNet-50 recipe: what is loaded, frozen and slower, and PyTorch's updates."""

import re
from collections import OrderedDict

import numpy as np
import pytest
from mindspore import Tensor

from labkit.errors import InputError
from labkit.migration import state_dict
from labkit.recipes import training
from labkit.recipes.resnet50 import RECIPE
from labkit.steps import schedules
from labkit.steps.losses import LossNet
from labkit.training import checkpoint
from tests.support.recipes import kept, newest, settings
from tests.support.step_cells import assert_bit_equal, snapshot

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("runtime", "small")
BELOW = "(conv1|bn1|layer1|layer2)."


def twin(classes):
    """Return the small ResNet-18 of tests/support/recipes.py in PyTorch."""
    n = torch.nn

    def block(ins, outs, kernel, stride):
        conv = n.Conv2d(ins, outs, kernel, stride, kernel // 2, bias=False)
        return OrderedDict(conv1=conv, bn1=n.BatchNorm2d(outs), relu=n.ReLU())

    parts = block(3, 4, 7, 2) | {"pool": n.MaxPool2d(3, 2, 1)}
    for number, sizes in enumerate(((4, 4, 3, 1), (4, 8, 3, 2), (8, 8, 3, 2), (8, 16, 3, 2)), 1):
        parts[f"layer{number}"] = n.Sequential(n.Sequential(block(*sizes)))
    ends = {"mean": n.AdaptiveAvgPool2d(1), "flat": n.Flatten(), "fc": n.Linear(16, classes)}
    return n.Sequential(parts | ends)


@pytest.fixture
def file(tmp_path):
    """Weights of PyTorch with 12 classes, as of some training."""
    torch.manual_seed(3)
    module = twin(12)
    for _ in range(5):
        module(2 * torch.randn(8, 3, 32, 32) + 0.5)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "bn1" in name:
                parameter.add_(0.2 * torch.randn(parameter.shape))
    torch.save({"state_dict": module.state_dict(), "epoch": 5}, tmp_path / "weights.pth")
    return tmp_path / "weights.pth"


@pytest.mark.parametrize(("freeze", "lower_rate"), [(2, 0.1), (4, 1.0)])
def test_two_updates_are_pytorchs(freeze, lower_rate, file, tmp_path):
    given = dict(pretrained=str(file), freeze=freeze, lower_rate=lower_rate, class_num=12)
    config = settings("resnet50", tmp_path, label_smooth_factor=0.0, warmup=0, **given)
    network, module = training.build_network(config), twin(12).double()
    RECIPE.prepare(config, network)
    module.load_state_dict(torch.load(file)["state_dict"])
    start = {n: t.numpy().copy() for n, t in module.state_dict().items()}
    step = RECIPE.build_step(config, LossNet(network, training.build_loss(config)), 4)
    head = list(module.fc.parameters())
    for part in list(module)[: 4 + freeze]:
        part.eval().requires_grad_(False)
    below = [p for n, p in module.named_parameters() if p.requires_grad and not n.startswith("fc")]
    groups = [
        {"params": [p for p in part if (p.ndim > 1) == decays], "factor": factor, "weight_decay": d}
        for part, factor in ((head, 1.0), (below, lower_rate))
        for decays, d in ((True, config.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.SGD(groups, 1.0, momentum=config.momentum)
    rng = np.random.default_rng(freeze)
    for rate in schedules.cosine(config.lr, config.lr_end, config.epoch_size, 4, 0)[:2]:
        images = rng.normal(size=(10, 3, 32, 32)).astype(np.float32)
        labels = rng.integers(0, 12, 10)
        step(Tensor(images), Tensor(labels.astype(np.int32)))
        for group in optimizer.param_groups:
            group["lr"] = float(rate) * group["factor"]
        optimizer.zero_grad()
        logits = module(torch.tensor(images).double())
        torch.nn.functional.cross_entropy(logits, torch.tensor(labels)).backward()
        optimizer.step()
    ours, still = state_dict(network), []
    for name, tensor in module.state_dict().items():
        if "num_batches" not in name:
            change, first = tensor.numpy() - start[name], np.abs(start[name]).max()
            still += [] if change.any() else [name]
            # Each update is rounded to the spacing of the weights.
            atol = 1e-4 * np.abs(change).max() + 2 * np.spacing(first.astype(np.float32))
            off = np.abs(ours[name] - start[name] - change).max()
            assert off <= (atol if change.any() else 0), (name, off, atol)
    assert len(still) == 5 * (freeze + 1)  # weight, gamma, beta and the statistics of each


def test_a_training_from_a_file_resumed_and_evaluated(file, data, tmp_path, capsys):
    """Ten classes in the data, twelve in the file: the head is new, and what is frozen stays."""
    given = dict(pretrained=str(file), freeze=2, lower_rate=0.5, epoch_size=1)
    config = settings("resnet50", tmp_path, warmup=0, **given)
    with kept() as networks:
        first = RECIPE.train(config, data, device="CPU")
    shown = capsys.readouterr().out
    for line in (
        f"starts from {file}",
        "loaded 25 parameters",
        r"left new: fc.weight: shape \(12, 16\), expected \(10, 16\)",
        "frozen: conv1, bn1, layer1, layer2; their BatchNorm uses its running statistics",
        "rates below the head: 0.5 of its own",
    ):
        assert re.search(f"labkit: {line}", shown), (line, shown)
    before = torch.load(file)["state_dict"]
    after = state_dict(networks[0])
    for name, value in before.items():
        same = re.match(BELOW, name) is not None
        if not name.startswith("fc.") and "num_b" not in name:
            assert (after[name] == value.numpy()).all() == same, name
    path = newest(tmp_path / "resnet50")
    assert RECIPE.evaluate_checkpoint(config, data, path, device="CPU") == first.evaluation
    below, head = (first.records.column(f"learning_rate{group}") for group in ("", "_2"))
    np.testing.assert_allclose(below, np.multiply(head, 0.5), rtol=1e-6)
    with kept() as networks:
        RECIPE.train(config, data, device="CPU", resume=True)
    assert_bit_equal(state_dict(networks[0]), after)
    checkpoint.write(networks[0], tmp_path / "ours.ckpt", extra={"moments.fc": Tensor([1.0])})
    for own in (tmp_path / "ours.ckpt", path):
        other = settings("resnet50", tmp_path, class_num=10, pretrained=str(own))
        network = training.build_network(other)
        assert RECIPE.prepare(other, network) == [f"loaded {len(snapshot(network))} parameters"]
        assert_bit_equal(snapshot(network), snapshot(networks[0]))


def test_what_nobody_needs_is_refused(tmp_path):
    for given, message in (
        ({"freeze": 1}, "freeze: expected 0 without pretrained, got 1"),
        ({"lower_rate": 0.1}, "lower_rate: expected 1.0 without pretrained, got 0.1"),
        ({"pretrained": "x", "freeze": 5}, "freeze: expected an integer >= 0 and <= 4, got 5"),
        ({"pretrained": "x", "freeze": 4, "lower_rate": 0.1}, "leaves the head alone, got 0.1"),
    ):
        with pytest.raises(InputError, match=message):
            settings("resnet50", tmp_path, **given)


def test_another_network_or_no_file_is_refused(file, data, tmp_path):
    config = settings("resnet50", tmp_path, class_num=12, pretrained=str(tmp_path / "none.pth"))
    with pytest.raises(InputError, match="no checkpoint at .*none.pth"):
        RECIPE.train(config, data, device="CPU")
    state = torch.load(file)["state_dict"]
    state["layer5.0.conv1.weight"] = state.pop("layer1.0.conv1.weight")
    torch.save(state, tmp_path / "none.pth")
    network = training.build_network(config)
    before = snapshot(network)
    with pytest.raises(InputError, match="layer1.0.conv1.weight: .*layer5.0.conv1.weight: "):
        RECIPE.prepare(config, network)
    assert_bit_equal(snapshot(network), before)
