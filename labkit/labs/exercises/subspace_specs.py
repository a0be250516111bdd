"""What the exercises of lab 05 ask for: plain, slow specifications."""

from collections.abc import Callable, Sequence

import numpy as np

from labkit import reference
from labkit.labs.exercises.on_lenet import OnLeNet


def swa(average: np.ndarray, count: int, weights: np.ndarray) -> np.ndarray:
    """The mean of ``count`` snapshots whose mean is ``average``, and of one more."""
    return (count * average + weights) / (count + 1)


def explained(snapshots: np.ndarray, components: int) -> np.ndarray:
    """Share of the variance of snapshots (N, M) along each of their first K components, (K,)."""
    pca = reference.principal_components(snapshots, components)
    return pca.variance / pca.total_variance


def nearest_point(basis: np.ndarray, mean: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The point of the subspace through ``mean`` that is nearest to weights (M,)."""
    return reference.reconstruct(basis, mean, weights)


def line_search(
    losses: Sequence[float], loss: float, slope: float, rho: float, sigma: float
) -> float:
    """rho^m of the first m with losses[m] < loss + sigma rho^m slope; 0.0 where there is none."""
    for m, trial in enumerate(losses):
        if trial < loss + sigma * rho**m * slope:
            return rho**m
    return 0.0


def lenet_average(lenet: OnLeNet, sizes: Sequence[int], updates: int) -> list[np.ndarray]:
    """The mean of the weights after each update, micro-batches in turn."""
    return averaged(lenet, sizes, updates, lambda rows: rows[1:].mean(axis=0))


def averaged(
    lenet: OnLeNet, sizes: Sequence[int], updates: int, weigh: Callable
) -> list[np.ndarray]:
    """What ``weigh`` makes of the weights (updates + 1, M) before and after each update."""
    rows = [weights_of(lenet)]
    for number in range(updates):
        lenet.update(lenet.gradients(*lenet.micro_batches(sizes)[number % len(sizes)]))
        rows.append(weights_of(lenet))
    return by_parameter(lenet, weigh(np.array(rows)))


def direction(gradient: np.ndarray, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """-B g (K,), B = I updated by each pair (s, y) whose product is positive."""
    inverse = np.eye(len(gradient))
    for s, y in pairs:
        if y @ s > 0:
            inverse = reference.bfgs_inverse(inverse, s, y)
    return -inverse @ gradient


def lenet_search(
    lenet: OnLeNet, basis: np.ndarray, rho: float, sigma: float
) -> tuple[float, float]:
    """One search along -P^T P g, by float64 gradients: (step size, loss there)."""
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


def by_parameter(lenet: OnLeNet, vector: np.ndarray) -> list[np.ndarray]:
    """A vector of all weights as an array for each parameter."""
    ends = np.cumsum([parameter.size for parameter in lenet.parameters])[:-1]
    parts = zip(lenet.parameters, np.split(vector, ends), strict=True)
    return [part.reshape(parameter.shape) for parameter, part in parts]
