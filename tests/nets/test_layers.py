"""Layers with a different algorithm on CPU give the same numbers as MindSpore's own."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from labkit import LossNet, PlainStep
from labkit.nets.layers import PaddedConv2d, TiledMaxPool2d

pytestmark = pytest.mark.usefixtures("runtime")

# kernel, stride, height and width of the input; the output has at most 4 positions.
SMALL = [(1, 1, 2, 2), (1, 2, 4, 4), (1, 2, 3, 3), (1, 1, 1, 1), (1, 1, 1, 3), (1, 2, 1, 7),
         (3, 1, 2, 2), (3, 2, 4, 4), (3, 2, 3, 3), (3, 2, 4, 3), (3, 1, 1, 1), (3, 1, 1, 4),
         (3, 1, 4, 1), (3, 2, 2, 8), (3, 3, 6, 5)]  # fmt: skip
LARGE = [(1, 1, 4, 4), (3, 1, 3, 2), (3, 2, 5, 5), (5, 1, 2, 2), (7, 2, 4, 4)]


def results(layer, x, at_output):
    """Return the output, and gradients by input and, if any, weight for one at the output."""
    weights = ms.ParameterTuple(layer.trainable_params())
    if weights:
        gradient = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)
        (by_input,), (by_weight,) = gradient(layer, weights)(x, at_output)
        parts = layer(x), by_input, by_weight
    else:
        parts = layer(x), ops.GradOperation(sens_param=True)(layer)(x, at_output)
    return [part.asnumpy() for part in parts]


@pytest.mark.parametrize("case", SMALL + LARGE)
def test_it_is_mindspores_convolution(case, eager, monkeypatch):
    """Of integers to the bit, and of others to rounding; only small maps take the product."""
    products, product = [], PaddedConv2d._one_product
    monkeypatch.setattr(PaddedConv2d, "_one_product", lambda *a: products.append(a) or product(*a))
    random = np.random.default_rng(0)
    assert_same(case, lambda shape: random.integers(-9, 10, shape), 0)
    # Measured up to 8e-7 of the largest value, with 4608 terms per sum.
    assert_same(case, random.standard_normal, 2e-6, batch=32)
    assert bool(products) == (case in SMALL)


@pytest.mark.parametrize("case", [(1, 2, 4, 4), (3, 2, 4, 3), (3, 1, 3, 2)])
def test_compiled_it_is_too(case):
    random = np.random.default_rng(0)
    assert_same(case, lambda shape: random.integers(-9, 10, shape), 0)


def assert_same(case, draw, limit, batch=3):
    kernel, stride, height, width = case
    mine = PaddedConv2d(5, 4, kernel, stride)
    theirs = nn.Conv2d(5, 4, kernel, stride, pad_mode="pad", padding=(kernel - 1) // 2)
    out = (batch, 4, (height - 1) // stride + 1, (width - 1) // stride + 1)
    shapes = (4, 5, kernel, kernel), (batch, 5, height, width), out
    weight, *given = (Tensor(draw(shape).astype(np.float32)) for shape in shapes)
    mine.weight.set_data(weight)
    theirs.weight.set_data(weight)
    for ours, expected in zip(results(mine, *given), results(theirs, *given), strict=True):
        assert np.abs(ours - expected).max() <= limit * np.abs(expected).max() and expected.any()


def test_float16_inside_the_network_follows_float32():
    losses, random = {}, np.random.default_rng(2)
    x = Tensor(random.standard_normal((8, 3, 4, 4)).astype(np.float32))
    labels = Tensor(np.arange(8, dtype=np.int32) % 4)
    shapes = (6, 3, 3, 3), (4, 6, 1, 1)
    weights = [random.standard_normal(shape).astype(np.float32) / 3 for shape in shapes]
    for precision in ("O0", "O2"):
        network = nn.SequentialCell(PaddedConv2d(3, 6, 3, 2), PaddedConv2d(6, 4, 1), nn.Flatten())
        for parameter, weight in zip(network.trainable_params(), weights, strict=True):
            parameter.set_data(Tensor(weight))
        loss_net = LossNet(network, nn.CrossEntropyLoss())
        optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        step = PlainStep(loss_net, optimizer, precision=precision)
        losses[precision] = [float(step(x, labels).asnumpy()) for _ in range(3)]
    assert losses["O0"][2] < losses["O0"][0]
    # float16 keeps 11 bits; measured 2e-4.
    np.testing.assert_allclose(losses["O2"], losses["O0"], rtol=2e-3)
    assert losses["O2"] != losses["O0"]


@pytest.mark.parametrize("kind", [ms.float32, ms.float16])
@pytest.mark.parametrize(
    ("shape", "size"), [((3, 2, 28, 28), 2), ((2, 3, 9, 6), 3), ((2, 1, 7, 8), 2), ((2, 6, 6), 2)]
)
def test_pooling_by_tiles_is_mindspores_to_the_bit(shape, size, kind):
    """Most windows of integers have several maxima; 7 rows cannot be divided into tiles."""
    draw = np.random.default_rng(1)
    x = Tensor(draw.integers(-1, 2, shape).astype(np.float32), kind)
    tiled, own = TiledMaxPool2d(size), nn.MaxPool2d(size, size)
    behind = Tensor(draw.normal(size=own(x).shape).astype(np.float32), kind)
    for ours, theirs in zip(results(tiled, x, behind), results(own, x, behind), strict=True):
        assert ours.dtype == theirs.dtype and np.abs(theirs).max() > 0
        np.testing.assert_array_equal(ours, theirs)


def test_a_window_of_nan_is_nan():
    x = np.zeros((1, 1, 2, 6), np.float32)
    x[..., :2], x[0, 0, 0, 2], x[0, 0, 1, 4] = np.nan, np.nan, np.nan
    pooled = TiledMaxPool2d(2)(Tensor(x)).asnumpy().ravel()
    np.testing.assert_array_equal(pooled, np.float32([np.nan, np.nan, 0]))
