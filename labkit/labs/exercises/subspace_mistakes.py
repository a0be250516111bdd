"""Mistakes that learners make in the exercises of lab 05, which its hints are for."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from labkit import reference
from labkit.labs.exercises.on_lenet import OnLeNet
from labkit.labs.exercises.subspace_specs import by_parameter, line_search, weights_of


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
    """-B g, B made by ``update(B, s, y)`` of the pairs whose product is above ``least``."""
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
    """As ``lenet_search``, in MindSpore, with one thing otherwise."""
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
