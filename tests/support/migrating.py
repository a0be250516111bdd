"""Shared by the tests of the migration: PyTorch's loss and optimizer, a small network."""

import numpy as np
from mindspore import nn, ops

from labkit.labs import recorded
from labkit.migration import load
from labkit.migration.names import pairs
from labkit.steps.losses import CrossEntropySmooth
from labkit.steps.parameter_groups import decay_groups

# Images and labels for ``Small``.
BATCH = recorded.uniform("images", (8, 3, 8, 8), -2, 2), (np.arange(8) % 4).astype(np.int32)


def smoothed_cross_entropy(classes, smoothing):
    """Return PyTorch's CrossEntropyLoss(label_smoothing)."""
    return CrossEntropySmooth(True, "mean", smoothing, classes, convention="pytorch")


def momentum(network, rates, *, decay=1e-4, momentum=0.9):
    """Return Momentum with decay on weights of more than one dimension."""
    return nn.Momentum(decay_groups(network, decay), rates, momentum)


def by_rule(network):
    """Load the rule's weights into ``network`` and return them by PyTorch name."""
    state = recorded.state({pair.torch: pair.torch_shape for pair in pairs(network)})
    load(network, state)
    return state


def torch_by_rule(torch, module):
    """Load the rule's weights into a PyTorch module and return it."""
    state = recorded.state({name: value.shape for name, value in module.state_dict().items()})
    module.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    return module


class Small(nn.Cell):
    """(B, 3, 8, 8) -> (B, 4): each kind of parameter of a ResNet, and a square dense weight."""

    def __init__(self, bn=None, **conv):
        super().__init__()
        conv = {"pad_mode": "pad", "padding": 1} | conv
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, **conv)
        self.bn1 = nn.BatchNorm2d(8, **({"eps": 1e-5, "momentum": 0.9} | (bn or {})))
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(8, 6, 3, **conv)
        self.hidden = nn.Dense(6, 6)
        self.fc = nn.Dense(6, 4)

    def construct(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = ops.mean(self.conv2(x), (2, 3))
        return self.fc(self.relu(self.hidden(x)))


def small(**options):
    """Return ``Small`` with the rule's weights."""
    network = Small(**options)
    by_rule(network)
    return network


def torch_small(torch):
    """Return ``Small`` in PyTorch with the rule's weights, in float64."""
    n = torch.nn
    module = n.Sequential()
    module.conv1 = n.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
    module.bn1 = n.BatchNorm2d(8)
    module.relu1 = n.ReLU()
    module.conv2 = n.Conv2d(8, 6, 3, padding=1, bias=False)
    module.mean = n.Sequential(n.AdaptiveAvgPool2d(1), n.Flatten())
    module.hidden = n.Linear(6, 6)
    module.relu2 = n.ReLU()
    module.fc = n.Linear(6, 4)
    return torch_by_rule(torch, module).double()
