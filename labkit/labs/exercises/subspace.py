"""Exercises of lab 05, dimension reduction: plain specifications, cases, learners' mistakes."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from labkit import reference
from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Exercise, draw


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


def _snapshots(seed: int, count: int, numbers: int) -> np.ndarray:
    return 3 + np.cumsum(draw(seed, count, numbers), axis=0)


def _basis(seed: int, components: int, numbers: int) -> np.ndarray:
    return np.linalg.qr(draw(seed, numbers, components))[0].T


def _bfgs_case(seed: int, size: int, sign: int) -> tuple:
    """(inverse, s, y) with y.s of the given sign."""
    half = draw(seed, size, size)
    s, y = draw(seed + 1, 2, size)
    return half @ half.T / size + np.eye(size), s, y * np.sign(y @ s) * sign


_EXPLAINED = [(_snapshots(0, 6, 9), 3), (_snapshots(1, 5, 12), 2), (_snapshots(2, 9, 4), 3)]
_POINTS = [(_basis(3, 2, 7), draw(4, 7), draw(5, 7)), (_basis(6, 4, 9), draw(7, 9), draw(8, 9))]
_SEARCHES = [
    (np.array([1.2, 0.99, 0.93, 0.94, 0.97, 0.55, 0.52]), 1.0, -1.0, 0.5, 0.4),
    (np.array([1.5, 1.25, 1.3]), 1.0, -1.0, 0.5, 0.4),
    (np.array([np.nan, 2.7, 2.55, 2.85]), 3.0, -2.0, 0.55, 0.3),
]
_RESIDUALS = [
    (draw(20, 6), draw(21, 6), _basis(22, 2, 6), 0.9, 0.001),
    (draw(23, 8), draw(24, 8), _basis(25, 3, 8), 0.5, 0.3),
]

EXERCISES = (
    Exercise(explained, _EXPLAINED),
    Exercise(nearest_point, _POINTS),
    Exercise(bfgs, [_bfgs_case(9, 4, 1), _bfgs_case(11, 3, 1), _bfgs_case(13, 3, -1)]),
    Exercise(line_search, _SEARCHES),
    Exercise(residual_update, _RESIDUALS),
    Exercise(first_and_count, [(32, 3, 2), (32, 5, 4), (3, 4, 3), (10, 3, 1)], rtol=1e-9),
)


# Mistakes that learners make.


def _shares(values: np.ndarray, components: int) -> np.ndarray:
    return values[:components] / values.sum()


def _singular(rows: np.ndarray) -> np.ndarray:
    return np.linalg.svd(rows)[1]


def _of_the_first(snapshots: np.ndarray, components: int) -> np.ndarray:
    variance = reference.principal_components(snapshots, components).variance
    return variance / variance.sum()


def _davidon_fletcher_powell(inverse: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not y @ s > 0:
        return inverse
    moved = inverse @ y
    return inverse - np.outer(moved, moved) / (y @ moved) + np.outer(s, s) / (y @ s)


def _left(s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The factor of the rule that stands before the inverse."""
    return np.eye(len(s)) - np.outer(s, y) / (y @ s)


def _last(s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The term of the rule that is added."""
    return np.outer(s, s) / (y @ s)


def _bound_of_a_whole_step(
    losses: Sequence[float], loss: float, slope: float, rho: float, sigma: float
) -> float:
    below = [m for m, trial in enumerate(losses) if trial < loss + sigma * slope]
    return rho ** below[0] if below else 0.0


def _number_of_the_trial(
    losses: Sequence[float], loss: float, slope: float, rho: float, sigma: float
) -> float:
    step = line_search(losses, loss, slope, rho, sigma)
    return round(math.log(step) / math.log(rho)) if step else 0.0


def _times_alpha(residual: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    return residual, alpha * residual


def _newest_only(
    residual: np.ndarray, gradient: np.ndarray, basis: np.ndarray, gamma: float, alpha: float
) -> tuple[np.ndarray, np.ndarray]:
    new, _ = residual_update(residual, gradient, basis, gamma, alpha)
    return new, alpha * (new - gamma * residual)


def _running_mean(
    residual: np.ndarray, gradient: np.ndarray, basis: np.ndarray, gamma: float, alpha: float
) -> tuple[np.ndarray, np.ndarray]:
    outside, _ = residual_update(0 * residual, gradient, basis, gamma, alpha)
    return _times_alpha(gamma * residual + (1 - gamma) * outside, alpha)


def _rest_to_the_last(components: int, ranks: int, rank: int) -> tuple[int, int]:
    room = components // ranks
    first = rank * room
    return first, components - first if rank == ranks - 1 else room


def _spread(components: int, ranks: int, rank: int) -> tuple[int, int]:
    parts = np.array_split(np.arange(components), ranks)
    return sum(map(len, parts[:rank])), len(parts[rank])


HINTS = {
    "explained": (
        (lambda x, components: _shares(_singular(x) ** 2, components),
         "the first direction is that of the mean: are the rows centred?"),
        (lambda x, components: _shares(
            _singular(x - x.mean(axis=1, keepdims=True)) ** 2, components),
         "which mean was taken away: of a snapshot, or over the snapshots?"),
        (lambda x, components: _shares(_singular(x - x.mean(axis=0)), components),
         "shares of lengths; how does a variance grow with a length?"),
        (_of_the_first, "they add up to 1: is there no variance outside these components?"),
        (lambda x, components: np.cumsum(explained(x, components)),
         "these are running sums: what is the share of each one alone?"),
        (lambda x, components: reference.principal_components(x, components).variance,
         "these are variances, not yet shares"),
    ),
    "nearest_point": (
        (lambda basis, mean, weights: basis.T @ (basis @ weights),
         "that plane goes through 0: does it go through the mean?"),
        (lambda basis, mean, weights: basis.T @ (basis @ (weights - mean)),
         "a difference from the mean: where is the point itself?"),
        (lambda basis, mean, weights: mean + basis.T @ (basis @ weights),
         "the mean is counted twice: what is it that is projected?"),
        (lambda basis, mean, weights: weights - nearest_point(basis, mean, weights),
         "that is what the subspace cannot express"),
        (lambda basis, mean, weights: mean - basis.T @ (basis @ (weights - mean)),
         "the mirror image, on the other side of the mean"),
    ),
    "bfgs": (
        (lambda inverse, s, y: reference.bfgs_inverse(inverse, s, y),
         "after this pair B is not positive definite: which pairs are let in?"),
        (lambda inverse, s, y: reference.bfgs_inverse(inverse, y, s) if y @ s > 0 else inverse,
         "B s is y now: is B the Hessian, or its inverse?"),
        (_davidon_fletcher_powell, "B y is s, as it should, but this is another rule (DFP's)"),
        (lambda inverse, s, y: _left(s, y) @ inverse @ _left(s, y).T,
         "B y is 0 now: what has become of s?"),
        (lambda inverse, s, y: _left(s, y) @ inverse + _last(s, y), "B is not symmetric any more"),
        (lambda inverse, s, y: _left(s, y).T @ inverse @ _left(s, y) + _last(s, y),
         "B y is not s: in which order do the two factors stand?"),
    ),
    "line_search": (
        (lambda losses, loss, slope, rho, sigma: line_search(losses, loss, 0.0, rho, sigma),
         "any decrease is taken: how much does the slope foresee?"),
        (_bound_of_a_whole_step, "a short step is asked for as much as a whole one"),
        (lambda losses, loss, slope, rho, sigma: line_search(losses, loss, -slope, rho, sigma),
         "the bound lies above the loss: which sign has the slope?"),
        (lambda losses, loss, slope, rho, sigma: rho ** int(np.nanargmin(losses)),
         "that is the lowest loss of all; when does the search stop?"),
        (_number_of_the_trial, "that is m; how far does trial m go?"),
        (lambda losses, loss, slope, rho, sigma: (
            line_search(losses, loss, slope, rho, sigma) or rho ** (len(losses) - 1)),
         "no trial was low enough, and one was taken all the same"),
    ),
    "residual_update": (
        (lambda residual, gradient, basis, gamma, alpha: _times_alpha(
            gamma * residual + gradient, alpha),
         "what lies in the subspace is in it too: who else moves along that?"),
        (lambda residual, gradient, basis, gamma, alpha: _times_alpha(
            gamma * residual + reference.projected_gradient(basis, gradient), alpha),
         "that is the part inside the subspace, which the search has had"),
        (lambda residual, *others: residual_update(0 * residual, *others),
         "what came before is forgotten: what is gamma for?"),
        (_newest_only, "the optimizer gets the newest part only"),
        (lambda residual, gradient, basis, gamma, alpha: (
            residual_update(residual, gradient, basis, gamma, alpha)[0], alpha * residual),
         "the optimizer gets the residual of the update before"),
        (_running_mean,
         "gamma and what is left of 1 weigh old and new: does the equation weigh both?"),
    ),
    "first_and_count": (
        (lambda components, ranks, rank: (rank * (components // ranks), components // ranks),
         "some components are nobody's now"),
        (lambda components, ranks, rank: (rank * -(-components // ranks), -(-components // ranks)),
         "this rank asks for components that are not there"),
        (_rest_to_the_last, "the last rank has more than it has room for"),
        (_spread, "the room is not the same for all ranks"),
    ),
}  # fmt: skip


def check(name: str, attempt: Callable) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 05; see ``check.check``."""
    return checks.check(EXERCISES, name, attempt, HINTS)
