"""Exercises of lab 03, THOR: specifications, slow and plain, and public cases."""

import math
from collections.abc import Callable

import numpy as np

from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Exercise


def patch_factor(patches: np.ndarray) -> np.ndarray:
    """A = sum over rows and positions of p p^T / (N T), for patches (N, inputs, T)."""
    total = np.zeros((patches.shape[1],) * 2)
    for row in range(len(patches)):
        for position in range(patches.shape[2]):
            total += np.outer(patches[row, :, position], patches[row, :, position])
    return total / (patches.shape[0] * patches.shape[2])


def unscaled_factor(derivatives: np.ndarray, loss_scale: float) -> np.ndarray:
    """G = N^2 sum d d^T / N of the mean loss' derivatives, which are times the loss scale."""
    own = len(derivatives) * derivatives / loss_scale  # of each row's loss
    total = np.zeros((derivatives.shape[1],) * 2)
    return sum((np.outer(d, d) for d in own), start=total) / len(derivatives)


def block_inverse(factor: np.ndarray, damping: float, split: int) -> np.ndarray:
    """Blocks of ceil(n / ceil(n / split)) rows, damped, inverted, on the diagonal of zeros."""
    n = len(factor)
    size = math.ceil(n / math.ceil(n / split))
    inverse = np.zeros_like(factor)
    for first in range(0, n, size):
        block = factor[first : first + size, first : first + size]
        block = block + damping * np.eye(len(block))
        inverse[first : first + size, first : first + size] = np.linalg.inv(block)
    return inverse


def pi_damping(
    a_factor: np.ndarray, g_factor: np.ndarray, positions: int, damping: float
) -> tuple[float, float]:
    """(pi sqrt(damping / T), sqrt(damping / T) / pi), pi^2 the ratio of the mean eigenvalues."""
    pi = math.sqrt(mean_eigenvalue(a_factor) / mean_eigenvalue(g_factor))
    return pi * math.sqrt(damping / positions), math.sqrt(damping / positions) / pi


def mean_eigenvalue(factor: np.ndarray) -> float:
    """Mean of the eigenvalues of a symmetric matrix, from its diagonal."""
    return np.trace(factor) / len(factor)


def refreshes_and_mean_time(
    updates: int, frequency: int, refresh: float, cached: float
) -> tuple[int, float]:
    """Refreshes at updates 0, frequency, 2 frequency, ... below ``updates``; mean time."""
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
    """(D, decision): the relative change of tr(T G (x) A + damping I), and 1, 0 or -1 by it."""
    return decide(trace(a_factor, g_factor, positions, damping), last, high, low)


def trace(a_factor: np.ndarray, g_factor: np.ndarray, positions: int, damping: float) -> float:
    """Trace of T G (x) A + damping I, without building the Kronecker product."""
    size = len(a_factor) * len(g_factor)
    return positions * np.trace(a_factor) * np.trace(g_factor) + damping * size


def decide(now: float, last: float, high: float, low: float) -> tuple[float, int]:
    """(D, decision) of a trace that is ``now`` and was ``last``."""
    change = abs(now - last) / last
    return change, 1 if change > high else -1 if change < low else 0


def _draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def _factor(seed: int, n: int) -> np.ndarray:
    vectors = _draw(seed, 3 * n, n)
    return vectors.T @ vectors / len(vectors)


def _trace_case(seed: int, change: float) -> tuple:
    """A case whose trace has changed by ``change`` since the last refresh."""
    a_factor, g_factor = _factor(seed, 4), _factor(seed + 1, 3)
    last = trace(a_factor, g_factor, 5, 0.3) / (1 + change)
    return a_factor, g_factor, 5, 0.3, last, 0.01, 0.001


_PATCHES = [(_draw(0, 4, 3, 5),), (_draw(1, 2, 4, 1),), (_draw(2, 3, 2, 7),)]
_DERIVATIVES = [(_draw(3, 8, 3), 128.0), (_draw(4, 5, 2), 1024.0), (_draw(5, 1, 4), 2.0)]
_BLOCKS = [(_factor(5, 10), 0.1, 8), (_factor(6, 10), 0.1, 4), (_factor(7, 3), 0.3, 128)]
_FACTORS = [(_factor(1, 6), 20 * _factor(2, 3), 4, 0.3), (3 * _factor(3, 2), _factor(4, 5), 9, 1)]
_TIMES = [(936, 10, 42.0, 21.0), (7, 3, 30.0, 10.0), (6, 3, 30.0, 10.0), (100, 1, 5.0, 2.0)]
# Above both thresholds, between them on both sides, below.
_CHANGES = (0.2, -0.2, 0.004, -0.005, 0.0002)

EXERCISES = (
    Exercise(patch_factor, _PATCHES),
    Exercise(unscaled_factor, _DERIVATIVES),
    Exercise(block_inverse, _BLOCKS),
    Exercise(pi_damping, _FACTORS),
    Exercise(refreshes_and_mean_time, _TIMES, rtol=1e-9),
    Exercise(trace_decision, [_trace_case(10 + 2 * i, c) for i, c in enumerate(_CHANGES)]),
)


def check(name: str, attempt: Callable) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 03; see ``check.check``."""
    from labkit.labs.exercises.mistakes.thor import HINTS  # made of the functions above

    return checks.check(EXERCISES, name, attempt, HINTS)
