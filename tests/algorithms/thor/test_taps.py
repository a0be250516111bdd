"""Taps: factors of every kind of layer against float64, against PyTorch, and by an identity."""

import mindspore as ms
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mindspore import Tensor, mint, nn, ops

from labkit import reference
from labkit.algorithms.thor.geometry import geometry_of
from labkit.algorithms.thor.taps import Tap
from labkit.nets.convolution import PaddedConv2d
from labkit.runtime import pynative
from tests.support.thor_layers import (
    DIRECTION,
    FACTOR,
    assert_factors,
    fill,
    normal,
    off,
    updated,
    whole,
)

pytestmark = pytest.mark.usefixtures("runtime")


class OwnConv(nn.Conv2d):
    """A subclass with a forward pass of its own: the same convolution by another operator."""

    def construct(self, x):
        return ops.conv2d(x, self.weight, self.bias, self.stride, "valid")


class OwnDense(nn.Dense):
    """A subclass with a forward pass of its own."""

    def construct(self, x):
        return ops.matmul(x, self.weight.T) + self.bias


def conv(*arguments, size=(6, 7), **options):
    return lambda: nn.Conv2d(*arguments, **options), size


# name -> (layer, height and width of its input)
CONVOLUTIONS = {
    "valid": conv(3, 4, 3, pad_mode="valid"),
    "valid, bias": conv(3, 4, 3, pad_mode="valid", has_bias=True),
    "same": conv(3, 4, 3, pad_mode="same", has_bias=True),
    "same, stride": conv(3, 4, (3, 4), (2, 3), pad_mode="same", has_bias=True),
    "same, dilation": conv(3, 4, 3, pad_mode="same", dilation=(2, 3)),
    "pad by one number": conv(3, 4, 3, 2, pad_mode="pad", padding=1, has_bias=True),
    "pad on four sides": conv(2, 5, (3, 2), (1, 2), pad_mode="pad", padding=(2, 0, 1, 3)),
    "stride over the edge": conv(2, 3, 2, 3, pad_mode="valid", has_bias=True),
    "everything": conv(
        *(4, 6, (3, 2), (2, 1)),
        pad_mode="pad",
        padding=(1, 0, 2, 1),
        dilation=(1, 2),
        group=2,
        has_bias=True,
    ),
    "groups": conv(4, 6, 3, pad_mode="same", group=2),
    "depthwise": conv(4, 4, 3, pad_mode="same", group=4, has_bias=True),
    "depthwise, two of each": conv(3, 6, 3, pad_mode="valid", group=3, has_bias=True),
    "one position": conv(3, 4, (6, 7), pad_mode="valid", has_bias=True),
    "1x1": conv(5, 4, 1, pad_mode="valid", has_bias=True),
    "subclass": (lambda: OwnConv(3, 4, 3, pad_mode="valid", has_bias=True), (6, 7)),
    "padded, by nn.Conv2d": (lambda: PaddedConv2d(3, 4, 3, 2), (6, 7)),
    "padded, by one product": (lambda: PaddedConv2d(3, 4, 3, 2), (4, 4)),
}

# name -> (layer, shape of its input)
DENSE = {
    "bias": (lambda: nn.Dense(5, 4), (6, 5)),
    "no bias": (lambda: nn.Dense(5, 4, has_bias=False), (6, 5)),
    "sequence": (lambda: nn.Dense(5, 4), (6, 3, 5)),
    "four axes": (lambda: nn.Dense(5, 4, has_bias=False), (6, 3, 2, 5)),
    "linear": (lambda: mint.nn.Linear(5, 4), (6, 5)),
    "linear, no bias": (lambda: mint.nn.Linear(5, 4, bias=False), (6, 5)),
    "linear, sequence": (lambda: mint.nn.Linear(5, 4), (6, 3, 5)),
    "subclass": (lambda: OwnDense(5, 4), (6, 5)),
    "one input": (lambda: nn.Dense(1, 4), (6, 1)),
    "one row": (lambda: nn.Dense(5, 4), (1, 5)),
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
    """Return (A, G, T) in float64, and the groups."""
    if isinstance(layer, nn.Conv2d):
        seen = window(layer, x.shape[2:])
        factors = reference.kronecker_factors(
            reference.patches(x, **vars(seen)),
            derivatives,
            homogeneous=homogeneous,
            layout="patches",
        )
        return factors, seen.groups
    return reference.kronecker_factors(x, derivatives, homogeneous=homogeneous), 1


def check(network, layer, x, *, split=128, bias="homogeneous", **options):
    """Compare an update of ``network``, whose one layer is ``layer``; return (it, dL/dy)."""
    fill(network)
    with pynative():
        shape = network(Tensor(x)).shape
    c = normal(shape, 1)
    seen = updated(network, x, c, split=split, bias=bias, **options)
    homogeneous = bias == "homogeneous" and layer.has_bias
    factors, groups = twin(layer, x, c.astype(np.float64) / len(x), homogeneous)
    assert_factors(seen.layer(), *factors, split)
    _check_moved(seen, layer, factors, groups, homogeneous, split)
    return seen, c / np.float64(len(x))


def _check_moved(seen, layer, factors, groups, homogeneous, split):
    gradients = {n: g.astype(np.float64) for n, g in seen.gradients.items()}
    weight, own = layer.weight.name, getattr(layer, "bias", None)
    bias = gradients[own.name] if homogeneous else None
    matrix = reference.gradient_matrix(gradients[weight], bias, groups)
    direction = reference.thor_direction(*factors, matrix, 0.1, split=split)
    direction, bias = reference.weight_and_bias(direction, layer.weight.shape, homogeneous)
    assert off(seen.moved[weight], -direction) <= DIRECTION
    if homogeneous:
        assert off(seen.moved[own.name], -bias) <= DIRECTION
    elif own is not None and own.name in gradients:
        # Plain: learning rate 1 times the gradient itself.
        assert off(seen.moved[own.name], -gradients[own.name]) <= DIRECTION


@pytest.mark.parametrize("split, bias", [(128, "plain"), (5, "homogeneous")])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name, split, bias):
    """Factors are the reference's, and the update is what it makes of the same gradient.

    And the tap's own patches make that gradient: the sum over rows and positions of d p^T.
    """
    make, size = CONVOLUTIONS[name]
    layer = make()
    x = normal((5, layer.in_channels, *size))
    seen, slopes = check(nn.SequentialCell(layer), layer, x, split=split, bias=bias)
    tap = Tap(geometry_of(layer, homogeneous=False, split=None))
    with pynative():
        patches = tap.patches(Tensor(x)).asnumpy().astype(np.float64)
    patches = patches.reshape(5, layer.group, -1, patches.shape[2])
    slopes = slopes.reshape(5, layer.group, -1, patches.shape[3])
    expected = np.einsum("ngot,ngpt->gop", slopes, patches).reshape(layer.weight.shape)
    assert off(seen.gradients[layer.weight.name], expected) <= FACTOR


@pytest.mark.parametrize("split, bias", [(128, "homogeneous"), (2, "plain")])
@pytest.mark.parametrize("name", DENSE)
def test_dense(name, split, bias):
    make, shape = DENSE[name]
    layer = make()
    check(nn.SequentialCell(layer), layer, normal(shape), split=split, bias=bias)


# Compiling takes 0.4 s a layer: the kinds that differ in what is compiled.
COMPILED = ("same, stride", "everything", "depthwise", "subclass", "padded, by one product")


class Several(nn.Cell):
    """The convolutions of ``COMPILED`` side by side: (N, C, H, W) -> (N, all outputs)."""

    def __init__(self):
        super().__init__()
        made = [(CONVOLUTIONS[name][0](), CONVOLUTIONS[name][1]) for name in COMPILED]
        self.layers = nn.CellList([layer for layer, _ in made])
        self.corners = [(layer.in_channels, *size) for layer, size in made]

    def construct(self, x):
        outputs = ()
        for i in range(len(self.layers)):
            channels, height, width = self.corners[i]
            y = self.layers[i](x[:, :channels, :height, :width])
            outputs += (y.reshape(y.shape[0], -1),)
        return ops.concat(outputs, 1)


def test_compiled_they_are_the_same():
    """Five kinds in one compiled graph, in blocks of at most 8."""
    network, x = fill(Several()), normal((5, 5, 6, 7))
    with pynative():
        shapes = [
            layer(Tensor(x[:, :c, :h, :w])).shape
            for layer, (c, h, w) in zip(network.layers, network.corners, strict=True)
        ]
    ends = np.cumsum([0] + [np.prod(shape[1:]) for shape in shapes])
    weights = normal((5, ends[-1]), 1)
    layers = list(network.layers)
    seen = updated(network, x, weights, split=8, compiled=True)
    assert len(seen.step.update.layers) == len(COMPILED)
    for i, layer in enumerate(layers):
        channels, height, width = network.corners[i]
        corner = x[:, :channels, :height, :width]
        derivatives = weights[:, ends[i] : ends[i + 1]].reshape(shapes[i]).astype(np.float64) / 5
        factors, groups = twin(layer, corner, derivatives, layer.has_bias)
        assert_factors(seen.layer(i), *factors, 8)
        _check_moved(seen, layer, factors, groups, layer.has_bias, 8)


class TestAgainstPyTorch:
    """Nothing of labkit.reference in it: torch.nn.functional.unfold and autograd, float64."""

    @pytest.mark.parametrize(
        "name", [n for n in CONVOLUTIONS if "same" not in n and n not in ("groups", "depthwise")]
    )
    def test_convolution(self, name):
        torch = pytest.importorskip("torch")
        functional = torch.nn.functional
        make, size = CONVOLUTIONS[name]
        layer = make()
        network, x = fill(nn.SequentialCell(layer)), normal((5, layer.in_channels, *size))
        around = layer.padding if isinstance(layer.padding, tuple) else (layer.padding,) * 4
        top, bottom, left, right = around
        padded = functional.pad(torch.from_numpy(x).double(), (left, right, top, bottom))
        weight = torch.from_numpy(layer.weight.asnumpy()).double().requires_grad_()
        others = dict(stride=tuple(layer.stride), dilation=tuple(layer.dilation))
        y = functional.conv2d(padded, weight, groups=layer.group, **others)
        c = normal(tuple(y.shape), 1)
        y.retain_grad()
        ((y * torch.from_numpy(c).double()).sum() / 5).backward()
        patches = functional.unfold(padded, tuple(layer.kernel_size), **others)
        patches = patches.reshape(5, layer.group, -1, patches.shape[2])
        if layer.has_bias:
            patches = torch.cat([patches, torch.ones_like(patches[:, :, :1])], 2)
        slopes = y.grad.reshape(5, layer.group, -1, patches.shape[3])
        positions = patches.shape[3]
        a_factor = torch.einsum("ngit,ngjt->gij", patches, patches) / (5 * positions)
        g_factor = torch.einsum("ngit,ngjt->gij", slopes, slopes) * 5 / positions
        seen = updated(network, x, c, split=None)
        assert_factors(seen.layer(), a_factor.numpy(), g_factor.numpy(), positions, None)
        assert off(seen.gradients[layer.weight.name], weight.grad.numpy()) <= FACTOR

    def test_dense_on_sequences(self):
        torch = pytest.importorskip("torch")
        network, x, c = (
            fill(nn.SequentialCell(nn.Dense(5, 4))),
            normal((6, 3, 5)),
            normal((6, 3, 4)),
        )
        rows = torch.from_numpy(x).double().reshape(18, 5)
        rows = torch.cat([rows, torch.ones(18, 1)], 1)
        slopes = torch.from_numpy(c).double().reshape(18, 4)
        seen = updated(network, x, c)
        a_factor, g_factor = rows.T @ rows / 18, slopes.T @ slopes / 18
        assert_factors(seen.layer(), a_factor.numpy()[None], g_factor.numpy()[None], 3, 128)


def sums(tap, x, dout):
    """Return (A_sum, T of A and G, G_sum) of the tap's backward pass, as means over axis 0."""
    x, dout, scale = Tensor(x), Tensor(dout), Tensor(1.0)
    with pynative():
        dx, dy, a_sum, count, g_sum, ds = tap.bprop(x, dout, None, None, None, scale, dout, dout)
        assert not dx.asnumpy().any() and dx.dtype == x.dtype and not ds.asnumpy().any()
        np.testing.assert_array_equal(dy.asnumpy(), dout.asnumpy())
        rows = x.shape[0]
        return a_sum / rows, count.asnumpy() / rows, g_sum * rows


@st.composite
def convolutions(draw):
    """(layer, x, dL/dy, split) of any convolution with at least one position."""
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, stride, dilation = draw(pair), draw(pair), draw(pair)
    groups, rows = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    channels, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 3))
    size = draw(st.tuples(st.integers(1, 8), st.integers(1, 8)))
    mode, pad = draw(st.sampled_from(["valid", "same", "pad"])), 0
    if mode == "pad":
        pad = draw(st.tuples(*[st.integers(0, 2)] * 4))
    around = pad if mode == "pad" else (0, 0, 0, 0)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if mode != "same":
        assume(size[0] + around[0] + around[1] >= spans[0])
        assume(size[1] + around[2] + around[3] >= spans[1])
    layer = nn.Conv2d(
        *(channels, outputs, kernel, stride, mode, pad),
        dilation=dilation,
        group=groups,
        has_bias=draw(st.booleans()),
        weight_init="zeros",
    )
    x = normal((rows, channels, *size), draw(st.integers(0, 99)))
    patches = reference.patches(x, **vars(window(layer, size)))
    top = [-(-length // s) for length, s in zip(size, stride, strict=True)]
    if mode != "same":
        padded = (size[0] + around[0] + around[1], size[1] + around[2] + around[3])
        top = [(p - s) // t + 1 for p, s, t in zip(padded, spans, stride, strict=True)]
    assert top[0] * top[1] == patches.shape[3]
    return (
        layer,
        x,
        normal((rows, outputs, *top), 7),
        draw(st.sampled_from([None, 1, 2, 3, 5, 128])),
    )


@settings(deadline=None, max_examples=80)
@given(convolutions())
def test_any_convolution(case):
    layer, x, dout, split = case
    geometry = geometry_of(layer, homogeneous=layer.has_bias, split=split)
    a_sum, positions, g_sum = sums(Tap(geometry), x, dout)
    (a_factor, g_factor, expected), groups = twin(layer, x, dout, layer.has_bias)
    np.testing.assert_array_equal(positions, [expected, expected])
    for came, factor in ((a_sum, a_factor), (g_sum, g_factor)):
        factor = expected * reference.block_diagonal(factor, split)
        assert np.abs(whole(came, factor.shape[-1], groups) - factor).max() <= FACTOR * max(
            np.abs(factor).max(), 1e-3
        )


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 5),
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(1, 9),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([None, 1, 2, 3, 4, 7]),
    st.integers(0, 99),
)
def test_any_dense_layer_and_every_remainder(rows, middle, inputs, outputs, bias, split, seed):
    layer = nn.Dense(inputs, outputs, weight_init="zeros", has_bias=bias)
    x, dout = normal((rows, *middle, inputs), seed), normal((rows, *middle, outputs), seed + 1)
    geometry = geometry_of(layer, homogeneous=bias, split=split)
    a_sum, positions, g_sum = sums(Tap(geometry), x, dout)
    (a_factor, g_factor, expected), _ = twin(layer, x, dout, bias)
    assert expected == np.prod(middle, dtype=int)
    np.testing.assert_array_equal(positions, [expected, expected])
    for came, factor in ((a_sum, a_factor), (g_sum, g_factor)):
        factor = expected * reference.block_diagonal(factor, split)
        assert off(whole(came, factor.shape[-1]), factor) <= FACTOR


@pytest.mark.parametrize("images", [1, 6])
@pytest.mark.parametrize("size", [(2, 2), (9, 9)])
def test_blocks_larger_and_smaller_than_the_map_are_the_same(images, size):
    """27 inputs: on 2x2 positions in one product over all images, on 9x9 in one an image."""
    layer = nn.Conv2d(3, 30, 3, pad_mode="same")
    x, dout = normal((images, 3, *size)), normal((images, 30, *size), 1)
    tap = Tap(geometry_of(layer, homogeneous=False, split=None))
    a_sum, _, g_sum = sums(tap, x, dout)
    (a_factor, g_factor, positions), _ = twin(layer, x, dout, False)
    assert off(whole(a_sum, 27), positions * a_factor) <= FACTOR
    assert off(whole(g_sum, 30), positions * g_factor) <= FACTOR


@pytest.mark.parametrize("name", ["dense", "convolution"])
def test_half_precision_is_multiplied_in_float32(name):
    """Float16 inputs and derivatives: their factors are those of the same numbers in float64."""
    layer = nn.Dense(5, 4) if name == "dense" else nn.Conv2d(3, 4, 3, pad_mode="same")
    x = 100 * normal((6, 5) if name == "dense" else (6, 3, 5, 5))
    dout = 1e-4 * normal((6, 4) if name == "dense" else (6, 4, 5, 5), 1)
    x, dout = x.astype(np.float16), dout.astype(np.float16)
    tap = Tap(geometry_of(layer, homogeneous=False, split=None))
    a_sum, positions, g_sum = sums(tap, x, dout)
    assert a_sum.dtype == g_sum.dtype == ms.float32
    (a_factor, g_factor, _), _ = twin(layer, x, dout, False)
    assert off(whole(a_sum, a_factor.shape[-1]), positions[0] * a_factor) <= FACTOR
    assert off(whole(g_sum, g_factor.shape[-1]), positions[0] * g_factor) <= FACTOR


@pytest.mark.parametrize("name", ["dense", "convolution"])
def test_the_loss_scale_is_in_no_factor(name):
    """Taken out before anything is squared: powers of two, to the bit."""
    layer = nn.Dense(5, 4) if name == "dense" else nn.Conv2d(3, 4, 3, pad_mode="same")
    x, dout = normal((6, 5)), normal((6, 4), 1)
    if name == "convolution":
        x, dout = normal((6, 3, 5, 5)), normal((6, 4, 5, 5), 1)
    tap = Tap(geometry_of(layer, homogeneous=False, split=None))
    made = []
    for scale in (1.0, 2.0**100):
        derivative = Tensor(dout * np.float32(scale))
        with pynative():
            sums = tap.bprop(Tensor(x), None, *[None] * 3, Tensor(scale), None, derivative)
            made.append([one.asnumpy() for one in sums[2:5]])
    for one, other in zip(*made, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("activation", ["tanh", "relu", "prelu"])
def test_the_derivative_is_that_before_the_layers_activation(activation):
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
    seen = updated(network, x, c)
    assert_factors(seen.layer(), *twin(layer, x, c * slope / 6, True)[0], 128)
    assert layer.activation_flag and network[0] is layer
    fill(network)
    with pynative():
        assert off(network(Tensor(x)).asnumpy(), before) <= FACTOR


class Twice(nn.Cell):
    """(N, 4) -> (N, 4): one dense layer used twice, with a tanh in between."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)

    def construct(self, x):
        return self.dense(ops.tanh(self.dense(x)))


class TwiceOnMaps(nn.Cell):
    """(N, 2, 5, 5) -> (N, 2 (25 + 9)): one convolution on a map and on a part of it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, pad_mode="same", has_bias=True)

    def construct(self, x):
        whole_map, part = self.conv(x), self.conv(x[:, :, 1:4, 1:4])
        rows = x.shape[0]
        return ops.concat((whole_map.reshape(rows, -1), part.reshape(rows, -1)), 1)


class TestUsedTwice:
    """A layer used twice in one forward pass has the positions of both."""

    @pytest.mark.parametrize("compiled", [False, True])
    def test_dense(self, compiled):
        network, x, c = fill(Twice()), normal((6, 4)), normal((6, 4), 1)
        weight = network.dense.weight.asnumpy().astype(np.float64)
        first = x @ weight.T + network.dense.bias.asnumpy()
        second_slope = c / 6.0
        first_slope = second_slope @ weight * (1 - np.tanh(first) ** 2)
        inputs = np.stack([x, np.tanh(first)], 1)
        slopes = np.stack([first_slope, second_slope], 1)
        factors = reference.kronecker_factors(inputs, slopes, homogeneous=True)
        assert factors[2] == 2
        layer = network.dense
        seen = updated(network, x, c, compiled=compiled)
        assert_factors(seen.layer(), *factors, 128)
        _check_moved(seen, layer, factors, 1, True, 128)

    def test_convolution_on_maps_of_two_sizes(self):
        network, x, c = fill(TwiceOnMaps()), normal((6, 2, 5, 5)), normal((6, 68), 1)
        around = reference.Window((3, 3), padding=(1, 1, 1, 1))
        patches = [reference.patches(one, **vars(around)) for one in (x, x[:, :, 1:4, 1:4])]
        patches = np.concatenate(patches, axis=3)
        slopes = np.concatenate([c[:, :50].reshape(6, 2, 25), c[:, 50:].reshape(6, 2, 9)], 2) / 6.0
        factors = reference.kronecker_factors(
            patches, slopes[:, :, None], homogeneous=True, layout="patches"
        )
        assert factors[2] == 34
        layer = network.conv
        seen = updated(network, x, c)
        assert_factors(seen.layer(), *factors, 128)
        _check_moved(seen, layer, factors, 1, True, 128)
