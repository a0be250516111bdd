"""Shared by the tests of THOR's layers: one layer, one batch, one update and its float64 twin."""

import contextlib
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

from labkit import reference
from labkit.algorithms.thor import ThorStep
from labkit.runtime import pynative
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


@dataclass
class Updated:
    """One update of a network by ``Weighted``: the step, its gradients, the parameters' changes."""

    step: ThorStep
    gradients: dict
    moved: dict

    def layer(self, number=0):
        return self.step.update.layers[number]


def updated(network, x, c, *, damping=0.1, compiled=False, **options):
    """Make one update at learning rate 1, operator by operator unless ``compiled``."""
    with contextlib.nullcontext() if compiled else pynative():
        optimizer = nn.SGD(network.trainable_params(), 1.0)
        step = ThorStep(Weighted(network), optimizer, damping, loss="sample mean", **options)
        before = {p.name: p.asnumpy().astype(np.float64) for p in network.trainable_params()}
        step(Tensor(x), Tensor(c))
        after = {p.name: p.asnumpy() for p in network.trainable_params()}
        held = zip(optimizer.parameters, step.update.pending_gradients, strict=True)
        gradients = {p.name: g.asnumpy() for p, g in held}
        step.update.release()
    return Updated(step, gradients, {n: after[n] - before[n] for n in before})


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


def assert_factors(layer, a_factor, g_factor, positions, split):
    """Assert that the layer's factors are the diagonal blocks of the given (groups, n, n)."""
    groups = len(a_factor)
    assert (layer.groups, layer.inputs) == (groups, a_factor.shape[-1])
    assert layer.outputs == g_factor.shape[-1]
    for actual, expected in ((layer.a_factor, a_factor), (layer.g_factor, g_factor)):
        expected = reference.block_diagonal(expected, split)
        assert off(whole(actual, expected.shape[-1], groups), expected) <= FACTOR
    np.testing.assert_array_equal(layer.positions.asnumpy(), [positions, positions])
