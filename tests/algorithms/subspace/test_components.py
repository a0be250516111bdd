"""The components through the Gram matrix, in blocks and threads, against the twin by SVD."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import linalg

from labkit.algorithms.subspace import components as module
from labkit.algorithms.subspace.components import principal_components
from labkit.errors import InputError
from labkit.reference import principal_components as twin
from tests.support.snapshots import with_spectrum
from tests.support.tolerances import TOLERANCE


class Rows:
    """An array (N, M) with what ``principal_components`` needs of a ``SnapshotFolder``."""

    folder = "memory"

    def __init__(self, rows):
        self.rows, self.size = np.asarray(rows, np.float32), np.shape(rows)[1]

    def __len__(self):
        return len(self.rows)

    def read(self, start, part):
        part[:] = self.rows[:, start : start + part.shape[1]]


def assert_orthonormal(matrix):
    wide = matrix.astype(np.float64)
    tolerance = TOLERANCE["orthonormal rows in float32"]
    np.testing.assert_allclose(wide @ wide.T, np.eye(len(wide)), **tolerance)
    return wide


def check(rows, components):
    """Compare with the twin on the same float32 numbers."""
    matrix, variance, total = principal_components(Rows(rows), components)
    expected = twin(rows, components)
    assert matrix.dtype == np.float32 and matrix.shape == (components, rows.shape[1])
    # Entries of a row are of order 1 / sqrt(M): the tolerance is for rows scaled to order 1.
    scale = np.sqrt(rows.shape[1])
    tolerance = TOLERANCE["basis against SVD"]
    np.testing.assert_allclose(matrix * scale, expected.matrix * scale, **tolerance)
    assert_orthonormal(matrix)
    np.testing.assert_allclose(variance, expected.variance, rtol=1e-6)
    np.testing.assert_allclose(total, expected.total_variance, rtol=1e-9)


# M near the sizes of a read (16384) and of a cached block (2048), and smaller than N.
@pytest.mark.parametrize("numbers", [33, 39, 2047, 2048, 16385, 40000])
def test_a_spectrum_that_falls_over_four_decades(numbers):
    values = 10 ** -np.linspace(0, 4, min(numbers, 39) - (numbers < 39))
    check(with_spectrum(40, numbers, values), 32)


def test_around_weights_that_are_larger_than_their_moves():
    """Weights of order 1 that moved by 1e-3: the mean drops out in float64, not in float32."""
    rows = with_spectrum(40, 20000, 0.1 * 2.0 ** -np.arange(8), mean=1.0)
    check(rows, 8)


def test_a_spectrum_beyond_what_the_gram_matrix_holds_stays_orthonormal():
    """Over 6.5 decades the errors of G tilt the last rows by 1e-3, which is corrected."""
    rows = with_spectrum(20, 5000, 10 ** -np.linspace(0, 6.5, 19))
    matrix, _, _ = principal_components(Rows(rows), 19)
    wide = assert_orthonormal(matrix)
    left = rows - rows.mean(0) - ((rows - rows.mean(0)) @ wide.T) @ wide
    # All 19 directions are used: what remains is the rounding of the rows and of P.
    assert np.abs(left).max() < 2e-7 * np.abs(rows).max()


@given(
    count=st.integers(2, 12),
    numbers=st.integers(1, 90),
    block=st.integers(1, 40),
    data=st.data(),
)
@settings(max_examples=80)
def test_any_shape_in_blocks_of_any_size(count, numbers, block, data):
    """The rows are orthonormal, and the snapshots vary along them as the twin says."""
    seed = data.draw(st.integers(0, 2**32 - 1))
    components = data.draw(st.integers(1, max(1, min(count - 1, numbers))))
    rows = np.random.default_rng(seed).normal(size=(count, numbers)).astype(np.float32)
    expected = twin(rows, components)
    if expected.variance[-1] < 1e-6 * expected.variance[0]:
        return  # nearly dependent rows, where float32 decides; the tests above cover them
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        patch.setattr(module, "_CHUNK", 3 * block)
        patch.setattr(module, "_ITEM", 7 * count * count)
        patch.setattr(os, "sched_getaffinity", lambda process: range(2))
        matrix, variance, total = principal_components(Rows(rows), components)
    wide = assert_orthonormal(matrix)
    np.testing.assert_allclose(variance, expected.variance, rtol=1e-9)
    np.testing.assert_allclose(total, expected.total_variance, rtol=1e-9)
    along = (rows - rows.mean(0, dtype=np.float64)) @ wide.T
    np.testing.assert_allclose(along.var(axis=0, ddof=1), expected.variance, rtol=1e-5)
    assert (along[-1] > -1e-5).all()


@given(hnp.arrays(np.float32, (4, 3), elements=st.floats(-2, 2, width=32)))
@settings(max_examples=60)
def test_any_numbers_give_orthonormal_rows_or_a_refusal(rows):
    try:
        matrix, _, _ = principal_components(Rows(rows), 2)
    except InputError as refused:
        assert ", the directions that 4 snapshots in memory span, got 2" in str(refused)
        values = linalg.svd(rows - rows.mean(0, dtype=np.float64), compute_uv=False)
        assert values[1] <= 4e-7 * np.linalg.norm(rows) + 1e-30
    else:
        assert_orthonormal(matrix)


def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(40, 50001)).astype(np.float32)
    results = []
    for threads in (1, 2, 3, 2):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=threads: range(n))
        results.append(principal_components(Rows(rows), 32))
    for result in results[1:]:
        for actual, expected in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("directions", [0, 1, 5])
def test_fewer_directions_than_components_are_counted(directions):
    """The rounding of float32 weights of order 1 adds directions, which do not count."""
    random = np.random.default_rng(0)
    moves = random.normal(size=(12, directions)) @ random.normal(size=(directions, 3000))
    rows = (random.normal(size=3000) + 0.01 * moves).astype(np.float32)
    if directions:
        principal_components(Rows(rows), directions)
    words = f"at most {directions}, the directions that 12 snapshots in memory span, got 6"
    with pytest.raises(InputError, match=words):
        principal_components(Rows(rows), 6)


def test_directions_just_above_the_rounding_count():
    random = np.random.default_rng(0)
    weights = random.normal(size=3000)
    moves = with_spectrum(12, 3000, np.full(6, 1e-6 * np.linalg.norm(weights)))
    principal_components(Rows(weights + moves.astype(np.float64)), 6)


@pytest.mark.parametrize("components", [0, 12, 32])
def test_fewer_than_one_more_than_the_components(components):
    words = f"at most 11, one less than the snapshots in memory, got {components}"
    with pytest.raises(InputError, match=words):
        principal_components(Rows(np.eye(12, 20)), components)
