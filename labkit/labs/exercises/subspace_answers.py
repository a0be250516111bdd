"""Answers to the exercises of lab 05: plain, slow specifications, and learners' mistakes."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from labkit import reference
from labkit.labs.exercises.on_lenet import OnLeNet, by_parameter


def swa(average: np.ndarray, count: int, weights: np.ndarray) -> np.ndarray:
    """Mean of ``count`` snapshots whose mean is ``average`` and one more, ``weights``."""
    return (count * average + weights) / (count + 1)


def explained(snapshots: np.ndarray, components: int) -> np.ndarray:
    """Share of the variance of snapshots (N, M) along each of the first K components, (K,)."""
    pca = reference.principal_components(snapshots, components)
    return pca.variance / pca.total_variance


def nearest_point(basis: np.ndarray, mean: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The point of the subspace through ``mean`` that is nearest to weights (M,)."""
    return reference.reconstruct(basis, mean, weights)


def line_search(
    losses: Sequence[float], loss: float, slope: float, rho: float, sigma: float
) -> float:
    """rho^m of the first m with losses[m] < loss + sigma rho^m slope; 0.0 if there is none."""
    for m, trial in enumerate(losses):
        if trial < loss + sigma * rho**m * slope:
            return rho**m
    return 0.0


def lenet_average(lenet: OnLeNet, sizes: Sequence[int], updates: int) -> list[np.ndarray]:
    """Mean of the weights after each update; the micro-batches take turns."""
    return averaged(lenet, sizes, updates, lambda rows: rows[1:].mean(axis=0))


def averaged(
    lenet: OnLeNet, sizes: Sequence[int], updates: int, weigh: Callable
) -> list[np.ndarray]:
    """Apply ``weigh`` to the weights (updates + 1, M), the initial ones and after each update."""
    rows = [weights_of(lenet)]
    for number in range(updates):
        lenet.update(lenet.gradients(*lenet.micro_batches(sizes)[number % len(sizes)]))
        rows.append(weights_of(lenet))
    return by_parameter(lenet, weigh(np.array(rows)))


def direction(gradient: np.ndarray, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """-B g (K,), where B is I updated with each pair (s, y) whose scalar product is positive."""
    return after(gradient, pairs)


def lenet_search(
    lenet: OnLeNet, basis: np.ndarray, rho: float, sigma: float
) -> tuple[float, float]:
    """Search once along -P^T P g with float64 gradients; return (step size, loss there)."""
    (batch,) = lenet.micro_batches([12])
    images, labels = (part.asnumpy() for part in batch)
    names = [parameter.name for parameter in lenet.parameters]

    def at(weights: np.ndarray) -> tuple[float, np.ndarray]:
        by_name = dict(zip(names, by_parameter(lenet, weights), strict=True))
        loss, slopes, _ = reference.lenet_gradients(by_name, images, labels)
        return loss, np.concatenate([slopes[name].ravel() for name in names])

    search = reference.ProjectedBFGS(basis, rho=rho, sigma=sigma, alpha=0.0)
    start = weights_of(lenet)
    moved = search.update(start, at(start)[1], lambda weights: at(weights)[0])
    return search.rate, at(moved)[0]


def weights_of(lenet: OnLeNet) -> np.ndarray:
    """All weights in one vector, a float64 copy."""
    parts = [parameter.asnumpy().ravel() for parameter in lenet.parameters]
    return np.concatenate(parts).astype(np.float64)


# Mistakes that learners make.


def shares(values: np.ndarray, components: int) -> np.ndarray:
    return values[:components] / values.sum()


def singular(rows: np.ndarray) -> np.ndarray:
    return np.linalg.svd(rows)[1]


def of_the_first(snapshots: np.ndarray, components: int) -> np.ndarray:
    variance = reference.principal_components(snapshots, components).variance
    return variance / variance.sum()


def bound_of_a_whole_step(
    losses: Sequence[float], loss: float, slope: float, rho: float, sigma: float
) -> float:
    below = [m for m, trial in enumerate(losses) if trial < loss + sigma * slope]
    return rho ** below[0] if below else 0.0


def number_of_the_trial(
    losses: Sequence[float], loss: float, slope: float, rho: float, sigma: float
) -> float:
    step = line_search(losses, loss, slope, rho, sigma)
    return round(math.log(step) / math.log(rho)) if step else 0.0


def forgetting(rows: np.ndarray) -> np.ndarray:
    average = rows[0]
    for row in rows[1:]:
        average = 0.9 * average + 0.1 * row
    return average


def after(
    gradient: np.ndarray,
    pairs: Sequence,
    update: Callable = reference.bfgs_inverse,
    *,
    scaled: bool = False,
    least: float = 0.0,
) -> np.ndarray:
    """-B g, where ``update(B, s, y)`` builds B from the pairs with s.y above ``least``."""
    inverse = np.eye(len(gradient))
    for number, (s, y) in enumerate(pair for pair in pairs if pair[0] @ pair[1] > least):
        if scaled and number == 0:
            inverse = inverse * (y @ s) / (y @ y)
        inverse = update(inverse, s, y)
    return -inverse @ gradient


def davidon_fletcher_powell(inverse: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    moved = inverse @ y
    return inverse - np.outer(moved, moved) / (y @ moved) + np.outer(s, s) / (y @ s)


def searched(
    lenet: OnLeNet,
    basis: np.ndarray,
    rho: float,
    sigma: float,
    *,
    sign: float = -1.0,
    kept: bool = True,
    projected: bool = True,
    answer: Callable = lambda m, size, losses: (size, losses[-1]),
) -> tuple[float, float]:
    """``lenet_search`` in MindSpore, with one mistake that the options select."""
    from mindspore import Tensor, ops

    (batch,) = lenet.micro_batches([12])
    start = weights_of(lenet)
    gradient = np.concatenate([g.asnumpy().ravel() for g in lenet.gradients(*batch)])
    gradient = gradient.astype(np.float64)
    move = sign * (reference.projected_gradient(basis, gradient) if projected else gradient)
    slope, losses, place = gradient @ move, [lenet.loss(*batch)], start
    for m in range(20):
        place = (start if kept else place) + rho**m * move
        for parameter, value in zip(lenet.parameters, by_parameter(lenet, place), strict=True):
            ops.assign(parameter, Tensor(value.astype(np.float32)))
        losses.append(lenet.loss(*batch))
        if losses[-1] < losses[0] + sigma * rho**m * slope or sigma > 1:
            return answer(m, rho**m, losses)
    return 0.0, losses[0]
