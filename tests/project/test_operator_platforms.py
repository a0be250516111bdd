"""Every operator in the compiled steps is documented for CPU, GPU and Ascend."""

import mmap
from functools import partial
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.subspace import SubspaceStep
from labkit.algorithms.thor import ThorStep, TraceRule
from labkit.nets.lenet import LeNet5
from labkit.nets.resnet import ResidualBlockBase, ResNet
from labkit.nets.small import NextToken, NormNet
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import CrossEntropySmooth, LossNet, TokenLossNet
from labkit.steps.options import DynamicLossScale
from labkit.steps.step import PlainStep
from tests.support.compiled import compiled_operators
from tests.support.operator_platforms import ASCEND_PASS, PLATFORMS, missing, platforms
from tests.support.step_cells import digits, momentum, tensors
from tests.support.subspace_cells import basis_of

pytestmark = pytest.mark.usefixtures("runtime")

FLOAT16 = {"precision": "O2", "loss_scale": DynamicLossScale()}
EVERY_OPTION = {"split": 32, "factor_decay": 0.9, "damping_split": "pi", "kl_clip": 1e-3}
EVERY_OPTION |= {"trace_rule": TraceRule(), "clip_norm": 1.0}


def subspace(loss_net, optimizer, **options):
    return SubspaceStep(loss_net, optimizer, basis_of(optimizer.parameters, 4), **options)


def small():
    """A network with LeNet's operators; a convolution and its dense layer have split factors."""
    first, second = nn.Conv2d(1, 6, 5, 1, "valid"), nn.Conv2d(6, 6, 5, 2, "valid")
    middle = (nn.ReLU(), nn.MaxPool2d(2, 2), second, nn.ReLU(), nn.Flatten())
    return nn.SequentialCell(first, *middle, nn.Dense(6 * 5 * 5, 10))


def smallest():
    """``small`` without its second convolution, and so without a convolution's input gradient."""
    middle = (nn.ReLU(), nn.MaxPool2d(4, 4), nn.Flatten())
    return nn.SequentialCell(nn.Conv2d(1, 4, 5, 1, "valid"), *middle, nn.Dense(4 * 7 * 7, 10))


def small_resnet():
    """ResNet-18 with one block per stage instead of two, fewer channels and the same operators."""
    return ResNet(ResidualBlockBase, [1] * 4, [4, 4, 8, 8], [4, 8, 8, 16], [1, 2, 2, 2], 10)


def smooth(loss_net, optimizer):
    loss_fn = CrossEntropySmooth(smooth_factor=0.1, num_classes=10)
    return PlainStep(LossNet(loss_net.network, loss_fn), optimizer)


def by_epoch(loss_net, optimizer):
    """A step with a learning rate per update and a group of parameters without weight decay."""
    biases = [p for p in optimizer.parameters if p.name.endswith("bias")]
    weights = [p for p in optimizer.parameters if p.name.endswith("weight")]
    groups = [{"params": biases, "weight_decay": 0.0}, {"params": weights}]
    optimizer = nn.Momentum(groups, nn.cosine_decay_lr(0.0, 0.1, 4, 2, 2), 0.9, 1e-4)
    return PlainStep(loss_net, optimizer, clip_norm=1.0)


def loss_net_and_batch(network):
    """Return it for three token sequences, two colour images or four grey ones, with labels."""
    if isinstance(network, NextToken):
        tokens = np.arange(15, dtype=np.int32).reshape(3, 5) % 12
        return TokenLossNet(network), tensors(tokens, tokens)
    images, labels = digits(2 if isinstance(network, ResNet) else 4)
    images = np.repeat(images, 3, axis=1) if isinstance(network, ResNet) else images
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return LossNet(network, loss_fn), tensors(images, labels)


thor = partial(ThorStep, damping=0.3)
accumulated = partial(AccumulatedStep, micro_steps=4)
norm = partial(NormNet, "batch")
# name -> (step of a loss_net and an optimizer, network, options). Steps whose operators all occur
# in other steps, such as clipping alone, are left out.
STEPS = {
    "plain": (PlainStep, LeNet5, {}),
    "plain, float16": (PlainStep, small, {"clip_norm": 1.0} | FLOAT16),
    "plain, BatchNorm, float16": (PlainStep, norm, FLOAT16),
    "plain, GroupNorm": (PlainStep, partial(NormNet, "group"), {}),
    "plain, tokens": (PlainStep, NextToken, {}),
    "plain, smoothed labels": (smooth, small, {}),
    "plain, groups and schedule": (by_epoch, small, {}),
    "plain, ResNet": (PlainStep, small_resnet, {}),
    "accumulated, drop_group": (accumulated, LeNet5, {"nonfinite": "drop_group"}),
    "thor": (thor, small, {}),
    "thor, every option": (thor, smallest, EVERY_OPTION),
    "thor, float16": (thor, smallest, FLOAT16),
    # The "same" padding of a strided convolution is asymmetric, which none in LeNet is.
    "thor, GPU formulas": (thor, small, {"formulas": "upstream_gpu"}),
    "adasum, five": (AdasumStep, smallest, {"workers": 5, "micro_steps": 2, "clip_norm": 1.0}),
    "adasum, float16": (AdasumStep, smallest, {"workers": 2, "scope": "network"} | FLOAT16),
    "subspace, BatchNorm, micro-batches": (subspace, norm, {"micro_steps": 3} | FLOAT16),
    "subspace, tokens": (subspace, NextToken, {"clip_norm": 1.0}),
    "subspace, sgd": (subspace, smallest, {"method": "sgd", "reduction": "sum"}),
}


def every_graph(step, *batch):
    """Call a step twice and end its epoch, so that it compiles all of its graphs."""
    step(*batch)
    step(*batch)
    step.end_epoch()


@pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm")
@pytest.mark.parametrize(("make", "build", "options"), STEPS.values(), ids=STEPS)
def test_every_operator_of_a_step_is_documented_for_all_platforms(make, build, options):
    network = build()
    loss_net, batch = loss_net_and_batch(network)
    step = make(loss_net, momentum(network, weight_decay=1e-4), **options)
    operators = compiled_operators(every_graph, step, *batch)
    names = {o.name for o in operators}
    # The graphs of the step were read: they hold its optimizer and a backward pass.
    assert "ApplyMomentum" in names and any(o.scope.startswith("Gradients/") for o in operators)
    assert missing(names) == {}


def test_known_primitives():
    expected = {
        "MatMul": PLATFORMS,  # in its own docstring
        "Sqrt": PLATFORMS,  # in that of ops.sqrt, to which it refers
        "ReluGrad": PLATFORMS,  # in that of ReLU, whose gradient it is
        "Muls": PLATFORMS,  # in that of ops.mul
        "Depend": PLATFORMS,  # launches no kernel
        "Cholesky": {"CPU", "GPU"},
        "Broadcast": {"Ascend", "GPU"},
        "UniformReal": set(),  # deprecated
    }
    assert {name: platforms(name) for name in expected} == expected
    for name in ("NoSuchOperator", "AssignGrad", "InplaceZero", "FlattenExt"):
        with pytest.raises(LookupError, match=name):
            platforms(name)


def test_the_branch_for_ascend_is_in_the_ascend_plugin():
    assert missing(["OneHot", "SoftmaxCrossEntropyWithLogits", "ReduceMean"]) == {}
    plugin = Path(ms.__file__).parent / "lib/plugin/libmindspore_ascend.so.2"
    if not plugin.exists():
        pytest.skip("this MindSpore has no Ascend plugin")
    with plugin.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
        assert content.find(ASCEND_PASS.encode()) > 0
