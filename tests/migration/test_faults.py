"""Planted faults: each is named at its place, in the words of its layer, and nothing else is."""

import functools

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from labkit.migration import compare, load

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


def plant(self, fault, changed):
    """Replace cells; ``fault`` names what ``construct`` does wrong."""
    self.fault = fault
    for name, cell in changed.items():
        setattr(self, name, cell())


PAD = {"pad_mode": "pad", "has_bias": True}
UP = {"scale_factor": (2.0, 2.0), "recompute_scale_factor": True, "mode": "bilinear"}


class CNN(nn.Cell):
    """TorchCNN in MindSpore."""

    def __init__(self, p=0.0, fault="", **changed):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, padding=1, **PAD)
        self.bn1, self.act = nn.BatchNorm2d(8, momentum=0.9), nn.GELU(approximate=False)
        self.maxpool = nn.MaxPool2d(3, 2, "pad", 1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=2, dilation=2, group=2, **PAD)
        self.norm, self.leaky = nn.GroupNorm(4, 8), nn.LeakyReLU(0.1)
        self.up = nn.Upsample(**UP, align_corners=True)
        self.conv3 = nn.Conv2d(8, 8, 3, padding=1, **PAD)
        self.bn3, self.hard = nn.BatchNorm2d(8, momentum=0.9), nn.HSwish()
        self.avgpool = nn.AvgPool2d(3, 2, "pad", 1)
        self.drop, self.fc = nn.Dropout(p=p), nn.Dense(128, 5)
        plant(self, fault, changed)

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
        x = x.transpose(0, 2, 3, 1) if fault == "18 NHWC" else x
        x = x.reshape(x.shape[0], -1)
        return self.fc(x if fault == "no dropout" else self.drop(x))


class TorchGPT(T.Module):
    """Tokens (B, L) -> logits (B * L, 17): one block, its head tied to its embedding."""

    def __init__(self, p=0.0, padding=None):
        super().__init__()
        self.embed, self.pos = T.Embedding(17, 16, padding), T.Embedding(9, 16)
        for table in (self.embed.weight, self.pos.weight):
            table.data *= 0.02  # as GPT-2: LayerNorm's eps then counts
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


class GPT(nn.Cell):
    """TorchGPT in MindSpore."""

    def __init__(self, p=0.0, fault="", **changed):
        super().__init__()
        self.embed, self.pos = nn.Embedding(17, 16), nn.Embedding(9, 16)
        self.ln1, self.ln2, self.norm = (nn.LayerNorm((16,), epsilon=1e-5) for _ in range(3))
        self.q, self.k, self.v, self.o = (nn.Dense(16, 16) for _ in range(4))
        self.softmax, self.drop = nn.Softmax(-1), nn.Dropout(p=p)
        self.wide, self.act, self.narrow = nn.Dense(16, 32), nn.GELU(), nn.Dense(32, 16)
        self.head = nn.Dense(16, 17, has_bias=False)
        plant(self, fault, changed)
        if fault != "untied":
            self.head.weight = self.embed.embedding_table

    def construct(self, ids):
        fault, (rows, length) = self.fault, ids.shape
        embedded = self.embed(ids) * (4 if fault == "embedding scaled" else 1)
        x = embedded + self.pos(ops.arange(length) + (fault == "position"))
        y = self.ln1(x)
        q, k, v = (f(y).reshape(rows, length, 4, 4) for f in (self.q, self.k, self.v))
        if fault != "8 heads":
            q, k, v = (t.swapaxes(1, 2) for t in (q, k, v))
        else:
            q, k, v = (t.reshape(rows, 4, length, 4) for t in (q, k, v))
        scores = q @ k.swapaxes(-1, -2) / {"8 no scale": 1, "8 width scale": 4}.get(fault, 2)
        future = ms.Tensor(np.triu(np.ones((length, length), bool), 1))
        future = {"no mask": future & False, "inverted": ~future}.get(fault, future)
        scores = scores.masked_fill(future, -1e9 if fault == "mask -1e9" else -np.inf)
        y = (self.drop(self.softmax(scores)) @ v).swapaxes(1, 2).reshape(x.shape)
        x = (self.ln1(x) if fault == "residual after norm" else x) + self.o(y)
        y = self.narrow(self.act(self.wide(self.ln2(x))))
        x = x + (ops.stop_gradient(y) if fault == "detached" else y)
        return self.head(self.norm(x)).reshape(-1, 17)


def cross_entropy(logits, labels):
    """Return the loss that both sides have: smoothed, without labels of 3."""
    where = ops if isinstance(logits, ms.Tensor) else F
    return where.cross_entropy(logits, labels, ignore_index=3, label_smoothing=0.1)


def batch(kind, seed=0):
    r = np.random.default_rng(seed)
    if kind == "cnn":
        return r.normal(size=(6, 3, 16, 16)).astype(np.float32), np.array([0, 1, 2, 3, 4, 1])
    return r.integers(0, 17, (3, 6)), np.arange(18) % 17


@functools.cache
def original(kind, p=0.0, seed=0):
    """Return the trace of PyTorch's module."""
    torch.manual_seed(seed)
    module = {"cnn": TorchCNN, "gpt": TorchGPT, "padded": lambda p: TorchGPT(p, 0)}[kind](p)
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    return torch_trace(module, cross_entropy, optimizer, batch(kind, seed))


def compared(kind, p=0.0, seed=0, loss=cross_entropy, own=None, momentum=0.9, change=None, **plan):
    """Return the comparison of a network in which ``plan`` plants a fault."""
    trace = original(kind, p, seed)
    network = (CNN if kind == "cnn" else GPT)(p, **plan)
    state = {n: v.value.astype(np.float32) for n, v in trace.stages["weights"].items()}
    if change is None:
        load(network, state)
    else:
        change(network, state)
    optimizer = nn.Momentum(network.trainable_params(), 0.1, momentum)
    return compare(network, trace, loss, optimizer, own)


def later(*values, long):
    return pytest.param(*values, marks=pytest.mark.long if long else ())


SOUND = [later(kind, s, "", long=s > 1) for kind in ("cnn", "gpt") for s in range(5)]


@pytest.mark.parametrize(("kind", "seed", "fault"), [*SOUND, ("gpt", 0, "mask -1e9")])
def test_without_a_fault_nothing_is_named(kind, seed, fault):
    p = 0.3 * (seed % 2)
    result = compared(kind, p, seed, fault=fault)
    assert result.faults == {} and not [row for row in result.rows if not row.passed], str(result)
    stages = "preprocessing weights training evaluation loss optimizer".split()
    stages += ["gradients", "run"] if p == 0 else []
    assert {row.stage for row in result.rows} == set(stages)
    assert "not compared: how weights are initialised" in str(result)  # classic fault 19
    assert ("PyTorch differs from itself in Dropout" in str(result)) == (p > 0)


BN = "nn.BatchNorm2d(8, eps=1e-05, momentum=0.9)"
POOL = "nn.MaxPool2d(3, stride=2, pad_mode='pad', padding=1, ceil_mode=False)"
UPSAMPLE = "nn.Upsample(scale_factor=(2.0, 2.0), mode='bilinear', align_corners=True, "
UPSAMPLE += "recompute_scale_factor=True)"
LN = "nn.LayerNorm((16,), epsilon=1e-05)"
# fault: (pair, place, faulty cell, the right one as it is said). Numbers are the review's.
CELLS = {
    "1 eps 1e-3": ("cnn", "bn1", lambda: nn.BatchNorm2d(8, 1e-3), BN),
    "1 eps 2e-5": ("cnn", "bn3", lambda: nn.BatchNorm2d(8, 2e-5), BN),
    "2 momentum copied": ("cnn", "bn1", lambda: nn.BatchNorm2d(8, momentum=0.1), BN),
    "statistics kept": ("cnn", "bn3", lambda: nn.BatchNorm2d(8, momentum=1.0), BN),
    "evaluating": ("cnn", "bn1", lambda: nn.BatchNorm2d(8, use_batch_statistics=False), BN),
    "always training": ("cnn", "bn3", lambda: nn.BatchNorm2d(8, use_batch_statistics=True), BN),
    "3 same": ("cnn", "conv1", lambda: nn.Conv2d(3, 8, 3, 2, has_bias=True),
        "nn.Conv2d(3, 8, 3, stride=2, pad_mode='pad', padding=1, has_bias=True)"),
    "3 same in max-pool": ("cnn", "maxpool", lambda: nn.MaxPool2d(3, 2, "same"), POOL),
    "5 GELU": ("cnn", "act", nn.GELU, "nn.GELU(approximate=False)"),
    "5 GELU exact": ("gpt", "act", lambda: nn.GELU(False), "nn.GELU(approximate=True)"),
    "6 eps 1e-12": ("gpt", "ln1", lambda: nn.LayerNorm((16,), epsilon=1e-12), LN),
    "6 eps 1e-6": ("gpt", "ln1", lambda: nn.LayerNorm((16,), epsilon=1e-6), LN),
    "6 eps by default": ("gpt", "ln2", lambda: nn.LayerNorm((16,)), LN),
    "7 dropout": ("gpt", "drop", lambda: nn.Dropout(p=0.3), "nn.Dropout(p=0.0)"),
    "13 ceil_mode": ("cnn", "maxpool", lambda: nn.MaxPool2d(3, 2, "pad", 1, ceil_mode=True), POOL),
    "14 count_include_pad": (
        "cnn", "avgpool", lambda: nn.AvgPool2d(3, 2, "pad", 1, count_include_pad=False),
        POOL.replace("Max", "Avg").replace(")", ", count_include_pad=True)")),
    "15 align_corners": ("cnn", "up", lambda: nn.Upsample(**UP, align_corners=False), UPSAMPLE),
    "interpolation": ("cnn", "up", lambda: nn.Upsample(**UP | {"mode": "nearest"}), UPSAMPLE),
    "dilation": ("cnn", "conv2", lambda: nn.Conv2d(8, 8, 3, padding=1, group=2, **PAD),
        "nn.Conv2d(8, 8, 3, pad_mode='pad', padding=2, dilation=2, group=2, has_bias=True)"),
    "of channels": ("cnn", "norm", lambda: nn.GroupNorm(2, 8), "nn.GroupNorm(4, 8, eps=1e-05)"),
    "slope": ("cnn", "leaky", nn.LeakyReLU, "nn.LeakyReLU(0.1)"),
    "axis of softmax": ("gpt", "softmax", lambda: nn.Softmax(-2), "nn.Softmax(-1)"),
}  # fmt: skip
ELSEWHERE = "is infinite elsewhere than PyTorch's; between v and here, in construct"
# fault in construct: (pair, place: what was before it)
BETWEEN = {
    "18 NHWC": ("cnn", {"drop": "between avgpool and here"}),
    "swapped": ("cnn", dict.fromkeys(("bn1", "act", "maxpool"), "and here, in construct")),
    "no activation": ("cnn", {"up": "between norm and here"}),
    "no residual": ("cnn", {"up": "between leaky and here"}),
    "no relu": ("cnn", {"up": "between leaky and here"}),
    "8 no scale": ("gpt", {"softmax": "between v and here"}),
    "8 width scale": ("gpt", {"softmax": "between v and here"}),
    "8 heads": ("gpt", {"softmax": "between v and here", "o": "between drop and here"}),
    "no mask": ("gpt", {"softmax": ELSEWHERE}),
    "inverted": ("gpt", {"softmax": ELSEWHERE}),
    "embedding scaled": ("gpt", {"ln1": "between pos and here"}),
    "position": ("gpt", {"pos": "between embed and here"}),
    "residual after norm": ("gpt", {"ln2": "between o and here"}),
}
FAULTS = {n: (kind, {"fault": n}, places) for n, (kind, places) in BETWEEN.items()} | {
    name: (kind, {place: cell}, {place: f"with {right} it agrees"})
    for name, (kind, place, cell, right) in CELLS.items()
}
FAULTS["Hardswish"] = ("cnn", {"hard": nn.SiLU}, {"hard": "Hardswish in PyTorch, SiLU here"})
GROUPS = [
    *(["1 eps 1e-3", "3 same in max-pool", "14 count_include_pad"], ["5 GELU", "no residual"]),
    *(["2 momentum copied", "18 NHWC"], ["3 same", "slope", "statistics kept"]),
    *(["15 align_corners", "dilation"], ["13 ceil_mode", "1 eps 2e-5", "Hardswish"]),
    *(["evaluating", "no relu", "of channels"], ["interpolation", "no activation"]),
    *(["6 eps 1e-12", "8 no scale"], ["5 GELU exact", "embedding scaled", "6 eps by default"]),
    *(["position", "axis of softmax"], ["7 dropout", "8 width scale", "6 eps 1e-6"]),
]
SINGLE = [later([name], long=True) for name in FAULTS if not any(name in group for group in GROUPS)]


@pytest.mark.parametrize("names", GROUPS + SINGLE, ids=str)
def test_every_faulty_place_is_named_and_no_other(names):
    kind, plan, places = FAULTS[names[0]][0], {}, {}
    for name in names:
        plan |= FAULTS[name][1]
        places |= FAULTS[name][2]
    result = compared(kind, **plan)
    found = {place: what for (_, place), what in result.faults.items()}
    assert found.keys() == places.keys(), str(result)
    assert all(words in found[place] for place, words in places.items()), str(result)
    stage = "evaluation" if names == ["always training"] else "training"
    assert {stage for stage, _ in result.faults} == {stage}
    assert "the whole step is not judged while the places differ" in result.notes


def without_bias(network, state):
    load(network, {name: value for name, value in state.items() if name != "conv2.bias"})


def transposed(network, state):
    load(network, state | {"k.weight": state["k.weight"].T})


def conv2(**settings):
    return lambda: nn.Conv2d(8, 8, 3, pad_mode="pad", padding=2, dilation=2, **settings)


def shifted(smoothing, ignored):
    return lambda x, y: ops.cross_entropy(x, y, None, ignored, label_smoothing=smoothing)


IMAGES, LABELS = batch("cnn")
UNLOADED = lambda network, state: None  # noqa: E731
# fault: (pair, what plants it, first stage and place, the only one of its stage?, what is said)
LATER = {
    "4 bias missing": ("cnn", {"change": without_bias, "conv2": conv2(group=2)},
        ("weights", "names"), True, "conv2.bias: no parameter of the network"),
    "groups": ("cnn", {"change": UNLOADED, "conv2": conv2(has_bias=True)},
        ("weights", "names"), False, "conv2.weight: shape (8, 4, 3, 3), expected (8, 8, 3, 3)"),
    "9 transposed": ("gpt", {"change": transposed}, ("weights", "k.weight"), True, "transposed"),
    "12 sum": ("cnn", {"loss": lambda x, y: 5 * cross_entropy(x, y)},
        ("loss", "loss"), True, "value off by 4.0e+00; gradient of output off by 4.0e+00"),
    "12 index": ("cnn", {"loss": shifted(0.1, 99)}, ("loss", "loss"), True, "value off"),
    "12 smoothing": ("gpt", {"loss": shifted(1.7 / 16, 3)}, ("loss", "loss"), True, "value off"),
    "16 mean": ("cnn", {"own": (IMAGES * 1.01, LABELS)}, ("preprocessing", "batch"), True, "off"),
    "17 BGR": ("cnn", {"own": (IMAGES[:, ::-1], LABELS)}, ("preprocessing", "batch"), True, "off"),
    "19 initialisation": ("gpt", {"change": UNLOADED},
        ("weights", "embed.embedding_table"), False, "value off by"),
    "momentum": ("cnn", {"momentum": 0.8},
        ("optimizer", "conv1.weight"), False, "PyTorch: SGD(lr=0.1, momentum=0.9"),
    "untied": ("gpt", {"fault": "untied"},
        ("weights", "head.weight"), True, "one parameter with embed.weight in PyTorch, two here"),
    "detached": ("cnn", {"fault": "detached"}, ("gradients", "norm.weight"), True,
        "each place alone agrees: in construct, from here to the loss, look for stop_gradient"),
    "7 keep_prob": ("cnn", {"p": 0.3, "drop": lambda: nn.Dropout(p=0.7)},
        ("training", "drop"), True, "with nn.Dropout(p=0.3) it agrees"),
    "7 forgotten": ("cnn", {"p": 0.3, "fault": "no dropout"},
        ("training", "fc"), True, "between avgpool and here"),
    "padding": ("padded", {"embed": lambda: nn.Embedding(17, 16, padding_idx=0)},
        ("training", "embed"), True, "gradient of weight off by"),
}  # fmt: skip


@pytest.mark.parametrize("name", LATER)
def test_the_first_fault_is_at_its_stage_and_place(name):
    kind, plan, place, only, words = LATER[name]
    result = compared(kind, **plan)
    assert next(iter(result.faults)) == place and words in result.faults[place], str(result)
    assert [stage for stage, _ in result.faults].count(place[0]) == 1 or not only, str(result)
