"""Places that a network cuts otherwise than PyTorch's module: paired, or left, and no fault."""

from collections import OrderedDict

import numpy as np
import pytest
from mindspore import nn, ops

from labkit.migration import compare, load, propose

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("runtime")


class Flat(nn.Cell):
    """(B, 3, 6, 6) -> (B, 2); each layer by itself, and a pool that drops the axes of length 1."""

    def __init__(self):
        super().__init__()
        convs = (nn.Conv2d(n, 4, 1, pad_mode="valid", has_bias=False) for n in (3, 4))
        norms = (nn.BatchNorm2d(4, 1e-5, 0.9) for _ in range(2))
        self.features = nn.SequentialCell(
            [cell for both in zip(convs, norms, strict=True) for cell in both]
        )
        self.avgpool, self.fc = Mean(), nn.Dense(4, 2)

    def construct(self, x):
        return self.fc(self.avgpool(self.features(x)))


class Mean(nn.Cell):
    def construct(self, x):
        return x.mean((2, 3))


def nested():
    """Return the original: its "features.0" is a block, ours is the convolution in it.

    What its second BatchNorm gets has the mean 0, but for rounding.
    """
    t = torch.nn
    blocks = (t.Sequential(t.Conv2d(n, 4, 1, bias=False), t.BatchNorm2d(4)) for n in (3, 4))
    parts = {"features": t.Sequential(*blocks), "avgpool": t.AdaptiveAvgPool2d(1)}
    return t.Sequential(OrderedDict(parts, flatten=t.Flatten(), fc=t.Linear(4, 2)))


def test_other_cuts_are_no_faults():
    torch.manual_seed(0)
    network, module = Flat(), nested()
    rules = propose(network, module.state_dict())
    load(network, {name: value.numpy() for name, value in module.state_dict().items()}, rules)
    random = np.random.default_rng(0)
    batch = random.normal(size=(4, 3, 6, 6)).astype(np.float32), random.integers(0, 2, 4)
    losses = ops.cross_entropy, torch.nn.functional.cross_entropy
    ours = nn.SGD(network.trainable_params(), 0.1)
    theirs = torch.optim.SGD(module.parameters(), 0.1)
    result = compare(network, module, losses, (ours, theirs), batch, rules=rules)
    assert not result.faults, str(result)
    places = {row.place for row in result.rows if row.stage == "training"}
    assert {"features", "features.0.0", "features.1.1", "avgpool", "fc"} <= places
    assert "features.0" not in places
