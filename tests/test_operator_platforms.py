"""Every operator in the compiled steps is documented for CPU, GPU and Ascend."""

import mmap
from collections import Counter
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from labkit.algorithms.adasum import AdasumStep
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
    EXCEPTIONS,
    GRADIENT_OF,
    MEASURED,
    NO_KERNEL,
    PLATFORMS,
    WRITTEN_FOR,
    Replaced,
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
    "subspace": lambda: (subspace(smallest(), clip_norm=1.0), grey()),
    "subspace, BatchNorm, micro-batches": lambda: (
        subspace(NormNet("batch"), micro_steps=3, **FLOAT16),
        grey(),
    ),
    "subspace, tokens": lambda: (subspace(NextToken(), normalise="tokens"), tokens()),
    "subspace, sgd": lambda: (subspace(smallest(), method="sgd", reduction="sum"), grey()),
}

LONG = {  # 6 to 13 s each
    "plain, ResNet",
    "thor, every option",
    "thor, GPU formulas",
    "thor, BatchNorm",
    "adasum, five",
    "adasum, gradients",
}


def every_cell(step, *batch):
    step(*batch)
    step(*batch)
    step.end_epoch()


@pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm")
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(build, id=name, marks=[pytest.mark.slow] if name in LONG else [])
        for name, build in STEPS.items()
    ],
)
def test_every_operator_of_a_step_is_documented_for_all_platforms(build):
    step, batch = build()
    operators = compiled_operators(every_cell, step, *batch)
    counts = Counter(o.name for o in operators)
    # It is the step that was read: its optimizer, and a backward pass.
    assert counts["ApplyMomentum"] >= 1 and any(o.gradient for o in operators)
    assert missing(operators) == {}


def image(channels=4):
    return Tensor(np.random.default_rng(0).normal(size=(2, channels, 6, 6)).astype(np.float32))


# A lambda does not compile in a graph where it stands in a table.
def first_column(x):
    return ops.gather_elements(x, 3, ops.zeros((2, 4, 6, 1), ms.int32))


def middle(x):
    return x[:, 1:3]


def times_two(x):
    return x * 2.0


def through_two(x):
    return x / 2.0


def below_two(x):
    return x < 2.0


def is_zero(x):
    return x == 0.0


class Function(nn.Cell):
    """A function, as a cell of its own."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def construct(self, *inputs):
        return self.function(*inputs)


class Gradient(nn.Cell):
    """Output and gradients of a network, by its inputs and its parameters."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.gradient = ops.grad(network, 0, network.trainable_params() or None)

    def construct(self, inputs):
        return self.network(inputs), self.gradient(inputs)


# A network for every row of GRADIENT_OF, in whose backward pass the operator is.
FORWARD = {
    "AvgPoolGrad": lambda: nn.AvgPool2d(2, 2),
    "BatchNormGrad": lambda: nn.BatchNorm2d(4).set_train(),
    "BiasAddGrad": lambda: nn.Conv2d(4, 2, 3, has_bias=True),
    "Conv2DBackpropFilter": lambda: nn.Conv2d(4, 2, 3),
    "Conv2DBackpropInput": lambda: nn.Conv2d(4, 2, 3),
    "GatherDGradV2": lambda: Function(first_column),
    "GeLUGrad": lambda: Function(ops.GeLU()),
    "GroupNormGrad": lambda: nn.GroupNorm(2, 4),
    "LayerNormGrad": lambda: nn.LayerNorm((6,)),
    "LogSoftmaxGrad": lambda: Function(ops.LogSoftmax()),
    "MaxPool3DGradWithArgmax": lambda: nn.MaxPool2d(3, 2, pad_mode="pad", padding=1),
    "MaxPoolGrad": lambda: nn.MaxPool2d(2, 2),
    "ReluGrad": lambda: nn.ReLU(),
    "RsqrtGrad": lambda: Function(ops.Rsqrt()),
    "SigmoidGrad": lambda: nn.Sigmoid(),
    "SqrtGrad": lambda: Function(ops.Sqrt()),
    "StridedSliceGrad": lambda: Function(middle),
    "TanhGrad": lambda: nn.Tanh(),
}


# A call and its arguments for every row of WRITTEN_FOR, of which the compiler makes the operator.
WRITTEN = {
    "Divs": lambda: (Function(through_two), image()),
    "EqScalar": lambda: (Function(is_zero), image()),
    "LessScalar": lambda: (Function(below_two), image()),
    "MatMulExt": lambda: (Function(ops.matmul), image(), image()),
    "Max": lambda: (Function(ops.max), image()),
    "Muls": lambda: (Function(times_two), image()),
    "SumExt": lambda: (Function(ops.sum), image()),
    # The loss scale, read before and after the running statistics are assigned.
    "TensorMove": lambda: (plain(NormNet("batch"), **FLOAT16), *grey()),
}


class TestTables:
    """Every row says what is so."""

    @pytest.mark.parametrize("name", GRADIENT_OF)
    def test_gradient_operators_are_of_the_forward_one(self, name):
        network = FORWARD[name]()
        forward = {o.name for o in compiled_operators(network, image())}
        assert GRADIENT_OF[name] in forward and name not in forward
        both = compiled_operators(Gradient(network), image())
        assert all(o.gradient for o in both if o.name == name)
        assert name in {o.name for o in both}

    @pytest.mark.parametrize("name", WRITTEN_FOR)
    def test_the_compiler_writes_it_for_the_documented_function(self, name):
        assert name in {o.name for o in compiled_operators(*WRITTEN[name]())}

    @pytest.mark.parametrize("name", [*GRADIENT_OF, *WRITTEN_FOR])
    def test_a_row_stands_for_something_documented(self, name):
        assert platforms(name)

    @pytest.mark.parametrize("name", EXCEPTIONS)
    def test_an_exception_lacks_what_it_says_and_its_branch_does_not(self, name):
        replaced = EXCEPTIONS[name]
        assert replaced.missing and PLATFORMS - platforms(name) == replaced.missing
        assert replaced.instead and replaced.branch
        for other in replaced.instead:
            assert platforms(other) == PLATFORMS

    @pytest.mark.parametrize("name", MEASURED)
    def test_what_was_measured_is_not_documented_and_its_test_is_there(self, name, root):
        """That it runs is that test's to show, on ranks."""
        measured = MEASURED[name]
        assert measured.missing and PLATFORMS - platforms(name) == measured.missing
        assert measured.how and name in (root / measured.test).read_text()

    def test_the_branch_for_ascend_is_in_the_ascend_plugin(self):
        replaced = EXCEPTIONS["SparseSoftmaxCrossEntropyWithLogits"]
        plugin = Path(ms.__file__).parent / "lib/plugin/libmindspore_ascend.so.2"
        if not plugin.exists():
            pytest.skip("this MindSpore comes without its Ascend plugin")
        with plugin.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as bytes_:
            assert bytes_.find(replaced.branch.split()[-1].encode()) > 0


class TestPlatforms:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("MatMul", PLATFORMS),  # in its own docstring
            ("Sqrt", PLATFORMS),  # in that of ops.sqrt, to which it refers
            ("ReduceAll", PLATFORMS),  # in that of ops.all
            ("ReluGrad", PLATFORMS),  # in that of ReLU, whose gradient it is
            ("Muls", PLATFORMS),  # in that of ops.mul
            ("Depend", PLATFORMS),  # launches nothing
            ("Cholesky", {"CPU", "GPU"}),
            ("Broadcast", {"Ascend", "GPU"}),
            ("FloatStatus", {"GPU"}),
            ("UniformReal", set()),  # deprecated
        ],
    )
    def test_known_primitives(self, name, expected):
        assert platforms(name) == expected

    @pytest.mark.parametrize("name", ["NoSuchOperator", "AssignGrad", "InplaceZero", "FlattenExt"])
    def test_an_unknown_operator_is_an_error(self, name):
        with pytest.raises(Undocumented, match=name):
            platforms(name)

    def test_a_cholesky_factor_is_found_in_a_cell(self):
        cell = Function(ops.Cholesky())
        operators = compiled_operators(cell, Tensor(np.eye(3, dtype=np.float32)))
        assert missing(operators) == {"Cholesky": {"Ascend"}}

    def test_an_exception_allows_what_it_names_and_no_more(self, monkeypatch):
        operators = [Operator(name, (), (), False, "") for name in ("FloatStatus", "Cholesky")]
        monkeypatch.setitem(
            EXCEPTIONS, "Cholesky", Replaced(frozenset({"Ascend"}), "a branch", ("MatMul",))
        )
        assert missing(operators) == {"FloatStatus": {"Ascend", "CPU"}}
        monkeypatch.setitem(
            EXCEPTIONS, "FloatStatus", Replaced(frozenset({"Ascend"}), "a branch", ("MatMul",))
        )
        assert missing(operators) == {"FloatStatus": {"CPU"}}

    def test_tables_are_disjoint(self):
        tables = [NO_KERNEL, set(GRADIENT_OF), set(WRITTEN_FOR), set(EXCEPTIONS), set(MEASURED)]
        assert len(set().union(*tables)) == sum(map(len, tables))
