"""The twin of the basis against SciPy, and what makes it principal components."""

import numpy as np
import pytest
from scipy import linalg

from labkit.errors import InputError
from labkit.reference import principal_components, reconstruct

N, M, K = 9, 30, 5


@pytest.fixture
def rows():
    random = np.random.default_rng(3)
    return random.normal(size=(N, N)) @ np.diag(2.0 ** -np.arange(N)) @ random.normal(size=(N, M))


def test_rows_are_the_eigenvectors_of_the_weights_covariance(rows):
    """The (M, M) matrix that nobody can hold at 25 million weights, by another routine."""
    found = principal_components(rows, K)
    values, vectors = linalg.eigh(np.cov(rows, rowvar=False))
    np.testing.assert_allclose(found.variance, values[::-1][:K], rtol=1e-9)
    np.testing.assert_allclose(found.total_variance, values.sum(), rtol=1e-12)
    expected = vectors[:, ::-1][:, :K].T
    signs = np.sign((found.matrix * expected).sum(axis=1))
    np.testing.assert_allclose(found.matrix, signs[:, None] * expected, atol=1e-9)


def test_the_error_of_reconstruction_is_the_variance_left_over(rows):
    mean = rows.mean(axis=0)
    for components in range(1, N):
        found = principal_components(rows, components)
        error = sum(((row - reconstruct(found.matrix, mean, row)) ** 2).sum() for row in rows)
        left = (found.total_variance - found.variance.sum()) * (N - 1)
        assert error == pytest.approx(left, rel=1e-9, abs=1e-20 + 1e-13 * found.total_variance)


def test_wrong_shapes_are_refused(rows):
    for wrong in (rows[0], rows[:K]):
        with pytest.raises(InputError, match=r"snapshots: expected \(N, M\) with N > 5"):
            principal_components(wrong, K)
