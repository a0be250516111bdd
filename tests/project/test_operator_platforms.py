"""Every operator in the compiled steps is documented for CPU, GPU and Ascend."""

import mmap
from collections import Counter
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.grad_freeze import GradFreezeUpdate, freeze_schedule
from labkit.algorithms.less_bn import less_bn
from labkit.algorithms.subspace import SubspaceStep
from labkit.algorithms.thor import LevenbergMarquardt, ThorStep, ThorUpdate, TraceRule
from labkit.nets.lenet import LeNet5
from labkit.nets.resnet import ResidualBlockBase, ResNet
from labkit.nets.small import NextToken, NormNet
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import DynamicLossScale
from labkit.steps.losses import CrossEntropySmooth, LossNet, TokenLossNet
from labkit.steps.plain import PlainStep
from tests.support.compiled import Operator, compiled_operators
from tests.support.operator_platforms import (
    ASCEND_PASS,
    EXCEPTIONS,
    GRADIENT_OF,
    NO_KERNEL,
    PLATFORMS,
    WRITTEN_FOR,
    Undocumented,
    missing,
    platforms,
)
from tests.support.step_cells import digits, momentum, tensors
from tests.support.subspace_cells import basis_of

pytestmark = pytest.mark.usefixtures("runtime")

EVERY_OPTION = {
    "split": 32,
    "factor_decay": 0.9,
    "damping_split": "pi",
    "kl_clip": 1e-3,
    "adapt_damping": LevenbergMarquardt(),
    "trace_rule": TraceRule(),
    "clip_norm": 1.0,
}
FLOAT16 = {"precision": "O2", "loss_scale": DynamicLossScale()}


def plain(network, **options):
    return PlainStep(_with_loss(network), momentum(network, weight_decay=1e-4), **options)


def accumulated(network, **options):
    return AccumulatedStep(_with_loss(network), momentum(network), micro_steps=4, **options)


def thor(network, **options):
    return ThorStep(_with_loss(network), momentum(network, weight_decay=1e-4), 0.3, **options)


def accumulated_thor(network):
    loss_net, optimizer = _with_loss(network), momentum(network)
    update = ThorUpdate(loss_net, optimizer, 0.3)
    return AccumulatedStep(loss_net, optimizer, micro_steps=1, update=update)


def adasum(network, **options):
    return AdasumStep(_with_loss(network), momentum(network, weight_decay=1e-4), **options)


def freezing(network, **options):
    optimizer = momentum(network, weight_decay=1e-4)
    update = GradFreezeUpdate(optimizer, freeze_schedule(network, param_groups=2))
    return PlainStep(_with_loss(network), optimizer, update=update, **options)


def freezing_adasum(network):
    optimizer = momentum(network)
    freeze = GradFreezeUpdate(optimizer, freeze_schedule(network, param_groups=2))
    return AdasumStep(_with_loss(network), optimizer, workers=2, freeze=freeze)


def with_less_bn(network):
    less_bn(network)
    return plain(network)


def subspace(network, **options):
    optimizer = momentum(network, weight_decay=1e-4)
    basis = basis_of(optimizer.parameters, 4)
    return SubspaceStep(_with_loss(network), optimizer, basis, **options)


def _with_loss(network):
    if isinstance(network, NextToken):
        return TokenLossNet(network)
    return LossNet(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))


def small():
    """LeNet's kinds of layers, both with factors that are split: LeNet's operators."""
    return nn.SequentialCell(
        nn.Conv2d(1, 6, 5, pad_mode="valid"),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Conv2d(6, 6, 5, stride=2, pad_mode="valid"),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dense(6 * 5 * 5, 10),
    )


def smallest():
    """The same without the second convolution, and so without a gradient by a layer's input."""
    return nn.SequentialCell(
        nn.Conv2d(1, 4, 5, pad_mode="valid"),
        nn.ReLU(),
        nn.MaxPool2d(4, 4),
        nn.Flatten(),
        nn.Dense(4 * 7 * 7, 10),
    )


def small_resnet():
    """ResNet-18 with one block where that has two, and fewer channels: the same operators."""
    return ResNet(ResidualBlockBase, [1] * 4, [4, 4, 8, 8], [4, 8, 8, 16], [1, 2, 2, 2], 10)


def grey():
    """Four images (4, 1, 32, 32) and their labels."""
    return tensors(*digits(4))


def colour():
    """Two images (2, 3, 32, 32) and their labels."""
    images, labels = digits(2)
    return tensors(np.repeat(images, 3, axis=1), labels)


def tokens():
    """Three sequences of five tokens, twice."""
    sequences = np.arange(15, dtype=np.int32).reshape(3, 5) % 12
    return tensors(sequences, sequences)


def smooth():
    network = small()
    loss_net = LossNet(network, CrossEntropySmooth(smooth_factor=0.1, num_classes=10))
    return PlainStep(loss_net, momentum(network))


def by_epoch():
    """A rate for every update, and a group of parameters without weight decay."""
    network = small()
    biases = [p for p in network.trainable_params() if p.name.endswith("bias")]
    weights = [p for p in network.trainable_params() if p.name.endswith("weight")]
    groups = [{"params": biases, "weight_decay": 0.0}, {"params": weights}]
    optimizer = nn.Momentum(groups, nn.cosine_decay_lr(0.0, 0.1, 4, 2, 2), 0.9, 1e-4)
    return PlainStep(_with_loss(network), optimizer, clip_norm=1.0)


# What is looked at: a name, and a function that returns a step and a batch for it. The step is
# called twice and its epoch ended, so that every cell it compiles by then is looked at.
STEPS = {
    "plain": lambda: (plain(LeNet5()), grey()),
    "plain, unchecked": lambda: (plain(small(), nonfinite="propagate"), grey()),
    "plain, clipped": lambda: (plain(small(), clip_norm=1.0), grey()),
    "plain, loss scale": lambda: (plain(small(), loss_scale=1024.0), grey()),
    "plain, float16": lambda: (plain(small(), clip_norm=1.0, **FLOAT16), grey()),
    "plain, BatchNorm": lambda: (plain(NormNet("batch")), grey()),
    "plain, BatchNorm, float16": lambda: (plain(NormNet("batch"), **FLOAT16), grey()),
    "plain, GroupNorm": lambda: (plain(NormNet("group")), grey()),
    "plain, tokens": lambda: (plain(NextToken(), normalise="tokens"), tokens()),
    "plain, smoothed labels": lambda: (smooth(), grey()),
    "plain, groups and schedule": lambda: (by_epoch(), grey()),
    "plain, ResNet": lambda: (plain(small_resnet()), colour()),
    "accumulated": lambda: (accumulated(LeNet5()), grey()),
    "accumulated, sum": lambda: (accumulated(small(), reduction="sum", clip_norm=1.0), grey()),
    "accumulated, drop_group": lambda: (accumulated(small(), nonfinite="drop_group"), grey()),
    "accumulated, unchecked": lambda: (accumulated(small(), nonfinite="propagate"), grey()),
    "accumulated, float16": lambda: (accumulated(small(), clip_norm=1.0, **FLOAT16), grey()),
    "accumulated, BatchNorm": lambda: (accumulated(NormNet("batch")), grey()),
    "thor": lambda: (thor(small()), grey()),
    "thor, every option": lambda: (thor(smallest(), **EVERY_OPTION), grey()),
    "thor, float16": lambda: (thor(smallest(), **FLOAT16), grey()),
    # The padding of a strided convolution is not the same on all sides, as none of LeNet's is.
    "thor, GPU formulas": lambda: (thor(small(), formulas="upstream_gpu"), grey()),
    "thor, BatchNorm": lambda: (thor(NormNet("batch")), grey()),
    "thor, accumulated": lambda: (accumulated_thor(smallest()), grey()),
    "adasum": lambda: (adasum(smallest(), workers=2), grey()),
    "adasum, five": lambda: (adasum(smallest(), workers=5, micro_steps=2, clip_norm=1.0), grey()),
    "adasum, gradients": lambda: (adasum(smallest(), workers=3, on="gradients"), grey()),
    "adasum, mean": lambda: (adasum(smallest(), workers=2, reduction="mean"), grey()),
    "adasum, float16": lambda: (adasum(smallest(), workers=2, scope="network", **FLOAT16), grey()),
    "less_bn": lambda: (with_less_bn(LeNet5()), grey()),
    "freezing": lambda: (freezing(LeNet5(), clip_norm=1.0), grey()),
    "freezing, adasum": lambda: (freezing_adasum(LeNet5()), grey()),
    "subspace": lambda: (subspace(smallest(), clip_norm=1.0), grey()),
    "subspace, BatchNorm, micro-batches": lambda: (
        subspace(NormNet("batch"), micro_steps=3, **FLOAT16),
        grey(),
    ),
    "subspace, tokens": lambda: (subspace(NextToken(), normalise="tokens"), tokens()),
    "subspace, sgd": lambda: (subspace(smallest(), method="sgd", reduction="sum"), grey()),
}


def every_cell(step, *batch):
    step(*batch)
    step(*batch)
    step.end_epoch()


@pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm")
@pytest.mark.parametrize("build", STEPS.values(), ids=STEPS)
def test_every_operator_of_a_step_is_documented_for_all_platforms(build):
    step, batch = build()
    operators = compiled_operators(every_cell, step, *batch)
    counts = Counter(o.name for o in operators)
    # It is the step that was read: its optimizer, and a backward pass.
    assert counts["ApplyMomentum"] >= 1 and any(o.gradient for o in operators)
    assert missing(operators) == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MatMul", PLATFORMS),  # in its own docstring
        ("Sqrt", PLATFORMS),  # in that of ops.sqrt, to which it refers
        ("ReluGrad", PLATFORMS),  # in that of ReLU, whose gradient it is
        ("Muls", PLATFORMS),  # in that of ops.mul
        ("Depend", PLATFORMS),  # launches nothing
        ("Cholesky", {"CPU", "GPU"}),
        ("Broadcast", {"Ascend", "GPU"}),
        ("UniformReal", set()),  # deprecated
    ],
)
def test_known_primitives(name, expected):
    assert platforms(name) == expected


@pytest.mark.parametrize("name", ["NoSuchOperator", "AssignGrad", "InplaceZero", "FlattenExt"])
def test_an_unknown_operator_is_an_error(name):
    with pytest.raises(Undocumented, match=name):
        platforms(name)


def test_the_tables_rows_are_documented_and_apart():
    tables = [NO_KERNEL, set(GRADIENT_OF), set(WRITTEN_FOR), set(EXCEPTIONS)]
    assert len(set().union(*tables)) == sum(map(len, tables))
    assert all(platforms(name) for name in [*GRADIENT_OF, *WRITTEN_FOR])
    for name, lacking in EXCEPTIONS.items():
        assert lacking and PLATFORMS - platforms(name) == lacking


def test_an_exception_allows_what_it_names_and_no_more():
    names = ("AllGather", "SparseSoftmaxCrossEntropyWithLogits", "Cholesky", "FloatStatus")
    operators = [Operator(name, (), (), False, "") for name in names]
    assert missing(operators) == {"Cholesky": {"Ascend"}, "FloatStatus": {"Ascend", "CPU"}}


def test_the_branch_for_ascend_is_in_the_ascend_plugin():
    for name in ("OneHot", "SoftmaxCrossEntropyWithLogits", "ReduceMean"):
        assert platforms(name) == PLATFORMS
    plugin = Path(ms.__file__).parent / "lib/plugin/libmindspore_ascend.so.2"
    if not plugin.exists():
        pytest.skip("this MindSpore has no Ascend plugin")
    with plugin.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
        assert content.find(ASCEND_PASS.encode()) > 0
