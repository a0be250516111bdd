"""Layers with a different algorithm on CPU give the same numbers as MindSpore's own."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from labkit import LossNet, PlainStep
from labkit.errors import InputError
from labkit.nets import layers
from labkit.nets.layers import PaddedConv2d, TiledMaxPool2d

pytestmark = pytest.mark.usefixtures("runtime")

# kernel, stride, height and width of the input; the output has at most 4 positions.
SMALL = [(1, 1, 2, 2), (1, 2, 4, 4), (1, 2, 3, 3), (1, 1, 1, 1), (1, 1, 1, 3), (1, 2, 1, 7),
         (3, 1, 2, 2), (3, 2, 4, 4), (3, 2, 3, 3), (3, 2, 4, 3), (3, 1, 1, 1), (3, 1, 1, 4),
         (3, 1, 4, 1), (3, 2, 2, 8), (3, 3, 6, 5)]  # fmt: skip
LARGE = [(1, 1, 4, 4), (3, 1, 3, 2), (3, 2, 5, 5), (5, 1, 2, 2), (7, 2, 4, 4)]


class Gradients(nn.Cell):
    """Gradients by input and weight for a given gradient at the output."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.weights = ms.ParameterTuple(layer.trainable_params())
        self.grad = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)

    def construct(self, x, at_output):
        by_input, by_weight = self.grad(self.layer, self.weights)(x, at_output)
        return by_input[0], by_weight[0]


def results(layer, x, at_output):
    return [part.asnumpy() for part in (layer(x), *Gradients(layer)(x, at_output))]


class Marked(PaddedConv2d):
    """Returns zeros where PaddedConv2d takes the product form."""

    def _one_product(self, x, height, width):
        return ops.zeros((x.shape[0], self.out_channels, height, width), x.dtype)


def _pair(kernel, stride, height, width, draw, batch=3):
    mine = PaddedConv2d(5, 4, kernel, stride)
    pad = (kernel - 1) // 2
    theirs = nn.Conv2d(5, 4, kernel, stride, pad_mode="pad", padding=pad)
    weight = Tensor(draw((4, 5, kernel, kernel)))
    mine.weight.set_data(weight)
    theirs.weight.set_data(weight)
    out = ((height - 1) // stride + 1, (width - 1) // stride + 1)
    return mine, theirs, Tensor(draw((batch, 5, height, width))), Tensor(draw((batch, 4, *out)))


@pytest.mark.parametrize("case", SMALL + LARGE)
def test_integers_give_the_same_bits_as_mindspores_convolution(case, eager):
    """Python chooses the form from the shapes, in either mode."""
    assert_same_bits(case)


@pytest.mark.parametrize("case", [(1, 2, 4, 4), (3, 2, 4, 3), (3, 1, 3, 2)])
def test_compiled_they_do_too(case):
    assert_same_bits(case)


def assert_same_bits(case):
    random = np.random.default_rng(0)
    mine, theirs, x, at_output = _pair(
        *case, lambda shape: random.integers(-9, 10, shape).astype(np.float32)
    )
    pairs = zip(results(mine, x, at_output), results(theirs, x, at_output), strict=True)
    for ours, expected in pairs:
        np.testing.assert_array_equal(ours, expected)
        assert np.abs(expected).max() > 0


def test_real_numbers_agree_to_rounding():
    random = np.random.default_rng(1)
    for case in ((1, 1, 2, 2), (3, 2, 4, 4)):
        mine, theirs, x, at_output = _pair(
            *case, lambda shape: random.standard_normal(shape).astype(np.float32), batch=32
        )
        pairs = zip(results(mine, x, at_output), results(theirs, x, at_output), strict=True)
        for ours, expected in pairs:
            # Measured up to 8e-7 of the largest value, with 4608 terms per sum.
            np.testing.assert_allclose(ours, expected, 0, 2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("case", SMALL + LARGE)
def test_small_maps_take_the_product_and_larger_maps_and_kernels_do_not(case, eager):
    kernel, stride, height, width = case
    layer = Marked(2, 3, kernel, stride)
    product = not layer(Tensor(np.ones((2, 2, height, width), np.float32))).asnumpy().any()
    assert product == (case in SMALL)


def test_an_even_kernel_is_refused():
    with pytest.raises(InputError, match="kernel: expected an odd number"):
        PaddedConv2d(1, 1, 2)


def test_float16_inside_the_network_follows_float32():
    losses = {}
    random = np.random.default_rng(2)
    x = Tensor(random.standard_normal((8, 3, 4, 4)).astype(np.float32))
    labels = Tensor(np.arange(8, dtype=np.int32) % 4)
    weights = [
        random.standard_normal(s).astype(np.float32) / 3 for s in ((6, 3, 3, 3), (4, 6, 1, 1))
    ]
    for precision in ("O0", "O2"):
        network = nn.SequentialCell(PaddedConv2d(3, 6, 3, 2), PaddedConv2d(6, 4, 1), nn.Flatten())
        for parameter, weight in zip(network.trainable_params(), weights, strict=True):
            parameter.set_data(Tensor(weight))
        loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        step = PlainStep(LossNet(network, loss_fn), optimizer, precision=precision)
        losses[precision] = [float(step(x, labels).asnumpy()) for _ in range(3)]
    assert losses["O0"][2] < losses["O0"][0]
    # float16 keeps 11 bits; measured 2e-4.
    np.testing.assert_allclose(losses["O2"], losses["O0"], rtol=2e-3)
    assert losses["O2"] != losses["O0"]


class Pooled(nn.Cell):
    """The output of a pooling, and its gradient for a given gradient behind it."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.gradient = ops.GradOperation(sens_param=True)(pool)

    def construct(self, x, behind):
        return self.pool(x), self.gradient(x, behind)


@pytest.mark.parametrize("kind", [ms.float32, ms.float16])
@pytest.mark.parametrize(
    ("shape", "size"), [((3, 2, 28, 28), 2), ((2, 3, 9, 6), 3), ((2, 1, 7, 8), 2), ((2, 6, 6), 2)]
)
def test_pooling_by_tiles_is_mindspores_to_the_bit(shape, size, kind):
    """Most windows of integers have several maxima.

    7 rows cannot be divided into tiles; they use MindSpore's own pooling.
    """
    draw = np.random.default_rng(1)
    x = Tensor(draw.integers(-1, 2, shape).astype(np.float32), kind)
    tiled, own = TiledMaxPool2d(size), nn.MaxPool2d(size, size)
    behind = Tensor(draw.normal(size=own(x).shape).astype(np.float32), kind)
    for ours, theirs in zip(Pooled(tiled)(x, behind), Pooled(own)(x, behind), strict=True):
        assert ours.dtype == theirs.dtype and np.abs(theirs.asnumpy()).max() > 0
        np.testing.assert_array_equal(ours.asnumpy(), theirs.asnumpy())


def test_pooling_by_tiles_is_adaptive_on_cpu_alone(monkeypatch):
    x = Tensor(np.full((1, 1, 2, 2), -np.inf, np.float32))
    assert np.isneginf(TiledMaxPool2d(2)(x).asnumpy())
    monkeypatch.setattr(layers, "_on_cpu", lambda: False)
    # MindSpore's own pooling starts from the lowest finite number.
    assert TiledMaxPool2d(2)(x).asnumpy() == np.finfo(np.float32).min


def test_a_window_of_nan_is_nan():
    x = np.zeros((1, 1, 2, 6), np.float32)
    x[..., :2], x[0, 0, 0, 2], x[0, 0, 1, 4] = np.nan, np.nan, np.nan
    pooled = TiledMaxPool2d(2)(Tensor(x)).asnumpy().ravel()
    np.testing.assert_array_equal(pooled, np.float32([np.nan, np.nan, 0]))
