"""Shared by the tests of the migration: PyTorch's loss and optimizer, a small network."""

import numpy as np
from mindspore import nn, ops

from labkit.migration import load, rule
from labkit.migration.names import pairs
from labkit.steps.losses import CrossEntropySmooth
from labkit.steps.parameter_groups import decay_groups


def smoothed_cross_entropy(classes, smoothing, reduction="mean"):
    """Return PyTorch's CrossEntropyLoss(label_smoothing)."""
    return CrossEntropySmooth(True, reduction, smoothing, classes, convention="pytorch")


def momentum(network, rates, *, decay=1e-4, momentum=0.9):
    """Return Momentum with decay on weights of more than one dimension."""
    return nn.Momentum(decay_groups(network, decay), rates, momentum)


def by_rule(network, renames=None):
    """Load the rule's weights into ``network`` and return them by PyTorch name."""
    state = rule.state({pair.torch: pair.torch_shape for pair in pairs(network, renames)})
    load(network, state, renames)
    return state


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


def torch_small(torch, dtype=None):
    """Return ``Small`` in PyTorch with the rule's weights, float64 unless ``dtype`` is given."""
    functional = torch.nn.functional

    class TorchSmall(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
            self.bn1 = torch.nn.BatchNorm2d(8)
            self.conv2 = torch.nn.Conv2d(8, 6, 3, padding=1, bias=False)
            self.hidden = torch.nn.Linear(6, 6)
            self.fc = torch.nn.Linear(6, 4)

        def forward(self, x):
            x = self.conv2(functional.relu(self.bn1(self.conv1(x)))).mean((2, 3))
            return self.fc(functional.relu(self.hidden(x)))

    module = TorchSmall()
    state = rule.state({name: value.shape for name, value in module.state_dict().items()})
    module.load_state_dict({n: torch.from_numpy(np.asarray(v)) for n, v in state.items()})
    return module.to(dtype or torch.float64)


def torch_momentum(torch, module, rate, *, decay=1e-4, momentum=0.9):
    """Return PyTorch's counterpart of ``momentum``."""
    weights = [p for p in module.parameters() if p.ndim > 1]
    others = [p for p in module.parameters() if p.ndim <= 1]
    groups = [{"params": weights, "weight_decay": decay}, {"params": others}]
    return torch.optim.SGD(groups, lr=rate, momentum=momentum)
