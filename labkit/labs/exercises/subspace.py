"""Exercises of lab 05, dimension reduction: plain specifications, cases, learners' mistakes."""

from collections.abc import Callable, Sequence

import numpy as np

from labkit import reference
from labkit.labs.exercises import on_lenet
from labkit.labs.exercises.check import Exercise, draw, of_lab
from labkit.labs.exercises.on_lenet import OnLeNet
from labkit.labs.flat_lenet import FlatLeNet


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


def lenet_average(
    lenet: OnLeNet,
    sizes: Sequence[int],
    updates: int,
    *,
    weigh: Callable = lambda rows: rows[1:].mean(axis=0),
) -> list[np.ndarray]:
    """Mean of the weights after each update; the micro-batches take turns.

    ``weigh`` averages the weights (updates + 1, M), the initial ones and after each update.
    """
    rows = [_vector(on_lenet.arrays(lenet))]
    for number in range(updates):
        lenet.update(lenet.gradients(*lenet.micro_batches(sizes)[number % len(sizes)]))
        rows.append(_vector(on_lenet.arrays(lenet)))
    return on_lenet.by_parameter(lenet, weigh(np.array(rows)))


def _vector(parts: Sequence[np.ndarray]) -> np.ndarray:
    """All numbers in one vector, a float64 copy."""
    return np.concatenate([part.ravel() for part in parts]).astype(np.float64)


def _forgetting(rows: np.ndarray) -> np.ndarray:
    average = rows[0]
    for row in rows[1:]:
        average = 0.9 * average + 0.1 * row
    return average


def lenet_search(
    lenet: OnLeNet,
    basis: np.ndarray | None,
    rho: float,
    sigma: float,
    *,
    sign: float = -1.0,
    kept: bool = True,
) -> tuple[float, float]:
    """Search once along -P^T P g with float64 gradients; return (step size, loss there).

    ``basis=None`` is a mistake that follows the whole gradient.
    """
    batch = [part.asnumpy() for part in lenet.micro_batches([on_lenet.IMAGES])[0]]
    flat, start = FlatLeNet(), _vector(on_lenet.arrays(lenet))
    place, (first, gradient) = start, flat.gradient(start, *batch)
    move = sign * (gradient if basis is None else reference.projected_gradient(basis, gradient))
    for m in range(20):
        place = (start if kept else place) + rho**m * move
        loss, _ = flat.gradient(place, *batch)
        if loss < first + sigma * rho**m * (gradient @ move) or sigma > 1:
            return rho**m, loss
    return 0.0, first


def _basis(seed: int, components: int, numbers: int) -> np.ndarray:
    return np.linalg.qr(draw(seed, numbers, components))[0].T


def _of_biases(seed: int) -> np.ndarray:
    """Three orthonormal directions (3, 61684) among the ten biases of LeNet's last layer."""
    return np.hstack([np.zeros((3, 61_674)), _basis(seed, 3, 10)])


_POINTS = [(_basis(3, 2, 7), draw(4, 7), draw(5, 7)), (_basis(6, 4, 9), draw(7, 9), draw(8, 9))]
_SEARCHES = [
    (np.array([1.2, 0.99, 0.93, 0.94, 0.97, 0.55, 0.52]), 1.0, -1.0, 0.5, 0.4),
    (np.array([1.5, 1.25, 1.3]), 1.0, -1.0, 0.5, 0.4),
    (np.array([np.nan, 2.7, 2.55, 2.85]), 3.0, -2.0, 0.55, 0.3),
]
_LENETS = [(OnLeNet(1), _of_biases(3), 0.55, 0.4), (OnLeNet(2), _of_biases(4), 0.5, 0.97)]
_LENETS += [(OnLeNet(1), np.empty((0, 61_684)), 0.55, 0.4)]  # the example: nowhere to go

EXERCISES = (
    Exercise(nearest_point, _POINTS, {
        "basis.T @ (basis @ weights)": "that plane goes through 0: does it go through the mean?",
        "right - mean": "a difference from the mean: where is the point itself?",
        "mean + basis.T @ (basis @ weights)":
            "the mean is counted twice: what is it that is projected?",
        "weights - right": "that is what the subspace cannot express",
        "2 * mean - right": "the mirror image, on the other side of the mean",
    }),
    Exercise(line_search, _SEARCHES, {
        "line_search(losses, loss, 0.0, rho, sigma)":
            "any decrease is taken: how much does the slope predict?",
        "next((rho**m for m, x in enumerate(losses) if x < loss + sigma * slope), 0.0)":
            "a short step is asked for as much as a whole one",
        "line_search(losses, loss, -slope, rho, sigma)":
            "the bound lies above the loss: which sign has the slope?",
        "rho ** int(np.nanargmin(losses))":
            "that is the lowest loss of all; when does the search stop?",
        "round(np.log(right or 1) / np.log(rho))": "that is m; how far does trial m go?",
        "right or rho ** (len(losses) - 1)":
            "no trial was low enough, and one was taken all the same",
    }),
    Exercise(lenet_average, [(OnLeNet(1), [4, 4, 4], 5)], {
        "lenet_average(lenet, sizes, min(updates, len(sizes)))":
            "it stops after the last micro-batch: whose turn is it then?",
        "lenet_average(lenet, sizes, updates, weigh=lambda rows: rows[-1])":
            "the last weights: is every snapshot a copy, and is the mean taken over all?",
        "lenet_average(lenet, sizes, updates, weigh=lambda rows: rows.mean(axis=0))":
            "the initial weights are in it too: no update has made them",
        "lenet_average(lenet, sizes, updates, weigh=lambda rows: rows[:-1].mean(axis=0))":
            "each snapshot is taken before its update, not after",
        "lenet_average(lenet, sizes, updates, weigh=lambda rows: rows[1:].sum(axis=0))":
            "a sum: it grows with the number of snapshots",
        "lenet_average(lenet, sizes, updates, weigh=_forgetting)":
            "an average that forgets: every snapshot should count alike",
        "on_lenet.arrays(lenet)": "the weights are as they were: was the optimizer called?",
    }, rtol=1e-5),  # float32: after the updates the weights are off by 1e-6 of the largest
    Exercise(lenet_search, _LENETS, {
        "lenet_search(lenet, basis, rho, sigma=2.0)":
            "the whole step was taken, whatever its loss: which decrease is asked for?",
        "lenet_search(lenet, basis, rho, sigma, sign=1.0)":
            "no step was found: does the direction lead downhill?",
        "lenet_search(lenet, basis, rho, sigma, kept=False)":
            "a refused trial stays in the weights: where does the next one start?",
        "lenet_search(lenet, None, rho, sigma)":
            "that is a step along the whole gradient: what is the basis for?",
        "(right[0] and round(np.log(right[0]) / np.log(rho)), right[1])":
            "that is m; how far does trial m go?",
    }, rtol=1e-4),  # float32 against float64: losses near 2.3 that differ by 1e-7
)  # fmt: skip

check, hint = of_lab(EXERCISES)
