"""Options, trace rule, losses, and the layers that are found; what is refused, without a trace."""

import math

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Tensor, mint, nn

from labkit import reference
from labkit.algorithms.thor import ThorStep, ThorUpdate, TraceRule
from labkit.algorithms.thor.layers import Tapped, cut, padding
from labkit.algorithms.thor.update import by_update, check_loss
from labkit.errors import InputError
from labkit.nets.lenet import LeNet5
from labkit.nets.resnet import resnet
from labkit.nets.small import NextToken
from labkit.steps.losses import CrossEntropySmooth, LossNet, TokenLossNet
from tests.support.step_cells import linear, momentum
from tests.support.thor_cells import Nested

pytestmark = pytest.mark.usefixtures("runtime")

positive = st.floats(1e-6, 1e6)


@given(positive, positive, st.floats(0, 1), st.floats(0, 1))
def test_the_trace_rule_decides_as_the_reference(trace, last, threshold, other):
    thresholds = max(threshold, other), min(threshold, other)
    decision = TraceRule(*thresholds).decide(trace, last)
    assert decision == reference.TraceRule(*thresholds).decide(trace, last)


def test_thresholds_belong_to_skip():
    """Floats hold these numbers exactly, and the change is relative to the last trace."""
    traces = {"refresh": (1.51, 0.49), "skip": (1.25, 0.75, 1.5), "freeze": (1.0, 1.24)}
    for decision, own in traces.items():
        for trace in own:
            assert TraceRule(refresh=0.5, freeze=0.25).decide(trace, 1.0) == decision
            assert TraceRule(refresh=0.5, freeze=0.25).decide(4 * trace, 4.0) == decision
    assert TraceRule(0.0, 0.0).decide(1.0, 1.0) == "skip"  # zero never freezes
    for rule in (TraceRule(), reference.TraceRule()):  # nor do traces beyond float32
        assert rule.decide(math.inf, math.inf) == "refresh"


@pytest.mark.parametrize("kind", [list, np.array, lambda x: Tensor(x, ms.float32)])
def test_a_damping_is_a_number_or_one_by_update(kind):
    assert by_update("damping", kind([0.5, 0.25]), above=0).tolist() == [0.5, 0.25]
    assert by_update("damping", np.float32(0.5), above=0) == 0.5
    assert by_update("damping", Tensor(0.25, ms.float32), above=0) == 0.25


@given(st.integers(1, 5000), st.none() | st.integers(1, 600))
def test_blocks_are_as_few_and_as_equal_as_possible(dimension, split):
    blocks = cut(dimension, split)
    most = split or dimension
    assert blocks.size <= most and blocks.count * blocks.size >= dimension
    assert (blocks.count - 1) * most < dimension, "one block fewer would have been enough"
    padded = blocks.count * blocks.size - dimension
    assert 0 <= padded < blocks.count, "a block smaller by one would have been enough"
    bounds = reference.block_bounds(dimension, split)
    starts = range(0, dimension, blocks.size)
    assert bounds == [(first, min(first + blocks.size, dimension)) for first in starts]


axes = st.tuples(st.integers(1, 4), st.integers(1, 4))


@given(st.tuples(st.integers(1, 20), st.integers(1, 20)), axes, axes, axes)
def test_same_padding_is_the_references(size, kernel, stride, dilation):
    (top, bottom), (left, right) = padding("same", (9,) * 4, kernel, stride, dilation, size)
    assert (top, bottom, left, right) == reference.same_padding(size, kernel, stride, dilation)
    assert 0 <= bottom - top <= 1 and 0 <= right - left <= 1
    for axis, around in enumerate((top + bottom, left + right)):
        last = size[axis] + around - (kernel[axis] - 1) * dilation[axis] - 1
        assert last // stride[axis] + 1 == -(-size[axis] // stride[axis])


# The layers that are found.


def convert(network, parameters=None, **options):
    """Put taps into the network; return the update stage and the names of its layers."""
    optimizer = momentum(network) if parameters is None else nn.SGD(parameters, 0.1)
    update = ThorUpdate(LossNet(network, nn.MSELoss()), optimizer, 0.1, **options)
    return update, [layer.layer_name for layer in update.layers]


def taps(network):
    return [name for name, cell in network.cells_and_names() if isinstance(cell, Tapped)]


def test_found_in_sequences_lists_and_blocks():
    network, names = Nested(), ["head", "lists.0.0", "lists.0.1", "stem.0", "stem.2.0"]
    assert sorted(convert(network)[1]) == sorted(taps(network)) == names
    network = resnet(18, 10, width=0.0625)  # with its downsampling convolutions and no norm
    layers = convert(network)[1]
    assert len(layers) == 21 and "layer2.0.downsample.0" in layers
    weights = {p.name for p in network.trainable_params() if p.ndim > 1}
    assert {f"{name}.weight" for name in layers} == weights


@pytest.mark.parametrize(
    "trained, skip, left",
    [
        ("", ["conv1", "fc2"], ["conv2", "fc1", "fc3"]),
        ("", ("conv*",), ["fc1", "fc2", "fc3"]),
        ("", ["fc[12]", "*3"], ["conv1", "conv2"]),
        ("fc", (), ["fc1", "fc2", "fc3"]),
    ],
)
def test_what_is_skipped_or_not_trained_is_left_out(trained, skip, left):
    network = LeNet5()
    parameters = [p for p in network.trainable_params() if trained in p.name]
    update, names = convert(network, parameters, skip=skip)
    assert names == taps(network) == left
    if "fc1" in names:
        layer = update.layers[names.index("fc1")]
        assert (layer.a_factor.shape, layer.g_factor.shape) == ((4, 101, 101), (1, 120, 120))


def test_a_bias_that_the_optimizer_does_not_update_is_no_coordinate():
    network = nn.SequentialCell(nn.Dense(4, 3))
    layer = convert(network, [network[0].weight])[0].layers[0]
    assert (layer.inputs, layer.homogeneous) == (4, False)


class Tied(nn.Cell):
    """Two layers that share one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 4)
        self.second.weight = self.first.weight


def twice_in_a_sequence():
    layer = nn.Dense(4, 4)
    return nn.SequentialCell(layer, nn.ReLU(), layer)


class Attention(nn.Cell):
    """MindSpore's own encoder of two layers, whose out_proj are never called, and a tied head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Dense(4, 6, has_bias=False)
        self.head.weight = self.embed.embedding_table


@pytest.mark.parametrize(
    "make, first, second", [(Tied, "first", "second"), (twice_in_a_sequence, "0", "2")]
)
def test_one_weight_in_two_places(make, first, second):
    """Skipping one of the two is not enough: the other would have half of the factors."""
    said = f"layer '{first}' shares its weight .* with '{second}'; layer '{second}' shares its"
    network = make()
    with pytest.raises(InputError, match=f"{said} .*skip=\\('{first}', '{second}'\\)"):
        convert(network)
    assert not taps(network)
    with pytest.raises(InputError, match="shares its weight"):
        convert(network, skip=(first,))


def test_a_tied_weight_beside_what_attention_does_not_call():
    """Both take the plain update, by name unless ``skip`` names them; other layers have factors."""
    for skip in ((), ("*.out_proj", "head")):
        network = Attention()
        update, names = convert(network, skip=skip)
        said = update.description()
        assert sorted(names) == [f"encoder.layers.{n}.dense{k}" for n in (0, 1) for k in (1, 2)]
        assert sorted(taps(network)) == sorted(names) and bool(said) == (not skip)
        if said:
            assert "layer 'head' shares its weight 'embed.embedding_table' with 'embed'" in said
            assert said.count("out_proj' is never called: nn.MultiheadAttention takes its") == 2
    network = Attention()
    dense = [p for p in network.trainable_params() if ".dense1." in p.name]
    assert len(convert(network, dense)[1]) == 2


# Losses.


MEANS = {
    nn.SoftmaxCrossEntropyWithLogits: dict(sparse=True, reduction="mean"),
    nn.CrossEntropyLoss: {},
    CrossEntropySmooth: dict(num_classes=2),
    nn.NLLLoss: {},
    nn.BCELoss: dict(reduction="mean"),
    nn.BCEWithLogitsLoss: {},
    nn.MSELoss: {},
    nn.L1Loss: {},
    mint.nn.CrossEntropyLoss: {},
}
OF_ELEMENTS = (nn.BCELoss, nn.BCEWithLogitsLoss, nn.MSELoss, nn.L1Loss)


@pytest.mark.parametrize("kind", MEANS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_losses_that_are_the_mean_over_rows_of_one_loss_a_row(kind):
    """The loss of six rows is the mean of the losses of the single rows."""
    loss, random = kind(**MEANS[kind]), np.random.default_rng(0)
    outputs, targets = random.uniform(0.1, 0.9, size=(2, 6, 2)).astype(np.float32)
    if kind not in OF_ELEMENTS:
        targets = np.array([0, 1, 1, 0, 1, 0], np.int32)
    together = float(loss(Tensor(outputs), Tensor(targets)).asnumpy())
    rows = [slice(i, i + 1) for i in range(6)]
    alone = [float(loss(Tensor(outputs[r]), Tensor(targets[r])).asnumpy()) for r in rows]
    assert together == pytest.approx(np.mean(alone), rel=1e-5) and np.std(alone) > 1e-3
    check_loss(LossNet(linear(), loss), "upstream_gpu")
    check_loss(nn.WithLossCell(linear(), loss))
    check_loss(LossNet(linear(), lambda y, t: ((y - t) ** 2).mean(), per="rows"))


def of(loss):
    return LossNet(linear(), loss)


WEIGHTS = Tensor([0.25, 0.75])
UPSTREAM = {"formulas": "upstream_gpu"}


@pytest.mark.parametrize(
    "make, named, options",
    [
        (lambda: of(lambda y, t: (y - t).sum()), "mean over: .*, got .*LossNet of <lambda>", {}),
        (lambda: of(nn.MSELoss(reduction="sum")), r"\(loss, weight\), or per='rows', got", {}),
        (lambda: of(nn.NLLLoss(weight=WEIGHTS)), "got 'a LossNet of NLLLoss with class weig", {}),
        (lambda: TokenLossNet(NextToken()), "LossNet of a mean over rows, got .*Token", UPSTREAM),
        (lambda: linear(), "LossNet of a mean over rows, got 'a Dense'", UPSTREAM),
    ],
)
def test_losses_whose_terms_are_not_known(make, named, options):
    loss_net = make()
    with pytest.raises(InputError, match=f"loss_net.*{named}"):
        ThorUpdate(loss_net, momentum(linear()), 0.1, **options)
    assert not taps(loss_net)


# What is refused.


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(bias="homogenous"), "bias: expected one of.*Did you mean 'homogeneous'"),
        (dict(split=0), "split: expected an integer >= 1, got 0"),
        (dict(factor_decay=1.0), "factor_decay: expected a finite number >= 0 and < 1, got 1.0"),
        (dict(kl_clip=0), "kl_clip: expected a finite number > 0, got 0"),
        (dict(trace_rule=0.01), "trace_rule: expected a TraceRule or None, got 0.01"),
        (dict(frequency=0), "frequency: expected an integer >= 1, got 0"),
        (dict(damping=-0.1), "damping: expected a finite number > 0, got -0.1"),
        (dict(damping=[0.1, math.nan]), r"damping\[1\]: expected a finite number > 0, got nan"),
        (dict(damping=[[0.1, 0.2]]), r"damping: expected shape .*, got \(1, 2\)"),
        (dict(skip="fc1"), "skip: expected a list of names or patterns of layers, got 'fc1'"),
        (dict(skip=["fc4"]), "skip: .*, got 'fc4', which matches none of.*Did you mean 'fc[123]'"),
        (dict(skip=["*"]), r"skip=\('\*',\) leaves and .* nothing to precondition"),
        (dict(frequenzy=3), "unknown option 'frequenzy'.*Did you mean 'frequency'"),
        (dict(los_scale=1.0), "unknown option 'los_scale'"),
        (dict(precision="O9"), "precision: .*'O9'"),
    ],
)
def test_options(options, message):
    loss_net = LossNet(LeNet5(), nn.CrossEntropyLoss())
    cells = dict(loss_net.cells_and_names())
    with pytest.raises(InputError, match=message):
        ThorStep(loss_net, momentum(loss_net), **({"damping": 0.1} | options))
    assert dict(loss_net.cells_and_names()) == cells


def test_networks_and_thresholds():
    network = LeNet5()
    convert(network)
    with pytest.raises(InputError, match="'conv1' has a tap .*call that one's release"):
        convert(network)
    network = LeNet5()
    network.conv2.data_format = "NHWC"  # MindSpore refuses to build one on CPU
    with pytest.raises(InputError, match="expected 'NCHW', got 'NHWC'"):
        convert(network)
    with pytest.raises(InputError, match="nothing to precondition"):
        convert(nn.SequentialCell(nn.LayerNorm((4,))))
    with pytest.raises(InputError, match="refresh: expected a finite number >= 0, got inf"):
        TraceRule(refresh=math.inf)
    with pytest.raises(InputError, match="freeze: expected .* >= 0 and <= 0.001, got 0.01"):
        TraceRule(0.001, 0.01)
