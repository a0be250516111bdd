"""Networks that others published: of correct pairs nothing is said, and of MindCV's what differs.

Each seed draws all weights and the batch. ``long`` are the other seeds, and the deep networks.
"""

import re

import numpy as np
import pytest
from mindspore import nn

from labkit.migration import load, propose
from labkit.migration.compare import compare
from labkit.migration.names import applied
from labkit.migration.rules import BERT, GPT2, LLAMA, MERGED, VIT

pairs = pytest.importorskip("tests.migration.pairs", reason="`make test ALL=1` installs them")
import torch  # noqa: E402

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]
STAGES = {"weights", "training", "evaluation", "loss", "optimizer", "gradients", "run"}
DEEP = {"resnet34", "resnet50", "resnet101", "resnet152", "efficientnet_b0"}
CASES = [
    pytest.param(name, seed, marks=pytest.mark.long if seed or name in DEEP else ())
    for name in pairs.PAIRS
    for seed in range(5)
]


def compared(pair):
    """Return the comparison with PyTorch's weights loaded."""
    network, module, inputs, labels, rules = pair
    load(network, {name: value.numpy() for name, value in module.state_dict().items()}, rules)
    ours = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    theirs = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)
    losses = pairs.loss, pairs.torch_loss
    return compare(network, module, losses, (ours, theirs), (inputs, labels), rules=rules)


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_nothing_is_found_in_a_correct_pair(name, seed):
    result = compared(pairs.pair(name, seed))
    assert not result.faults, str(result)
    assert {row.stage for row in result.rows} >= STAGES
