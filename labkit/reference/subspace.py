r"""The basis of a subspace, and projected BFGS in it, update by update, on flat float64 vectors.

    g_k = P g,   d = -B g_k,   s = rho^m d,   r <- gamma r + g - P^T g_k
    w <- optimizer(w + P^T s, alpha r)

m is the first of 0 .. trials - 1 with L(w + rho^m P^T d) < L(w) + sigma rho^m g_k.d. Source: Li et
al., "Low Dimensional Trajectory Hypothesis is True", TPAMI 2022, arXiv 2103.11154, and MindSpore's
``mindspore.boost.dim_reduce`` (the residual).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from labkit.base.arguments import choice
from labkit.errors import InputError

LossOf = Callable[[np.ndarray], float]


def bfgs_inverse(inverse: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return B (K, K) after the pair s, y (K,) with y.s > 0, written out.

    B + (1 + y^T B y / y.s) s s^T / y.s - (B y s^T + s y^T B) / y.s: symmetric, and it maps y to s.
    """
    inverse, s, y = (np.asarray(value, np.float64) for value in (inverse, s, y))
    product, moved = y @ s, inverse @ y
    grown = (1 + y @ moved / product) * np.outer(s, s) / product
    return inverse + grown - (np.outer(moved, s) + np.outer(s, moved)) / product


@dataclass
class ProjectedBFGS:
    """Whole updates: ``weights = search.update(weights, gradient, loss_of)``.

    The options are those of ``labkit.algorithms.subspace.Constants``. ``optimizer`` is (weights,
    slope) -> weights; by default SGD at rate 1, as in the source's rule.
    """

    basis: np.ndarray  # P (K, M), with orthonormal rows
    rho: float = 0.55
    sigma: float = 0.4
    trials: int = 20
    gamma: float = 0.9
    alpha: float = 0.001
    curvature: float = 1e-8
    failure: str = "reset"
    optimizer: Callable = np.subtract
    pair: tuple | None = None  # (P g, s) of the last update
    made: int = 0  # losses that the last search computed
    rate: float = 0.0  # rho^m of the last search; 0.0 if no loss was low enough
    failures: int = 0  # searches without a step
    inverse: np.ndarray = field(init=False)  # B
    residual: np.ndarray = field(init=False)  # r (M,)

    def __post_init__(self) -> None:
        choice("failure", self.failure, ("reset", "rollback"))
        self.basis = np.asarray(self.basis, np.float64)
        components, numbers = self.basis.shape
        self.inverse = np.eye(components)
        self.residual = np.zeros(numbers)

    def update(self, weights: np.ndarray, gradient: np.ndarray, loss_of: LossOf) -> np.ndarray:
        """Return the new weights (M,). ``loss_of``: weights -> loss of the update's rows."""
        projected, inverse = self.basis @ gradient, self.inverse
        if self.pair is not None:
            last, s = self.pair
            y = projected - last
            if y @ s > self.curvature * np.linalg.norm(y) * np.linalg.norm(s):
                inverse = bfgs_inverse(inverse, s, y)
        direction = -inverse @ projected
        slope, before = projected @ direction, loss_of(weights)
        self.made, self.rate = 0, 0.0
        while slope < 0 and not self.rate and self.made < self.trials:
            rate = self.rho**self.made
            self.made += 1
            loss = loss_of(weights + rate * (self.basis.T @ direction))
            if loss < before + self.sigma * rate * slope:
                self.rate = rate
        if self.rate:
            self.inverse, self.pair = inverse, (projected, self.rate * direction)
        else:
            self.failures += 1
            if self.failure == "reset":
                self.inverse, self.pair = np.eye(len(direction)), None
        outside = gradient - self.basis.T @ projected
        self.residual = self.gamma * self.residual + outside
        moved = weights + self.basis.T @ (self.rate * direction)
        return self.optimizer(moved, self.alpha * self.residual)


def projected_gradient(basis: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return P^T P g (M,), which projected SGD passes to the optimizer."""
    return basis.T @ (basis @ np.asarray(gradient, np.float64))


class PrincipalComponents(NamedTuple):
    """matrix (K, M) with orthonormal rows; variance (K,), largest first; total_variance of all."""

    matrix: np.ndarray
    variance: np.ndarray
    total_variance: float


def principal_components(snapshots: np.ndarray, components: int) -> PrincipalComponents:
    """Return the first K principal components of snapshots (N, M), one snapshot per row.

    A = X - mean of the rows = U diag(s) W^T;  row k is w_k, its variance s_k^2 / (N - 1).

    The sign of a row is such that the last snapshot lies on its positive side.
    """
    rows = np.asarray(snapshots, np.float64)
    if rows.ndim != 2 or len(rows) <= components:
        raise InputError(f"snapshots: expected (N, M) with N > {components}, got {rows.shape}")
    left, values, right = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    matrix = np.array(right[:components])
    for k in range(components):
        if left[:, k][np.abs(left[:, k]) > 1e-6][-1] < 0:
            matrix[k] = -matrix[k]
    variance = values**2 / (len(rows) - 1)
    return PrincipalComponents(matrix, variance[:components], float(variance.sum()))


def reconstruct(matrix: np.ndarray, mean: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the point of the subspace nearest to weights (M,): mean + P^T P (weights - mean)."""
    difference = np.asarray(weights, np.float64) - mean
    return mean + matrix.T @ (matrix @ difference)
