"""Shared by the tests of THOR's layers: networks, a loss with known derivatives, and errors."""

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops

from labkit.steps.state import set_state

# Largest difference over the largest entry, float32 against float64. Measured in test_taps.py:
# factors and gradients at most 6e-7; directions at damping 0.1 at most 1e-6, except 2e-5 for one
# whole factor of 127 inputs and rank 5, whose condition number is 700.
FACTOR, DIRECTION = 2e-6, 1e-4


class Weighted(nn.Cell):
    """Loss net (x, c) -> (mean over rows of sum(y c), rows): dL/dy is c / rows."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x, c):
        rows = x.shape[0]
        return ops.reduce_sum((self.network(x) * c).reshape(-1)) / rows, ops.cast(rows, ms.float32)


def normal(shape, seed=0):
    """Float32 numbers of order 1."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def fill(cell, seed=0):
    """Set all trainable Parameters of a cell to numbers of order 1 / sqrt(in); return the cell."""
    for number, parameter in enumerate(cell.trainable_params()):
        size = np.prod(parameter.shape[1:]) if parameter.ndim > 1 else 4
        set_state(parameter, normal(parameter.shape, 100 * seed + number) / np.sqrt(size))
    return cell


class Nested(nn.Cell):
    """(N, 4) -> (N, 2) through sequences, a norm, and a CellList inside a CellList."""

    def __init__(self):
        super().__init__()
        self.stem = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU(), nn.SequentialCell(nn.Dense(4, 4)))
        self.norm = nn.LayerNorm((4,))
        self.lists = nn.CellList([nn.CellList([nn.Dense(4, 4), nn.Dense(4, 4, activation="tanh")])])
        self.head = mint.nn.Linear(4, 2)

    def construct(self, x):
        x = self.norm(self.stem(x))
        for inner in self.lists:
            for layer in inner:
                x = layer(x)
        return self.head(x)


def whole(factor, dimension, groups=1):
    """Return a factor stored in blocks as (groups, n, n); assert that its padding is zero."""
    blocks = factor.asnumpy().astype(np.float64)
    count, size = len(blocks) // groups, blocks.shape[-1]
    full = np.zeros((groups, count * size, count * size))
    for group, block in np.ndindex(groups, count):
        first = block * size
        full[group, first : first + size, first : first + size] = blocks[group * count + block]
    assert not full[:, dimension:].any() and not full[:, :, dimension:].any()
    return full[:, :dimension, :dimension]


def off(actual, expected):
    """Return the largest difference over the largest expected entry."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape and expected.size, (actual.shape, expected.shape)
    return np.abs(actual - expected).max() / np.abs(expected).max()
