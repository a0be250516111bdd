"""Gram and tree against the float64 tree: every branch of the rule, every kind of vector."""

import contextlib
import functools

import numpy as np
import pytest
from mindspore import Tensor

from labkit import reference
from labkit.algorithms.adasum import combination, combine
from labkit.algorithms.adasum.combine import LARGEST, SMALLEST, SOUND, ByGram
from labkit.runtime import pynative
from labkit.steps.state import bounds

pytestmark = pytest.mark.usefixtures("runtime")

# Required: the error relative to each layer's length.
BOUND = 1e-5
LAYERS = (150, 7)
NUMBERS = sum(LAYERS)
# Pairs alone, three alone, two levels, unequal counts in a pair and in three, three on two levels,
# and the largest. Mostly Gram: its graph also holds the tree, on which it falls back.
CASES = [(count, "gram") for count in (2, 3, 4, 5, 7, 11, 64)] + [(7, "tree"), (64, "tree")]
COMPILED = (4, 7)


@pytest.fixture(scope="module")
def combined():
    """A function from rows to their combination, compiled once for all tests."""
    made = functools.cache(lambda count, by: combination("adasum", LAYERS, count, by=by))
    return lambda rows, by="gram": made(len(rows), by)(Tensor(rows)).asnumpy()


def by_layer(row):
    return [row[..., start:end] for start, end in bounds(LAYERS)]


def error(vector, rows):
    """Return the largest distance of a layer from the float64 tree, relative to its length."""
    distances = []
    for layer, part in zip(by_layer(vector), by_layer(rows.astype(np.float64)), strict=True):
        expected = reference.adasum_tree(part)
        # Float32 has no full precision for lengths below its smallest normal number.
        length = max(np.linalg.norm(expected), 1e-37)
        distances.append(np.linalg.norm(layer - expected) / length)
    return max(distances)


def normal(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, NUMBERS))


def mixed_magnitudes(count):
    """Return vectors with lengths from 1e-30 to 1e30 side by side, different ones in each layer."""
    exponents = np.random.default_rng(2).integers(-29, 30, size=(count, len(LAYERS)))
    return normal(count) * np.repeat(10.0**exponents, LAYERS, axis=1)


def some_zero(count):
    """Return layers that are zero for some workers, and one that is zero for all of them."""
    rows = normal(count) * (np.arange(count) % 3 == 0)[:, None]
    rows[:, 150:] = 0
    return rows


COMMON = normal(1, seed=1)
KINDS = {
    "independent": normal,
    "correlated": lambda count: normal(count) + 2 * COMMON,
    "anticorrelated": lambda count: 0.5 * normal(count) - (-1) ** np.c_[:count] * COMMON,
    "equal": lambda count: np.repeat(normal(1), count, axis=0),
    "1e-30": lambda count: 1e-30 * normal(count),
    "1e30": lambda count: 1e30 * normal(count),
    "mixed magnitudes": mixed_magnitudes,
    "zeros": some_zero,
    "all zero": lambda count: 0 * normal(count),
}


class TestAgainstFloat64:
    @pytest.mark.parametrize(("count", "by"), CASES)
    def test_every_kind_of_vector(self, combined, count, by):
        worst = {}
        with contextlib.nullcontext() if count in COMPILED else pynative():
            for kind, make in KINDS.items():
                rows = make(count).astype(np.float32)
                worst[kind] = error(combined(rows, by), rows)
        assert max(worst.values()) <= BOUND, worst

    def test_of_a_last_pair_whose_long_sums_round(self, eager):
        """ResNet-50's largest layers have 2 million numbers; products alone would be 2.1e-5 off."""
        random = np.random.default_rng(7)
        first = random.standard_normal(2_000_000)
        pair = [first, 0.05 * random.standard_normal(first.size) - first]
        rows = np.stack(pair).astype(np.float32)
        vector = combination("adasum", [first.size], 2)(Tensor(rows)).asnumpy()
        right = reference.adasum_tree(rows)
        assert np.linalg.norm(vector - right) <= BOUND * np.linalg.norm(right)


@pytest.fixture(scope="module")
def alone():
    """The Gram path without its fallback."""
    limits = {"SOUND": -1e9, "SOUND_AT_THE_END": -1e9, "SMALLEST": -1.0, "LARGEST": 3e38}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(combine, name, value)
        cell = ByGram(LAYERS, 4)
        cell(Tensor(normal(4).astype(np.float32)))
    assert combine.SOUND == SOUND
    return lambda rows: cell(Tensor(rows)).asnumpy()


def nearly_cancelling(rest):
    """Return four vectors, the first two opposite up to ``rest``; their Adasum is as short."""
    rows = normal(4)
    rows[1] = rest * rows[1] - rows[0]
    rows[2] += rows[0]
    return rows


def of_length(length):
    """Return vectors all of one length in both layers, since the shortest one decides."""
    return np.hstack([length * r / np.linalg.norm(r, axis=1)[:, None] for r in by_layer(normal(4))])


def with_parts(values):
    """Return vectors of which some, row -> number, have this number throughout the first layer."""
    rows = normal(4)
    for row, value in values.items():
        rows[row, :150] = value
    return rows


# name -> (vectors, whether their scalar products alone give the result)
PATHS = {
    "independent": (normal(4), True),
    "nearly cancelling, 0.1": (nearly_cancelling(0.1), False),
    "nearly cancelling, 0.01": (nearly_cancelling(0.01), False),
    "squares below SMALLEST": (of_length(0.9 * SMALLEST**0.5), False),
    "squares above": (of_length(1e-9), True),
    "squares below LARGEST": (of_length(1e14), True),
    "squares above LARGEST": (of_length(1.1 * LARGEST**0.5), False),
    "one without a gradient": (with_parts({0: 0}), True),
    "two without a gradient": (with_parts({1: 0, 2: 0}), True),
    "none with a gradient": (with_parts({0: 0, 1: 0, 2: 0, 3: 0}), True),
    # 1e-25 squared underflows in float32, but beside zeros and ones it must not count as 0.
    "squares that are 0": (with_parts({1: 1e-25, 2: 0}), False),
}


@pytest.mark.parametrize("case", PATHS)
def test_which_path(case, combined, alone):
    """The last bits show which path was taken, since the two round differently."""
    rows, by_products = PATHS[case]
    rows = rows.astype(np.float32)
    vector = combined(rows)
    expected, other = alone(rows), combined(rows, "tree")
    if not by_products:
        expected, other = other, expected
    np.testing.assert_array_equal(vector, expected)
    assert (vector != other).any() and error(vector, rows) <= BOUND


@pytest.mark.parametrize("by", ["gram", "tree"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 3])
def test_what_is_not_finite_stays_in_its_layer_and_is_seen_there(combined, by, value, row):
    rows = normal(4).astype(np.float32)
    clean = by_layer(combined(rows, "tree"))
    rows[row, 20] = value
    vector = by_layer(combined(rows, by))
    assert not np.isfinite(vector[0]).any()
    np.testing.assert_allclose(vector[1], clean[1], rtol=1e-5, atol=1e-6)


def test_more_layers_than_a_graph_may_nest_steps():
    """A ResNet-50 has 161 layers, and MindSpore compiles at most 1000 nested calls."""
    rows = np.random.default_rng(0).normal(size=(2, 400)).astype(np.float32)
    layers = combination("adasum", [2] * 200, 2)(Tensor(rows)).asnumpy().reshape(200, 2)
    for layer, part in zip(layers, rows.reshape(2, 200, 2).swapaxes(0, 1), strict=True):
        np.testing.assert_allclose(
            layer, reference.adasum_tree(part.astype(np.float64)), rtol=1e-5, atol=1e-6
        )
