"""Exercises of lab 05, dimension reduction: specifications, slow and plain, and public cases."""

from collections.abc import Callable, Sequence

import numpy as np

from labkit import reference
from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Exercise


def explained(snapshots: np.ndarray, components: int) -> np.ndarray:
    """Share of the variance of snapshots (N, M) along each of their first K components, (K,)."""
    pca = reference.principal_components(snapshots, components)
    return pca.variance / pca.total_variance


def nearest_point(basis: np.ndarray, mean: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The point of the subspace through ``mean`` that is nearest to weights (M,)."""
    return reference.reconstruct(basis, mean, weights)


def bfgs(inverse: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """BFGS update of the inverse Hessian; where y.s is not positive, ``inverse`` as it is."""
    return reference.bfgs_inverse(inverse, s, y) if y @ s > 0 else inverse


def line_search(
    losses: Sequence[float], loss: float, slope: float, rho: float, sigma: float
) -> float:
    """rho^m of the first m with losses[m] < loss + sigma rho^m slope; 0.0 where there is none."""
    for m, trial in enumerate(losses):
        if trial < loss + sigma * rho**m * slope:
            return rho**m
    return 0.0


def residual_update(
    residual: np.ndarray, gradient: np.ndarray, basis: np.ndarray, gamma: float, alpha: float
) -> tuple[np.ndarray, np.ndarray]:
    """r <- gamma r + (g - P^T P g). Returns (r, alpha r), the latter is what the optimizer gets."""
    outside = gradient - reference.projected_gradient(basis, gradient)
    residual = gamma * residual + outside
    return residual, alpha * residual


def first_and_count(components: int, ranks: int, rank: int) -> tuple[int, int]:
    """(first component, how many): every rank has room for K / ranks, rounded up, in order."""
    room = -(-components // ranks)
    first = rank * room
    return first, max(0, min(room, components - first))


def _draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def _snapshots(seed: int, count: int, numbers: int) -> np.ndarray:
    return 3 + np.cumsum(_draw(seed, count, numbers), axis=0)


def _basis(seed: int, components: int, numbers: int) -> np.ndarray:
    return np.linalg.qr(_draw(seed, numbers, components))[0].T


def _bfgs_case(seed: int, size: int, sign: int) -> tuple:
    """(inverse, s, y) with y.s of the given sign."""
    half = _draw(seed, size, size)
    s, y = _draw(seed + 1, 2, size)
    return half @ half.T / size + np.eye(size), s, y * np.sign(y @ s) * sign


_EXPLAINED = [(_snapshots(0, 6, 9), 3), (_snapshots(1, 5, 12), 2), (_snapshots(2, 9, 4), 3)]
_POINTS = [(_basis(3, 2, 7), _draw(4, 7), _draw(5, 7)), (_basis(6, 4, 9), _draw(7, 9), _draw(8, 9))]
_SEARCHES = [
    (np.array([1.2, 0.99, 0.93, 0.94, 0.97, 0.55, 0.52]), 1.0, -1.0, 0.5, 0.4),
    (np.array([1.5, 1.25, 1.3]), 1.0, -1.0, 0.5, 0.4),
    (np.array([np.nan, 2.7, 2.55, 2.85]), 3.0, -2.0, 0.55, 0.3),
]
_RESIDUALS = [
    (_draw(20, 6), _draw(21, 6), _basis(22, 2, 6), 0.9, 0.001),
    (_draw(23, 8), _draw(24, 8), _basis(25, 3, 8), 0.5, 0.3),
]

EXERCISES = (
    Exercise(explained, _EXPLAINED),
    Exercise(nearest_point, _POINTS),
    Exercise(bfgs, [_bfgs_case(9, 4, 1), _bfgs_case(11, 3, 1), _bfgs_case(13, 3, -1)]),
    Exercise(line_search, _SEARCHES),
    Exercise(residual_update, _RESIDUALS),
    Exercise(first_and_count, [(32, 3, 2), (32, 5, 4), (3, 4, 3), (10, 3, 1)], rtol=1e-9),
)


def check(name: str, attempt: Callable) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 05; see ``check.check``."""
    from labkit.labs.exercises.mistakes.subspace import HINTS  # made of the functions above

    return checks.check(EXERCISES, name, attempt, HINTS)
