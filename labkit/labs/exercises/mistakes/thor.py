"""Mistakes that learners make in lab 03, THOR."""

import math
from collections.abc import Callable

import numpy as np

from labkit.labs.exercises.thor import (
    block_inverse,
    decide,
    mean_eigenvalue,
    patch_factor,
    pi_damping,
    trace,
    trace_decision,
    unscaled_factor,
)


def _mean_patches(patches: np.ndarray) -> np.ndarray:
    mean = patches.mean(axis=0)
    return mean @ mean.T / patches.shape[2]


def _mean_derivatives(derivatives: np.ndarray, loss_scale: float) -> np.ndarray:
    mean = derivatives.sum(axis=0) / loss_scale  # of each row's own loss
    return np.outer(mean, mean)


def _blocks(matrix: np.ndarray, size: int) -> np.ndarray:
    number = np.arange(len(matrix)) // size
    return np.where(number[:, None] == number, matrix, 0.0)


def _equal_size(factor: np.ndarray, split: int) -> int:
    return math.ceil(len(factor) / math.ceil(len(factor) / split))


def _damped_inverse(factor: np.ndarray, damping: float) -> np.ndarray:
    return np.linalg.inv(factor + damping * np.eye(len(factor)))


def _share(pi: float, positions: int, damping: float) -> tuple[float, float]:
    return pi * math.sqrt(damping / positions), math.sqrt(damping / positions) / pi


def _counted(count: int, updates: int, refresh: float, cached: float) -> tuple[int, float]:
    return count, (count * refresh + (updates - count) * cached) / updates


def _count(updates: int, frequency: int) -> int:
    return len(range(0, updates, frequency))


def _by_change(change_of: Callable) -> Callable:
    """A decision by ``change_of(trace, last)``."""

    def decision(
        a: np.ndarray, g: np.ndarray, positions: int, damping: float, *limits: float
    ) -> tuple[float, int]:
        last, high, low = limits
        change = change_of(trace(a, g, positions, damping), last)
        return change, 1 if change > high else -1 if change < low else 0

    return decision


HINTS = {
    "patch_factor": (
        (_mean_patches, "the patches were averaged over the batch first: that forgets the batch"),
        (lambda patches: patch_factor(patches) * patches.shape[2],
         "a mean over rows; what about the positions?"),
        (lambda patches: patch_factor(patches) * len(patches),
         "a mean over positions; what about the rows?"),
        (lambda p: patch_factor(p) * len(p) * p.shape[2] / p.shape[1],
         "divided by the width of the layer: that is no number of samples"),
    ),
    "unscaled_factor": (
        (lambda derivatives, loss_scale: loss_scale * unscaled_factor(derivatives, loss_scale),
         "G is quadratic in the derivatives: how often is the scale in it?"),
        (lambda derivatives, loss_scale: unscaled_factor(derivatives, 1.0),
         "the loss scale is still in it"),
        (lambda d, loss_scale: unscaled_factor(d, loss_scale) / len(d) ** 2,
         "these are derivatives of the mean loss: how much larger are those of one row's?"),
        (lambda d, loss_scale: unscaled_factor(d, loss_scale) * len(d),
         "a sum over the rows: it grows with the batch, and G must not"),
        (_mean_derivatives, "the derivatives were averaged first: that forgets the batch"),
    ),
    "block_inverse": (
        (lambda factor, damping, split: _blocks(
            _damped_inverse(factor, damping), _equal_size(factor, split)),
         "blocks of the inverse are not inverses of the blocks"),
        (lambda factor, damping, split: _damped_inverse(_blocks(factor, split), damping),
         "blocks of `split` and a rest: these are not as equal as possible"),
        (lambda factor, damping, split: np.linalg.inv(
            _blocks(factor + damping, _equal_size(factor, split))),
         "the damping was added to every entry: where does it belong?"),
        (lambda factor, damping, split: block_inverse(factor, 0.0, split),
         "there is no damping in it"),
    ),
    "pi_damping": (
        (lambda a, g, positions, damping: pi_damping(g, a, positions, damping),
         "the factor with the larger eigenvalues is to get the larger damping"),
        (lambda a, g, positions, damping: _share(
            math.sqrt(np.trace(a) / np.trace(g)), positions, damping),
         "the mean eigenvalue is the trace over what?"),
        (lambda a, g, positions, damping: _share(
            mean_eigenvalue(a) / mean_eigenvalue(g), positions, damping),
         "that is pi squared"),
        (lambda a, g, positions, damping: pi_damping(a, g, 1, damping),
         "the positions T are missing"),
        (lambda a, g, positions, damping: _share(1.0, positions, damping),
         "both got the same: where is pi?"),
    ),
    "refreshes_and_mean_time": (
        (lambda updates, frequency, *times: _counted(updates // frequency, updates, *times),
         "update 0 refreshes too: is the last, incomplete stretch counted?"),
        (lambda updates, frequency, *times: _counted(updates // frequency + 1, updates, *times),
         "is there one more when the frequency divides the updates?"),
        (lambda n, frequency, refresh, cached: (
            _count(n, frequency), cached + _count(n, frequency) * refresh / n),
         "an update with refresh takes `refresh` in all, not on top"),
        (lambda n, frequency, refresh, cached: (
            _count(n, frequency), cached + (refresh - cached) / frequency),
         "right in the long run; here the refreshes can be counted"),
    ),
    "trace_decision": (
        (lambda *case: (trace_decision(*case)[0], -trace_decision(*case)[1]),
         "a layer whose trace hardly changes is the one to freeze"),
        (_by_change(lambda now, last: (now - last) / last),
         "a trace that falls has changed as well"),
        (_by_change(lambda now, last: abs(now - last)),
         "the thresholds are for the relative change"),
        (_by_change(lambda now, last: abs(now - last) / now),
         "relative to the last refresh's trace, not to the new one"),
        (lambda a, g, positions, damping, *limits: decide(trace(a, g, positions, 0.0), *limits),
         "the damping is in both traces, in the last one and in the new one"),
        (lambda a, g, positions, damping, *limits: decide(
            trace(a, g, positions, damping / (len(a) * len(g))), *limits),
         "lambda I has a trace: how large is I?"),
        (lambda a, g, positions, damping, *limits: decide(trace(a, g, 1, damping), *limits),
         "the positions T are not in F"),
    ),
}  # fmt: skip
