"""Taps: factors of every kind of layer against float64; nothing else is changed."""

import contextlib

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, mint, nn, ops

from labkit import reference
from labkit.algorithms.thor import ThorStep, ThorUpdate
from labkit.algorithms.thor.layers import Tap, Tapped, geometry_of
from labkit.nets.layers import PaddedConv2d
from labkit.nets.small import NormNet
from labkit.runtime import pynative
from labkit.steps.losses import LossNet
from tests.support.step_cells import assert_bit_equal, digits, momentum, snapshot, tensors
from tests.support.thor_layers import DIRECTION, FACTOR, Nested, Weighted, fill, normal, off, whole

pytestmark = pytest.mark.usefixtures("runtime")


class OwnConv(nn.Conv2d):
    """A forward pass of its own: the same convolution by another operator."""

    def construct(self, x):
        return ops.conv2d(x, self.weight, self.bias, self.stride, "valid")


class OwnDense(nn.Dense):
    """A forward pass of its own."""

    def construct(self, x):
        return ops.matmul(x, self.weight.T) + self.bias


def updated(network, x, c, *, compiled=False, **options):
    """Make one update at learning rate 1; return (its layer, gradients, changes by name)."""
    with contextlib.nullcontext() if compiled else pynative():
        optimizer = nn.SGD(network.trainable_params(), 1.0)
        step = ThorStep(Weighted(network), optimizer, 0.1, loss="sample mean", **options)
        before = {p.name: p.asnumpy().astype(np.float64) for p in network.trainable_params()}
        step(Tensor(x), Tensor(c))
        moved = {p.name: p.asnumpy() - before[p.name] for p in network.trainable_params()}
        held = zip(optimizer.parameters, step.update.pending_gradients, strict=True)
        gradients = {p.name: g.asnumpy().astype(np.float64) for p, g in held}
        step.update.release()
    return step.update.layers[0], gradients, moved


def assert_factors(layer, a_factor, g_factor, positions, split):
    """Assert that the layer's factors are the diagonal blocks of the given (groups, n, n)."""
    groups = len(a_factor)
    assert (layer.groups, layer.inputs) == (groups, a_factor.shape[-1])
    assert layer.outputs == g_factor.shape[-1]
    for actual, expected in ((layer.a_factor, a_factor), (layer.g_factor, g_factor)):
        expected = reference.block_diagonal(expected, split)
        assert off(whole(actual, expected.shape[-1], groups), expected) <= FACTOR
    np.testing.assert_array_equal(layer.positions.asnumpy(), np.broadcast_to(positions, 2))


def assert_update(made, layer, factors, groups, homogeneous, split):
    """Assert that what ``updated`` returned has these factors, and the reference's direction."""
    curvature, gradients, moved = made
    assert_factors(curvature, *factors, split)
    assert curvature.homogeneous == homogeneous
    weight, own = layer.weight.name, getattr(layer, "bias", None)
    bias = gradients[own.name] if homogeneous else None
    matrix = reference.gradient_matrix(gradients[weight], bias, groups)
    direction = reference.thor_direction(*factors, matrix, 0.1, split=split)
    direction, bias = reference.weight_and_bias(direction, layer.weight.shape, homogeneous)
    assert off(moved[weight], -direction) <= DIRECTION
    if homogeneous:
        assert off(moved[own.name], -bias) <= DIRECTION
    elif own is not None:
        # A plain update: learning rate 1 times the gradient itself.
        assert off(moved[own.name], -gradients[own.name]) <= FACTOR


# name -> (layer, shape of its input); the tests of any convolution and any dense layer try more.
# The padding of "depthwise" differs between the two sides of the columns, not of the rows.
LAYERS = {
    "convolution": (
        lambda: nn.Conv2d(
            *(4, 6, (3, 2), (2, 1), "pad", (1, 0, 2, 1)), dilation=(1, 2), group=2, has_bias=True
        ),
        (5, 4, 6, 7),
    ),
    "depthwise": (
        lambda: nn.Conv2d(4, 4, (3, 4), pad_mode="same", group=4, has_bias=True),
        (5, 4, 6, 7),
    ),
    "subclass": (lambda: OwnConv(3, 4, 3, pad_mode="valid", has_bias=True), (5, 3, 6, 7)),
    "padded, by nn.Conv2d": (lambda: PaddedConv2d(3, 4, 3, 2), (5, 3, 6, 7)),
    "padded, by one product": (lambda: PaddedConv2d(3, 4, 3, 2), (5, 3, 4, 4)),
    "dense, four axes": (lambda: nn.Dense(5, 4, has_bias=False), (6, 3, 2, 5)),
    "linear": (lambda: mint.nn.Linear(5, 4), (6, 5)),
    "dense, subclass": (lambda: OwnDense(5, 4), (6, 5)),
}


def window(layer, size):
    """Return the reference's window of an nn.Conv2d."""
    kernel, stride = tuple(layer.kernel_size), tuple(layer.stride)
    dilation = tuple(layer.dilation)
    around = {
        "valid": (0, 0, 0, 0),
        "same": reference.same_padding(size, kernel, stride, dilation),
        "pad": layer.padding if isinstance(layer.padding, tuple) else (layer.padding,) * 4,
    }[layer.pad_mode]
    return reference.Window(kernel, stride, around, dilation, layer.group)


def twin(layer, x, derivatives, homogeneous):
    """Return (A, G, T) in float64, and the number of groups."""
    frame = window(layer, x.shape[2:]) if isinstance(layer, nn.Conv2d) else None
    seen = reference.Layer("it", x, derivatives, frame)
    return seen.factors(homogeneous=homogeneous), frame.groups if frame else 1


@pytest.mark.parametrize("split, bias", [(128, "plain"), (5, "homogeneous")])
@pytest.mark.parametrize("name", LAYERS)
def test_an_update_is_the_references(name, split, bias):
    """Factors and gradient are the reference's, and so is the update."""
    layer, x = LAYERS[name][0](), normal(LAYERS[name][1])
    network = fill(nn.SequentialCell(layer))
    with pynative():
        c = normal(network(Tensor(x)).shape, 1)
    slopes = c.astype(np.float64) / len(x)
    made = updated(network, x, c, split=split, bias=bias)
    homogeneous = bias == "homogeneous" and layer.has_bias
    factors, groups = twin(layer, x, slopes, homogeneous)
    assert_update(made, layer, factors, groups, homogeneous, split)
    if isinstance(layer, nn.Conv2d):
        weight = layer.weight.asnumpy()
        expected = reference.convolution_slopes(x, weight, slopes, window(layer, x.shape[2:]))[1]
        assert off(made[1][layer.weight.name], expected) <= FACTOR


@st.composite
def convolutions(draw):
    """Draw (layer, x, dL/dy, split) for any convolution with at least one position."""
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, stride, dilation = draw(pair), draw(pair), draw(pair)
    groups, rows = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    channels, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 3))
    mode = draw(st.sampled_from(["valid", "same", "pad"]))
    pad = draw(st.tuples(*[st.integers(0, 2)] * 4)) if mode == "pad" else 0
    size = []
    for axis in range(2):
        span, around = (kernel[axis] - 1) * dilation[axis] + 1, 0
        if mode == "pad":
            around = sum(pad[2 * axis : 2 * axis + 2])
        least = 1 if mode == "same" else max(span - around, 1)
        size.append(draw(st.integers(least, 8)))
    layer = nn.Conv2d(
        *(channels, outputs, kernel, stride, mode, pad),
        dilation=dilation,
        group=groups,
        has_bias=draw(st.booleans()),
        weight_init="zeros",
    )
    x = normal((rows, channels, *size), draw(st.integers(0, 99)))
    with pynative():
        shape = layer(Tensor(x)).shape
    return layer, x, normal(shape, 7), draw(st.sampled_from([None, 1, 2, 3, 5, 128]))


@st.composite
def dense_layers(draw):
    inputs, outputs, rows = (draw(st.integers(1, last)) for last in (9, 9, 5))
    layer = nn.Dense(inputs, outputs, weight_init="zeros", has_bias=draw(st.booleans()))
    axes, seed = (rows, *draw(st.lists(st.integers(1, 3), max_size=2))), draw(st.integers(0, 99))
    split = draw(st.sampled_from([None, 1, 2, 3, 4, 7]))
    return layer, normal((*axes, inputs), seed), normal((*axes, outputs), seed + 1), split


@settings(deadline=None, max_examples=100)
@given(convolutions() | dense_layers())
def test_the_sums_of_any_layer_and_every_remainder(case):
    """A tap's backward pass returns the twin's sums and positions, and passes dL/dy on."""
    layer, x, dout, split = case
    (a_factor, g_factor, expected), groups = twin(layer, x, dout, layer.has_bias)
    tap = Tap(geometry_of(layer, homogeneous=layer.has_bias, split=split))
    x, dout, scale, rows = Tensor(x), Tensor(dout), Tensor(1.0), len(x)
    with pynative():
        dx, dy, a_sum, count, g_sum, ds = tap.bprop(x, dout, None, None, None, scale, dout, dout)
        assert not dx.asnumpy().any() and dx.dtype == x.dtype and not ds.asnumpy().any()
        np.testing.assert_array_equal(dy.asnumpy(), dout.asnumpy())
        np.testing.assert_array_equal(count.asnumpy() / rows, [expected, expected])
        for made, factor in ((a_sum / rows, a_factor), (g_sum * rows, g_factor)):
            factor = expected * reference.block_diagonal(factor, split)
            bound = FACTOR * max(np.abs(factor).max(), 1e-3)
            assert np.abs(whole(made, factor.shape[-1], groups) - factor).max() <= bound


@pytest.mark.parametrize("activation", ["tanh", "relu", "prelu"])
def test_the_derivative_is_that_before_the_layers_activation(activation, eager):
    chosen = nn.PReLU(1) if activation == "prelu" else activation
    layer = fill(nn.Dense(5, 4, activation=chosen))
    network, x, c = nn.SequentialCell(layer), normal((6, 5)), normal((6, 4), 1)
    before = network(Tensor(x)).asnumpy()
    linear = x.astype(np.float64) @ layer.weight.asnumpy().T + layer.bias.asnumpy()
    if activation == "tanh":
        slope = 1 - np.tanh(linear) ** 2
    else:
        below = layer.activation.w.asnumpy() if activation == "prelu" else 0.0
        slope = np.where(linear > 0, 1.0, below)
    curvature, *_ = updated(network, x, c)
    assert_factors(curvature, *twin(layer, x, c * slope / 6, True)[0], 128)
    assert layer.activation_flag and network[0] is layer
    fill(network)
    with pynative():
        assert off(network(Tensor(x)).asnumpy(), before) <= FACTOR


class TwiceOnMaps(nn.Cell):
    """(N, 2, 5, 5) -> (N, 2 (25 + 9)): one convolution, applied to a map and to a part of it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, pad_mode="same", has_bias=True)

    def construct(self, x):
        whole_map, part = self.conv(x), self.conv(x[:, :, 1:4, 1:4])
        rows = x.shape[0]
        return ops.concat((whole_map.reshape(rows, -1), part.reshape(rows, -1)), 1)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_layer_used_twice_has_the_positions_of_both_uses(compiled):
    network, x, c = fill(TwiceOnMaps()), normal((6, 2, 5, 5)), normal((6, 68), 1)
    around = reference.Window((3, 3), padding=(1, 1, 1, 1))
    patches = [reference.patches(part, **vars(around)) for part in (x, x[:, :, 1:4, 1:4])]
    slopes = np.concatenate([c[:, :50].reshape(6, 2, 25), c[:, 50:].reshape(6, 2, 9)], 2) / 6.0
    seen = np.concatenate(patches, axis=3), slopes[:, :, None]
    factors = reference.kronecker_factors(*seen, homogeneous=True, layout="patches")
    assert factors[2] == 34
    made = updated(network, x, c, compiled=compiled)
    assert_update(made, network.conv, factors, 1, True, 128)


# The factors of MindSpore's THOR on GPU, see ``UpstreamTap``.
UPSTREAM = {
    "dense": (lambda: nn.Dense(5, 4), (6, 5)),
    "no bias": (lambda: nn.Dense(5, 4, has_bias=False), (6, 5)),
    "stride": (lambda: nn.Conv2d(3, 4, (3, 2), (2, 3), pad_mode="valid"), (6, 3, 7, 8)),
    "pad": (lambda: nn.Conv2d(3, 4, 3, pad_mode="pad", padding=2), (6, 3, 5, 5)),
}


@pytest.mark.parametrize("split", [128, 4])
@pytest.mark.parametrize("name", UPSTREAM)
def test_upstreams_formulas_are_the_references(name, split):
    make, shape = UPSTREAM[name]
    layer, x = make(), normal(shape)
    network, window = fill(nn.SequentialCell(layer)), None
    with pynative():
        c = normal(network(Tensor(x)).shape, 1)
    if len(shape) == 4:
        window = reference.Window(tuple(layer.kernel_size), tuple(layer.stride))
    factors = reference.upstream_factors(x, c.astype(np.float64) / 6, window)
    made = updated(network, x, c, formulas="upstream_gpu", split=split)
    assert_update(made, layer, factors, 1, False, split)


@pytest.mark.parametrize("make, shape", [(Nested, (5, 4)), (NormNet, (3, 1, 32, 32))])
def test_outputs_names_and_order_are_unchanged(make, shape, eager):
    network, x = fill(make()), Tensor(normal(shape))
    before = [p.name for p in network.get_parameters()], snapshot(network)
    cells, outputs = [cell for _, cell in network.cells_and_names()], network(x).asnumpy()
    update = ThorUpdate(LossNet(network, nn.MSELoss()), momentum(network), 0.1)
    assert [c for _, c in network.cells_and_names() if isinstance(c, Tapped)]
    np.testing.assert_array_equal(network(x).asnumpy(), outputs)
    assert [p.name for p in network.get_parameters()] == before[0]
    assert_bit_equal(snapshot(network), before[1])
    update.release()
    np.testing.assert_array_equal(network(x).asnumpy(), outputs)
    now = [cell for _, cell in network.cells_and_names()]
    assert all(a is b for a, b in zip(now, cells, strict=True))


def test_release_of_a_single_layer_leaves_it_in_float16():
    loss_net = LossNet(nn.Dense(5, 4), nn.MSELoss())
    layer, optimizer = loss_net.network, nn.SGD(loss_net.trainable_params(), 0.1)
    step = ThorStep(loss_net, optimizer, 0.1, precision="O2")
    step.update.release()
    assert loss_net.network.labkit_half[0] == "O2" and loss_net.network._backbone is layer
    ThorStep(loss_net, optimizer, 0.1, precision="O2")


def test_a_checkpoint_of_the_step_loads_into_the_bare_network(tmp_path, eager):
    """The network's Parameters keep their names; those of the taps belong to the step."""
    network = NormNet()
    step = ThorStep(LossNet(network, nn.CrossEntropyLoss()), momentum(network), 0.1)
    step(*tensors(*digits(4)))
    ms.save_checkpoint(step, str(tmp_path / "it.ckpt"))
    loaded, bare = ms.load_checkpoint(str(tmp_path / "it.ckpt")), NormNet()
    assert ms.load_param_into_net(bare, loaded)[0] == []
    assert_bit_equal(snapshot(bare), snapshot(network))
    own = {f"thor.{n}.{f}" for n in ("conv", "dense") for f in ("a_factor", "g_inverse")}
    assert own <= set(loaded)
