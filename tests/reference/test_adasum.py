"""The theorems of Adasum, both sides: where a statement holds, and that it does not elsewhere."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import InputError
from labkit.reference import adasum_pair, adasum_tree, adasum_triple, cosine

CLOSE = {"rtol": 1e-9, "atol": 1e-12}
seeds = st.integers(0, 2**32 - 1)
dimensions = st.integers(2, 9)
counts = st.integers(1, 40)
weights = st.integers(1, 9)
few = settings(max_examples=25, deadline=None)


def vectors(seed, count, size):
    """Vectors (count, size) of lengths of order 1, none of them parallel to another."""
    return np.random.default_rng(seed).normal(size=(count, size))


def orthonormal(seed, count, size):
    return np.linalg.qr(vectors(seed, size, size))[0][:count]


def recursion(rows):
    """The source's equation for 2^x vectors, as it stands there."""
    if len(rows) == 1:
        return rows[0]
    half = len(rows) // 2
    a, b = recursion(rows[:half]), recursion(rows[half:])
    return (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b


class TestPair:
    @few
    @given(seeds, dimensions, st.floats(0.01, 100))
    def test_parallel_vectors_give_their_mean(self, seed, size, factor):
        (a,) = vectors(seed, 1, size)
        np.testing.assert_allclose(adasum_pair(a, factor * a), (1 + factor) / 2 * a, **CLOSE)

    @few
    @given(seeds, dimensions)
    def test_orthogonal_vectors_give_their_sum(self, seed, size):
        a, b = orthonormal(seed, 2, size) * [[2.0], [0.3]]
        np.testing.assert_allclose(adasum_pair(a, b), a + b, **CLOSE)

    def test_others_give_neither(self):
        """At 60 degrees it lies between mean and sum; at 120 degrees beyond the sum."""
        a = np.array([1.0, 0.0])
        for degrees, factor in ((60, 0.75), (120, 1.25)):
            b = np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])
            np.testing.assert_allclose(adasum_pair(a, b), factor * (a + b), **CLOSE)

    def test_by_hand(self):
        """a.b = 3, |a|^2 = 9, |b|^2 = 2: 5/6 a + 1/4 b."""
        came = adasum_pair([3.0, 0.0], [1.0, 1.0])
        np.testing.assert_allclose(came, [2.5 + 0.25, 0.25], **CLOSE)

    def test_by_hand_with_counts(self):
        """Made by 1 and 3: 1 - 1/4 3/9 = 11/12 of a, 1 - 3/4 3/2 = -1/8 of b."""
        came = adasum_pair([3.0, 0.0], [1.0, 1.0], 1, 3)
        np.testing.assert_allclose(came, [2.75 - 0.125, -0.125], **CLOSE)

    @few
    @given(seeds, dimensions, weights, weights)
    def test_parallel_vectors_give_the_mean_over_workers(self, seed, size, m, n):
        """a by m workers and b = s a by n: (m a + n b) / (m + n), each worker counts alike."""
        (a,) = vectors(seed, 1, size)
        expected = (m + 2.5 * n) / (m + n) * a
        np.testing.assert_allclose(adasum_pair(a, 2.5 * a, m, n), expected, **CLOSE)

    @few
    @given(seeds, dimensions, weights, weights)
    def test_zero_passes_the_other_one_through(self, seed, size, m, n):
        (a,) = vectors(seed, 1, size)
        zero = np.zeros(size)
        np.testing.assert_array_equal(adasum_pair(a, zero, m, n), a)
        np.testing.assert_array_equal(adasum_pair(zero, a, m, n), a)
        assert not adasum_pair(zero, zero).any()

    @few
    @given(seeds, dimensions, weights, weights)
    def test_symmetric_with_its_counts(self, seed, size, m, n):
        a, b = vectors(seed, 2, size)
        came, expected = adasum_pair(a, b, m, n), adasum_pair(b, a, n, m)
        np.testing.assert_allclose(came, expected, **CLOSE)
        if m != n:
            assert not np.allclose(came, adasum_pair(a, b, n, m), rtol=1e-6, atol=0)

    @few
    @given(seeds, dimensions)
    def test_only_the_ratio_of_the_counts_matters(self, seed, size):
        a, b = vectors(seed, 2, size)
        np.testing.assert_allclose(adasum_pair(a, b, 2, 6), adasum_pair(a, b, 1, 3), **CLOSE)
        np.testing.assert_array_equal(adasum_pair(a, b, 4, 4), adasum_pair(a, b))

    def test_opposite_vectors_of_one_length_cancel(self):
        a = np.array([1.0, -2.0, 0.5])
        np.testing.assert_allclose(adasum_pair(a, -a), np.zeros(3), atol=1e-15)

    def test_any_shape_is_taken_as_one_vector(self):
        a, b = vectors(0, 2, 6)
        came = adasum_pair(a.reshape(2, 3), b.reshape(3, 2))
        np.testing.assert_array_equal(came, adasum_pair(a, b))
        assert came.shape == (6,) and adasum_pair(np.float16(a), b).dtype == np.float64

    def test_vectors_of_two_lengths(self):
        with pytest.raises(InputError, match="vectors of 2 and 3 numbers came"):
            adasum_pair([1.0, 2.0], [1.0, 2.0, 3.0])


class TestTree:
    @few
    @given(seeds, counts, dimensions)
    def test_equal_vectors_give_that_vector(self, seed, count, size):
        """For any number: the counts in a pair and in three are there for this."""
        (a,) = vectors(seed, 1, size)
        np.testing.assert_allclose(adasum_tree([a] * count), a, **CLOSE)

    @few
    @given(seeds, counts, st.lists(st.floats(0.1, 10), min_size=40, max_size=40))
    def test_parallel_vectors_give_their_mean(self, seed, count, lengths):
        """Each worker counts as much as every other one, whatever its place in the tree."""
        (a,) = vectors(seed, 1, 4)
        rows = [length * a for length in lengths[:count]]
        np.testing.assert_allclose(adasum_tree(rows), np.mean(rows, axis=0), **CLOSE)

    @few
    @given(seeds, st.integers(1, 40))
    def test_orthogonal_vectors_give_their_sum(self, seed, count):
        rows = orthonormal(seed, count, 40) * np.linspace(0.5, 2, count)[:, None]
        np.testing.assert_allclose(adasum_tree(rows), rows.sum(axis=0), **CLOSE)

    @few
    @given(seeds)
    def test_others_give_neither(self, seed):
        rows = vectors(seed, 8, 4)
        came = adasum_tree(rows)
        assert not np.allclose(came, rows.mean(axis=0), rtol=1e-3)
        assert not np.allclose(came, rows.sum(axis=0), rtol=1e-3)

    @few
    @given(seeds, st.integers(0, 5), dimensions)
    def test_a_power_of_two_is_the_sources_recursion(self, seed, power, size):
        rows = vectors(seed, 2**power, size)
        np.testing.assert_allclose(adasum_tree(rows), recursion(rows), **CLOSE)

    @few
    @given(seeds, counts, dimensions)
    def test_zeros_pass_the_others_through(self, seed, count, size):
        rows = np.zeros((count, size))
        place = seed % count
        (rows[place],) = vectors(seed, 1, size)
        np.testing.assert_allclose(adasum_tree(rows), rows[place], **CLOSE)

    @few
    @given(seeds, counts, dimensions, st.sampled_from([1e-3, -1.0, 7.0, 1e6]))
    def test_scales_with_its_vectors(self, seed, count, size, factor):
        rows = vectors(seed, count, size)
        np.testing.assert_allclose(adasum_tree(factor * rows), factor * adasum_tree(rows), **CLOSE)

    @few
    @given(seeds, counts, dimensions)
    def test_turns_with_its_vectors(self, seed, count, size):
        """Adasum(R v) = R Adasum(v) for a rotation R: it knows lengths and angles alone."""
        rows, rotation = vectors(seed, count, size), orthonormal(seed + 1, size, size)
        came, expected = adasum_tree(rows @ rotation), adasum_tree(rows) @ rotation
        np.testing.assert_allclose(came, expected, rtol=1e-7, atol=1e-9)

    @few
    @given(seeds, st.sampled_from([3, 5, 7, 9, 15]))
    def test_the_last_three_of_an_odd_number_are_alike(self, seed, count):
        rows = vectors(seed, count, 4)
        expected = adasum_tree(rows)
        for order in itertools.permutations(range(count - 3, count)):
            came = adasum_tree([*rows[: count - 3], *rows[list(order)]])
            np.testing.assert_allclose(came, expected, **CLOSE)

    def test_others_are_not_alike(self):
        """Neighbours are: of four, the second may change places with the first, not the third."""
        a, b, c, d = vectors(0, 4, 3)
        np.testing.assert_allclose(adasum_tree([b, a, d, c]), adasum_tree([a, b, c, d]), **CLOSE)
        assert not np.allclose(adasum_tree([a, c, b, d]), adasum_tree([a, b, c, d]), rtol=1e-3)
        five = vectors(1, 5, 3)
        assert not np.allclose(adasum_tree(five[[0, 2, 1, 3, 4]]), adasum_tree(five), rtol=1e-3)

    def test_levels_by_hand(self):
        """Five are two and three; seven two, two and three, which are three once more."""
        v = vectors(2, 7, 4)
        two, three = adasum_pair(v[0], v[1]), adasum_triple(v[2:5])
        np.testing.assert_allclose(adasum_tree(v[:5]), adasum_pair(two, three, 2, 3), **CLOSE)
        parts = [two, adasum_pair(v[2], v[3]), adasum_triple(v[4:])]
        np.testing.assert_allclose(adasum_tree(v), adasum_triple(parts, (2, 2, 3)), **CLOSE)

    def test_nothing(self):
        with pytest.raises(InputError, match="no vector came; expected at least one"):
            adasum_tree([])


class TestTriple:
    def test_the_mean_of_three_orders(self):
        a, b, c = vectors(3, 3, 5)
        orders = [
            adasum_pair(adasum_pair(first, second), third, 2, 1)
            for first, second, third in ((a, b, c), (b, c, a), (a, c, b))
        ]
        np.testing.assert_allclose(adasum_triple([a, b, c]), np.mean(orders, axis=0), **CLOSE)

    @few
    @given(seeds, weights, weights, weights)
    def test_alike_with_their_counts(self, seed, i, j, k):
        rows, made = vectors(seed, 3, 4), (i, j, k)
        expected = adasum_triple(rows, made)
        for order in itertools.permutations(range(3)):
            came = adasum_triple(rows[list(order)], [made[place] for place in order])
            np.testing.assert_allclose(came, expected, **CLOSE)

    @few
    @given(seeds, weights, weights, weights)
    def test_parallel_vectors_give_the_mean_over_workers(self, seed, i, j, k):
        (a,) = vectors(seed, 1, 4)
        expected = (i + 2 * j + 5 * k) / (i + j + k) * a
        np.testing.assert_allclose(adasum_triple([a, 2 * a, 5 * a], (i, j, k)), expected, **CLOSE)


class TestCosine:
    def test_by_hand(self):
        assert cosine([1.0, 0.0], [1.0, 1.0]) == pytest.approx(np.sqrt(0.5))
        assert cosine([2.0, 0.0], [-3.0, 0.0]) == pytest.approx(-1.0)
        assert cosine([1.0, 2.0], [-2.0, 1.0]) == pytest.approx(0.0, abs=1e-15)
        assert cosine([0.0, 0.0], [1.0, 1.0]) == cosine([1.0, 1.0], [0.0, 0.0]) == 0.0

    @few
    @given(seeds, dimensions)
    def test_within_one_and_free_of_lengths(self, seed, size):
        a, b = vectors(seed, 2, size)
        assert abs(cosine(a, b)) <= 1 + 1e-12
        assert cosine(3 * a, 0.01 * b) == pytest.approx(cosine(a, b))
