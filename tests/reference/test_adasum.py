"""The theorems of Adasum in float64, its recursion, and examples by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.reference import adasum_pair, adasum_tree, adasum_triple, cosine

CLOSE = {"rtol": 1e-9, "atol": 1e-12}
seeds = st.integers(0, 2**32 - 1)
dimensions = st.integers(2, 9)
counts = st.integers(1, 40)
weights = st.integers(1, 9)
few = settings(max_examples=25)


def vectors(seed, count, size):
    """Return vectors (count, size) with lengths of order 1, no two of them parallel."""
    return np.random.default_rng(seed).normal(size=(count, size))


def recursion(rows):
    """The source's equation for 2^x vectors, as written there."""
    if len(rows) == 1:
        return rows[0]
    half = len(rows) // 2
    a, b = recursion(rows[:half]), recursion(rows[half:])
    return (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b


@few
@given(seeds, dimensions, weights, weights, st.floats(0.01, 100))
def test_parallel_vectors_give_their_mean(seed, size, m, n, factor):
    """With a from m workers and s a from n: (m a + n s a) / (m + n), all count equally."""
    (a,) = vectors(seed, 1, size)
    expected = (m + n * factor) / (m + n) * a
    np.testing.assert_allclose(adasum_pair(a, factor * a, m, n), expected, **CLOSE)


@few
@given(seeds, counts)
def test_orthogonal_vectors_give_their_sum(seed, count):
    orthonormal = np.linalg.qr(vectors(seed, 40, 40))[0][:count]
    rows = orthonormal * np.linspace(0.5, 2, count)[:, None]
    np.testing.assert_allclose(adasum_tree(rows), rows.sum(axis=0), **CLOSE)


@few
@given(seeds, st.integers(0, 5), dimensions)
def test_a_power_of_two_is_the_sources_recursion(seed, power, size):
    rows = vectors(seed, 2**power, size)
    np.testing.assert_allclose(adasum_tree(rows), recursion(rows), **CLOSE)


@few
@given(seeds, counts, dimensions)
def test_zeros_pass_the_others_through(seed, count, size):
    rows = np.zeros((count, size))
    place = seed % count
    (rows[place],) = vectors(seed, 1, size)
    np.testing.assert_allclose(adasum_tree(rows), rows[place], **CLOSE)


def test_levels_by_hand():
    """Five vectors are two and three; seven are two, two and three, which form a triple."""
    v = vectors(2, 7, 4)
    two, three = adasum_pair(v[0], v[1]), adasum_triple(v[2:5])
    np.testing.assert_allclose(adasum_tree(v[:5]), adasum_pair(two, three, 2, 3), **CLOSE)
    parts = [two, adasum_pair(v[2], v[3]), adasum_triple(v[4:])]
    np.testing.assert_allclose(adasum_tree(v), adasum_triple(parts, (2, 2, 3)), **CLOSE)


def test_a_triple_is_the_mean_of_three_orders():
    a, b, c = vectors(3, 3, 5)
    orders = [
        adasum_pair(adasum_pair(first, second), third, 2, 1)
        for first, second, third in ((a, b, c), (b, c, a), (a, c, b))
    ]
    np.testing.assert_allclose(adasum_triple([a, b, c]), np.mean(orders, axis=0), **CLOSE)


def test_a_pair_and_cosines_by_hand():
    """With 1 and 3 workers: 1 - 1/4 3/9 = 11/12 of a, 1 - 3/4 3/2 = -1/8 of b."""
    actual = adasum_pair([3.0, 0.0], [1.0, 1.0], 1, 3)
    np.testing.assert_allclose(actual, [2.75 - 0.125, -0.125], **CLOSE)
    assert cosine([1.0, 0.0], [1.0, 1.0]) == pytest.approx(np.sqrt(0.5))
    assert cosine([2.0, 0.0], [-3.0, 0.0]) == pytest.approx(-1.0)
    assert cosine([0.0, 0.0], [1.0, 1.0]) == cosine([1.0, 1.0], [0.0, 0.0]) == 0.0
