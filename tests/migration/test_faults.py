"""Planted faults: each is named at its place, in the words of its layer, and nothing else is."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from labkit.migration import compare, load
from labkit.steps.losses import CrossEntropySmooth

torch = pytest.importorskip("torch")
from labkit.migration.torch_trace import torch_trace  # noqa: E402

T, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.usefixtures("runtime")


class TorchCNN(T.Module):
    """(B, 3, 16, 16) -> (B, 5), with biases before BatchNorm."""

    def __init__(self, p=0.0):
        super().__init__()
        self.conv1, self.bn1, self.act = T.Conv2d(3, 8, 3, 2, 1), T.BatchNorm2d(8), T.GELU()
        self.maxpool = T.MaxPool2d(3, 2, 1)
        self.conv2 = T.Conv2d(8, 8, 3, padding=2, dilation=2, groups=2)
        self.norm, self.leaky = T.GroupNorm(4, 8), T.LeakyReLU(0.1)
        self.up = T.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.conv3, self.bn3 = T.Conv2d(8, 8, 3, padding=1), T.BatchNorm2d(8)
        self.hard, self.avgpool = T.Hardswish(), T.AvgPool2d(3, 2, 1)
        self.drop, self.fc = T.Dropout(p), T.Linear(128, 5)

    def forward(self, x):
        x = self.maxpool(self.act(self.bn1(self.conv1(x))))
        x = torch.relu(x + self.leaky(self.norm(self.conv2(x))))
        x = self.avgpool(self.hard(self.bn3(self.conv3(self.up(x)))))
        return self.fc(self.drop(x.flatten(1)))


class Faulty(nn.Cell):
    """A network whose cells ``changed`` replaces; ``fault`` names what ``construct`` does wrong."""

    def plant(self, fault, changed):
        self.fault = fault
        for name, cell in changed.items():
            setattr(self, name, cell())


class CNN(Faulty):
    """TorchCNN in MindSpore."""

    def __init__(self, p=0.0, fault="", **changed):
        super().__init__()
        pad = {"pad_mode": "pad", "has_bias": True}
        self.conv1 = nn.Conv2d(3, 8, 3, 2, padding=1, **pad)
        self.bn1, self.act = nn.BatchNorm2d(8, momentum=0.9), nn.GELU(approximate=False)
        self.maxpool = nn.MaxPool2d(3, 2, "pad", 1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=2, dilation=2, group=2, **pad)
        self.norm, self.leaky = nn.GroupNorm(4, 8), nn.LeakyReLU(0.1)
        self.up = nn.Upsample(
            scale_factor=(2.0, 2.0),
            mode="bilinear",
            align_corners=True,
            recompute_scale_factor=True,
        )
        self.conv3 = nn.Conv2d(8, 8, 3, padding=1, **pad)
        self.bn3, self.hard = nn.BatchNorm2d(8, momentum=0.9), nn.HSwish()
        self.avgpool = nn.AvgPool2d(3, 2, "pad", 1)
        self.drop, self.fc = nn.Dropout(p=p), nn.Dense(128, 5)
        self.plant(fault, changed)

    def construct(self, x):
        fault = self.fault
        x = self.conv1(x)
        x = self.bn1(self.act(x)) if fault == "swapped" else self.act(self.bn1(x))
        x = self.maxpool(x)
        branch = self.norm(self.conv2(x))
        branch = branch if fault == "no activation" else self.leaky(branch)
        branch = ops.stop_gradient(branch) if fault == "detached" else branch
        x = branch if fault == "no residual" else x + branch
        x = x if fault == "no relu" else ops.relu(x)
        x = self.avgpool(self.hard(self.bn3(self.conv3(self.up(x)))))
        x = x.transpose(0, 2, 3, 1) if fault == "NHWC" else x
        x = x.reshape(x.shape[0], -1)
        return self.fc(x if fault == "no dropout" else self.drop(x))


class TorchGPT(T.Module):
    """Tokens (B, L) -> logits (B * L, 17): one block, its head tied to its embedding."""

    def __init__(self, p=0.0):
        super().__init__()
        self.embed, self.pos = T.Embedding(17, 16), T.Embedding(9, 16)
        self.ln1, self.ln2, self.norm = (T.LayerNorm(16) for _ in range(3))
        self.q, self.k, self.v, self.o = (T.Linear(16, 16) for _ in range(4))
        self.softmax, self.drop = T.Softmax(-1), T.Dropout(p)
        self.wide, self.act, self.narrow = T.Linear(16, 32), T.GELU("tanh"), T.Linear(32, 16)
        self.head = T.Linear(16, 17, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids) + self.pos(torch.arange(ids.shape[1]))
        y = self.ln1(x)
        q, k, v = (
            f(y).reshape(*y.shape[:2], 4, 4).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        future = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
        scores = (q @ k.transpose(-1, -2) / 2).masked_fill(future, -torch.inf)
        y = (self.drop(self.softmax(scores)) @ v).transpose(1, 2).reshape(x.shape)
        x = x + self.o(y)
        x = x + self.narrow(self.act(self.wide(self.ln2(x))))
        return self.head(self.norm(x)).reshape(-1, 17)


class GPT(Faulty):
    """TorchGPT in MindSpore."""

    def __init__(self, p=0.0, fault="", **changed):
        super().__init__()
        self.embed, self.pos = nn.Embedding(17, 16), nn.Embedding(9, 16)
        self.ln1, self.ln2, self.norm = (nn.LayerNorm((16,), epsilon=1e-5) for _ in range(3))
        self.q, self.k, self.v, self.o = (nn.Dense(16, 16) for _ in range(4))
        self.softmax, self.drop = nn.Softmax(-1), nn.Dropout(p=p)
        self.wide, self.act, self.narrow = nn.Dense(16, 32), nn.GELU(), nn.Dense(32, 16)
        self.head = nn.Dense(16, 17, has_bias=False)
        if fault != "untied":
            self.head.weight = self.embed.embedding_table
        self.plant(fault, changed)

    def construct(self, ids):
        fault, (rows, length) = self.fault, ids.shape
        embedded = self.embed(ids) * (4 if fault == "embedding scaled" else 1)
        x = embedded + self.pos(ops.arange(length) + (fault == "position"))
        y = self.ln1(x)
        q, k, v = (f(y).reshape(rows, length, 4, 4) for f in (self.q, self.k, self.v))
        if fault != "heads":
            q, k, v = (t.swapaxes(1, 2) for t in (q, k, v))
        else:
            q, k, v = (t.reshape(rows, 4, length, 4) for t in (q, k, v))
        scores = q @ k.swapaxes(-1, -2) / {"no scale": 1, "width scale": 4}.get(fault, 2)
        future = ms.Tensor(np.triu(np.ones((length, length), bool), 1))
        future = {"no mask": future & False, "inverted": ~future}.get(fault, future)
        scores = scores.masked_fill(future, -1e9 if fault == "mask -1e9" else -np.inf)
        y = (self.drop(self.softmax(scores)) @ v).swapaxes(1, 2).reshape(x.shape)
        x = (self.ln1(x) if fault == "residual after norm" else x) + self.o(y)
        y = self.narrow(self.act(self.wide(self.ln2(x))))
        x = x + (ops.stop_gradient(y) if fault == "detached" else y)
        return self.head(self.norm(x)).reshape(-1, 17)


SMOOTHING = 0.1
