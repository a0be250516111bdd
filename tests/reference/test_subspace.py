"""The float64 twin against closed forms, and the step's own float64 part against the twin."""

import numpy as np
import pytest
from scipy import linalg

from labkit import reference
from labkit.algorithms.subspace.search import Constants, Memory, line_search, updated_inverse
from labkit.reference import principal_components, reconstruct


def curved(size, seed):
    """Return (Hessian, B, s, y = H s); all eigenvalues of both matrices are > 0."""
    random = np.random.default_rng(seed)
    hessian, inverse = (
        root @ root.T + 0.1 * np.eye(size) for root in random.normal(size=(2, size, size))
    )
    s = random.normal(size=size)
    return hessian, inverse, s, hessian @ s


@pytest.mark.parametrize("size", [1, 2, 7, 32])
def test_bfgs_is_the_product_form_with_the_secant_equation(size):
    """B y = s; B is symmetric, positive definite and the product with I - s y^T / y.s."""
    _, inverse, s, y = curved(size, size)
    actual = reference.bfgs_inverse(inverse, s, y)
    np.testing.assert_allclose(actual @ y, s, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(actual, actual.T, rtol=1e-9, atol=1e-9)
    assert np.linalg.eigvalsh(actual).min() > 0
    left = np.eye(size) - np.outer(s, y) / (y @ s)
    product = left @ inverse @ left.T + np.outer(s, s) / (y @ s)
    np.testing.assert_allclose(actual, product, rtol=1e-7, atol=1e-7)
    if size > 1:
        exchanged = reference.bfgs_inverse(inverse, y, s)
        assert np.abs(exchanged @ y - s).max() > 0.1


@pytest.mark.parametrize("size", [2, 7, 32])
def test_the_steps_own_inverse_is_the_twins(size):
    _, inverse, s, y = curved(size, 50 + size)
    last = np.random.default_rng(1).normal(size=size).astype(np.float32)
    memory = Memory(inverse.astype(np.float32), last, s.astype(np.float32), True)
    gradient = memory.gradient + y
    actual = updated_inverse(memory, gradient, Constants())
    expected = reference.bfgs_inverse(memory.inverse, memory.step, gradient - memory.gradient)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
    alone = Memory(memory.inverse, last, memory.step, False)
    # Without curvature, and without a pair.
    for own, gradient in ((memory, last - y), (memory, last + np.nan), (alone, last + y)):
        unchanged = updated_inverse(own, gradient, Constants())
        np.testing.assert_array_equal(unchanged, memory.inverse)


def test_line_search_takes_the_first_that_is_low_enough():
    """On f(t) = (1 - t)^2 + c the bound 1 - 2 sigma t is met for t < 2 - 2 sigma, exactly."""
    constants = Constants(rho=0.5, sigma=0.4, trials=8)
    result = []
    for factor in (0.5, 1.19, 1.21, 4.9, 300.0, 1000.0):
        seen = []

        def loss_at(rate, factor=factor, seen=seen):
            seen.append(rate)
            return (1 - factor * rate) ** 2 + 7.0

        trials, rate = line_search(loss_at, 8.0, -2.0 * factor, constants)
        assert len(seen) == trials and seen == [0.5**m for m in range(trials)]
        result.append((trials, rate))
    assert result == [(1, 1), (1, 1), (2, 0.5), (4, 0.125), (8, 0.0), (8, 0.0)]
    assert line_search(lambda rate: np.nan, 1.0, -1.0, constants) == (8, 0.0)
    assert line_search(lambda rate: 1.0, 1.0, -1.0, constants) == (8, 0.0)
    # 1 - 0.4e-17 is 1: a loss that does not fall is not low enough.
    assert line_search(lambda rate: 1.0, 1.0, -1e-17, constants) == (8, 0.0)
    assert line_search(None, 1.0, 0.0, constants) == (0, 0.0)
    # The default is that of the paper's code.
    assert line_search(lambda rate: np.inf, 1.0, -1.0, Constants()) == (20, 0.0)


def test_the_twin_reaches_the_subspace_optimum():
    """On a quadratic of condition 100 the gap falls to 1e-6; the weights move only within P."""
    random = np.random.default_rng(0)
    rotation = np.linalg.qr(random.normal(size=(64, 64)))[0]
    hessian = (rotation * np.logspace(-1, 1, 64)) @ rotation.T
    basis = np.linalg.qr(random.normal(size=(64, 32)))[0].T
    start = weights = random.normal(size=64)
    best = start + basis.T @ np.linalg.solve(basis @ hessian @ basis.T, -basis @ hessian @ start)
    loss_of = lambda w: 0.5 * w @ hessian @ w  # noqa: E731
    search, wanted = reference.ProjectedBFGS(basis, alpha=0.0), loss_of(start) - loss_of(best)
    updates = 0
    while loss_of(weights) - loss_of(best) > 1e-6 * wanted:
        weights = search.update(weights, hessian @ weights, loss_of)
        updates += 1
    assert 5 < updates <= 37
    assert loss_of(best) > 0.1 * loss_of(start) and search.failures == 0
    moved = weights - start
    np.testing.assert_allclose(basis.T @ (basis @ moved), moved, atol=1e-9)


def test_the_twins_residual_is_momentum_of_what_lies_outside():
    basis = np.eye(2, 4)
    search = reference.ProjectedBFGS(basis, gamma=0.5, alpha=0.1)
    weights = np.zeros(4)
    for gradient in ([1.0, 0, 2, 0], [0, 1.0, 0, 4]):
        weights = search.update(weights, np.array(gradient), lambda w: 1.0)
    np.testing.assert_allclose(search.residual, [0, 0, 1, 4])
    np.testing.assert_allclose(weights, [0, 0, -0.1 * (2 + 1), -0.4])
    assert search.failures == 2 and search.pair is None


# ---- the basis

N, M, K = 9, 30, 5


@pytest.fixture
def rows():
    random = np.random.default_rng(3)
    return random.normal(size=(N, N)) @ np.diag(2.0 ** -np.arange(N)) @ random.normal(size=(N, M))


def test_rows_are_the_eigenvectors_of_the_weights_covariance(rows):
    """A second routine takes the (M, M) matrix, too large to hold at 25 million weights."""
    result = principal_components(rows, K)
    values, vectors = linalg.eigh(np.cov(rows, rowvar=False))
    np.testing.assert_allclose(result.variance, values[::-1][:K], rtol=1e-9)
    np.testing.assert_allclose(result.total_variance, values.sum(), rtol=1e-12)
    expected = vectors[:, ::-1][:, :K].T
    signs = np.sign((result.matrix * expected).sum(axis=1))
    np.testing.assert_allclose(result.matrix, signs[:, None] * expected, atol=1e-9)


def test_the_error_of_reconstruction_is_the_variance_left_over(rows):
    mean = rows.mean(axis=0)
    for components in range(1, N):
        result = principal_components(rows, components)
        error = sum(((row - reconstruct(result.matrix, mean, row)) ** 2).sum() for row in rows)
        left = (result.total_variance - result.variance.sum()) * (N - 1)
        assert error == pytest.approx(left, rel=1e-9, abs=1e-20 + 1e-13 * result.total_variance)
