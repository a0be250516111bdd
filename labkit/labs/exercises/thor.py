"""Exercises of lab 03, THOR: plain specifications, cases, learners' mistakes."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from labkit import reference
from labkit.labs.exercises import check as checks
from labkit.labs.exercises import thor_on_lenet
from labkit.labs.exercises.check import Advice, Exercise, draw
from labkit.labs.exercises.thor_on_lenet import OnTappedLeNet, lenet_factors, lenet_thor


def patch_factor(patches: np.ndarray) -> np.ndarray:
    """A = sum over rows and positions of p p^T / (N T), for patches (N, inputs, T)."""
    total = np.zeros((patches.shape[1],) * 2)
    for row in range(len(patches)):
        for position in range(patches.shape[2]):
            total += np.outer(patches[row, :, position], patches[row, :, position])
    return total / (patches.shape[0] * patches.shape[2])


def unscaled_factor(derivatives: np.ndarray, loss_scale: float) -> np.ndarray:
    """G = N^2 sum d d^T / N for derivatives d of the mean loss; ``derivatives`` is loss_scale d."""
    own = len(derivatives) * derivatives / loss_scale  # the derivatives of each row's loss
    total = np.zeros((derivatives.shape[1],) * 2)
    return sum((np.outer(d, d) for d in own), start=total) / len(derivatives)


def block_inverse(factor: np.ndarray, damping: float, split: int) -> np.ndarray:
    """Damp and invert the diagonal blocks of ceil(n / ceil(n / split)) rows; zeros elsewhere."""
    return reference.damped_inverse(reference.block_diagonal(factor, split), damping)


def pi_damping(
    a_factor: np.ndarray, g_factor: np.ndarray, positions: int, damping: float
) -> tuple[float, float]:
    """(pi sqrt(damping / T), sqrt(damping / T) / pi); pi^2 is the ratio of mean eigenvalues."""
    pi = math.sqrt(mean_eigenvalue(a_factor) / mean_eigenvalue(g_factor))
    return pi * math.sqrt(damping / positions), math.sqrt(damping / positions) / pi


def mean_eigenvalue(factor: np.ndarray) -> float:
    """Mean of the eigenvalues of a symmetric matrix, from its diagonal."""
    return np.trace(factor) / len(factor)


def refreshes_and_mean_time(
    updates: int, frequency: int, refresh: float, cached: float
) -> tuple[int, float]:
    """Number of refreshes (updates 0, frequency, ... below ``updates``) and mean time."""
    times = [refresh if update % frequency == 0 else cached for update in range(updates)]
    return len(range(0, updates, frequency)), sum(times) / updates


def trace_decision(
    a_factor: np.ndarray,
    g_factor: np.ndarray,
    positions: int,
    damping: float,
    last: float,
    high: float,
    low: float,
) -> tuple[float, int]:
    """(D, decision): relative change of tr(T G (x) A + damping I), and 1, 0 or -1 accordingly."""
    return decide(trace(a_factor, g_factor, positions, damping), last, high, low)


def trace(a_factor: np.ndarray, g_factor: np.ndarray, positions: int, damping: float) -> float:
    """Trace of T G (x) A + damping I, without building the Kronecker product."""
    size = len(a_factor) * len(g_factor)
    return positions * np.trace(a_factor) * np.trace(g_factor) + damping * size


def decide(now: float, last: float, high: float, low: float) -> tuple[float, int]:
    """(D, decision) for a trace that changed from ``last`` to ``now``."""
    change = abs(now - last) / last
    return change, 1 if change > high else -1 if change < low else 0


def _factor(seed: int, n: int) -> np.ndarray:
    vectors = draw(seed, 3 * n, n)
    return vectors.T @ vectors / len(vectors)


def _trace_case(seed: int, change: float) -> tuple:
    """A case whose trace has changed by ``change`` since the last refresh."""
    a_factor, g_factor = _factor(seed, 4), _factor(seed + 1, 3)
    last = trace(a_factor, g_factor, 5, 0.3) / (1 + change)
    return a_factor, g_factor, 5, 0.3, last, 0.01, 0.001


_PATCHES = [(draw(0, 4, 3, 5),), (draw(1, 2, 4, 1),), (draw(2, 3, 2, 7),)]
_DERIVATIVES = [(draw(3, 8, 3), 128.0), (draw(4, 5, 2), 1024.0), (draw(5, 1, 4), 2.0)]
_BLOCKS = [(_factor(5, 10), 0.1, 8), (_factor(6, 10), 0.1, 4), (_factor(7, 3), 0.3, 128)]
_FACTORS = [(_factor(1, 6), 20 * _factor(2, 3), 4, 0.3), (3 * _factor(3, 2), _factor(4, 5), 9, 1)]
_TIMES = [(936, 10, 42.0, 21.0), (7, 3, 30.0, 10.0), (6, 3, 30.0, 10.0), (100, 1, 5.0, 2.0)]
# Above both thresholds and between them, of either sign; below both.
_CHANGES = (0.2, -0.2, 0.004, -0.005, 0.0002)

EXERCISES = (
    Exercise(patch_factor, _PATCHES),
    Exercise(refreshes_and_mean_time, _TIMES, rtol=1e-9),
    Exercise(unscaled_factor, _DERIVATIVES),
    Exercise(block_inverse, _BLOCKS),
    # float32, and 12 images whose derivatives nearly cancel in places.
    Exercise(lenet_factors, [(OnTappedLeNet(1),)], rtol=1e-4),
    Exercise(pi_damping, _FACTORS),
    Exercise(trace_decision, [_trace_case(10 + 2 * i, c) for i, c in enumerate(_CHANGES)]),
    Exercise(lenet_thor, [(OnTappedLeNet(1), 0.1, 2)], rtol=1e-4),
)

hint = Advice(EXERCISES)


# Mistakes that learners make.


def _mean_patches(patches: np.ndarray) -> np.ndarray:
    mean = patches.mean(axis=0)
    return mean @ mean.T / patches.shape[2]


def _mean_derivatives(derivatives: np.ndarray, loss_scale: float) -> np.ndarray:
    mean = derivatives.sum(axis=0) / loss_scale  # mean derivative of the rows' own losses
    return np.outer(mean, mean)


def _share(pi: float, positions: int, damping: float) -> tuple[float, float]:
    return pi * math.sqrt(damping / positions), math.sqrt(damping / positions) / pi


def _counted(count: int, updates: int, refresh: float, cached: float) -> tuple[int, float]:
    return count, (count * refresh + (updates - count) * cached) / updates


def _count(updates: int, frequency: int) -> int:
    return len(range(0, updates, frequency))


def _by_change(change_of: Callable) -> Callable:
    """A ``trace_decision`` that measures the change by ``change_of(trace, last)``."""

    def decision(
        a: np.ndarray, g: np.ndarray, positions: int, damping: float, *limits: float
    ) -> tuple[float, int]:
        last, high, low = limits
        change = change_of(trace(a, g, positions, damping), last)
        return change, 1 if change > high else -1 if change < low else 0

    return decision


HINTS: dict[str, checks.Hints] = {
    "patch_factor": (
        (_mean_patches, "the patches were averaged over the batch first: that forgets the batch"),
        (lambda patches: patch_factor(patches) * patches.shape[2],
         "a mean over rows; what about the positions?"),
        (lambda patches: patch_factor(patches) * len(patches),
         "a mean over positions; what about the rows?"),
        (lambda p: patch_factor(p) * len(p) * p.shape[2] / p.shape[1],
         "divided by the width of the layer: that is not a number of samples"),
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
        (lambda factor, damping, split: reference.block_diagonal(
            reference.damped_inverse(factor, damping), split),
         "blocks of the inverse are not inverses of the blocks"),
        (lambda factor, damping, split: reference.damped_inverse(
            reference.block_diagonal(factor, split, "fixed"), damping),
         "blocks of `split` and a rest: these are not as equal as possible"),
        (lambda factor, damping, split: np.linalg.inv(
            reference.block_diagonal(factor + damping, split)),
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
    **thor_on_lenet.HINTS,
}  # fmt: skip

check = partial(checks.check, EXERCISES, hints=HINTS)
