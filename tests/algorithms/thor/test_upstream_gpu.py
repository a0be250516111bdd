"""The formulas of MindSpore's GPU branch: as the reference has them, and other than THOR's."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit import reference
from labkit.runtime import pynative
from tests.support.thor_layers import DIRECTION, FACTOR, fill, normal, off, updated, whole

pytestmark = pytest.mark.usefixtures("runtime")

LAYERS = {
    "dense": (lambda: nn.Dense(5, 4), (6, 5)),
    "no bias": (lambda: nn.Dense(5, 4, has_bias=False), (6, 5)),
    "same": (lambda: nn.Conv2d(3, 4, 3, pad_mode="same", has_bias=True), (6, 3, 6, 7)),
    "valid": (lambda: nn.Conv2d(3, 4, 3, pad_mode="valid"), (6, 3, 6, 7)),
    "stride": (lambda: nn.Conv2d(3, 4, (3, 2), (2, 3), pad_mode="valid"), (6, 3, 7, 8)),
    "pad": (lambda: nn.Conv2d(3, 4, 3, pad_mode="pad", padding=2), (6, 3, 5, 5)),
}


@pytest.mark.parametrize("split", [128, 4])
@pytest.mark.parametrize("name", LAYERS)
def test_factors_and_directions_are_the_references(name, split):
    make, shape = LAYERS[name]
    layer, x = make(), normal(shape)
    network, window = fill(nn.SequentialCell(layer)), None
    with pynative():
        c = normal(network(Tensor(x)).shape, 1)
    if len(shape) == 4:
        window = reference.Window(tuple(layer.kernel_size), tuple(layer.stride))
    factors = reference.upstream_factors(x, c.astype(np.float64) / 6, window)
    seen = updated(network, x, c, formulas="upstream_gpu", split=split)
    came = seen.layer()
    assert not came.homogeneous
    for factor, expected in ((came.a_factor, factors[0]), (came.g_factor, factors[1])):
        expected = reference.block_diagonal(expected, split)
        assert off(whole(factor, expected.shape[-1]), expected) <= FACTOR
    np.testing.assert_array_equal(came.positions.asnumpy(), factors[2])
    gradient = seen.gradients["0.weight"].astype(np.float64)
    if window is None:
        assert off(gradient, c.T @ x / 6) <= FACTOR
    direction = reference.thor_direction(
        *factors, reference.gradient_matrix(gradient), 0.1, split=split
    )
    assert off(seen.moved["0.weight"], -direction.reshape(gradient.shape)) <= DIRECTION
    if "0.bias" in seen.moved:
        assert off(seen.moved["0.bias"], -seen.gradients["0.bias"]) <= FACTOR


def test_they_are_not_thors():
    """A convolution's A has rank of its positions at most; a dense A is N / in times as large."""
    network, x, c = nn.SequentialCell(nn.Conv2d(3, 4, 3, pad_mode="valid")), normal((6, 3, 4, 4)), 1
    c = normal((6, 4, 2, 2), 1)
    upstream = updated(fill(network), x, c, formulas="upstream_gpu")
    ours = updated(fill(network), x, c, bias="plain")
    ranks = [
        np.linalg.matrix_rank(whole(seen.layer().a_factor, 27)[0], tol=1e-4)
        for seen in (upstream, ours)
    ]
    assert ranks[0] <= 16 < ranks[1]
    ranks = [
        np.linalg.matrix_rank(whole(seen.layer().g_factor, 4)[0], tol=1e-6)
        for seen in (upstream, ours)
    ]
    assert ranks == [4, 4]
    network, x, c = nn.SequentialCell(nn.Dense(5, 4)), normal((20, 5)), normal((20, 4), 1)
    upstream = updated(fill(network), x, c, formulas="upstream_gpu").layer()
    ours = updated(fill(network), x, c, bias="plain").layer()
    assert off(upstream.a_factor.asnumpy(), 4 * ours.a_factor.asnumpy()) <= FACTOR
    assert off(upstream.g_factor.asnumpy(), ours.g_factor.asnumpy()) <= FACTOR
