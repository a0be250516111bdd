"""Exercises of lab 03, THOR: the cases, and the check that the notebook calls."""

import numpy as np

from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Exercise
from labkit.labs.exercises.mistakes.thor import HINTS
from labkit.labs.exercises.specs import thor as specs


def _draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def _factor(seed, n):
    vectors = _draw(seed, 3 * n, n)
    return vectors.T @ vectors / len(vectors)


def _trace_case(seed, change):
    """A case whose trace has changed by ``change`` since the last refresh."""
    a_factor, g_factor = _factor(seed, 4), _factor(seed + 1, 3)
    last = specs.trace(a_factor, g_factor, 5, 0.3) / (1 + change)
    return a_factor, g_factor, 5, 0.3, last, 0.01, 0.001


_TIMES = [(936, 10, 42.0, 21.0), (7, 3, 30.0, 10.0), (6, 3, 30.0, 10.0), (100, 1, 5.0, 2.0)]
_PI_CASES = [(_factor(1, 6), 20 * _factor(2, 3), 4, 0.3), (3 * _factor(3, 2), _factor(4, 5), 9, 1)]
# Above both thresholds, between them on both sides, below.
_CHANGES = (0.2, -0.2, 0.004, -0.005, 0.0002)

EXERCISES = (
    Exercise(
        "patch_factor",
        specs.patch_factor,
        [(_draw(0, 4, 3, 5),), (_draw(1, 2, 4, 1),), (_draw(2, 3, 2, 7),)],
        HINTS["patch_factor"],
    ),
    Exercise(
        "unscaled_factor",
        specs.unscaled_factor,
        [(_draw(3, 8, 3), 128.0), (_draw(4, 5, 2), 1024.0), (_draw(5, 1, 4), 2.0)],
        HINTS["unscaled_factor"],
    ),
    Exercise(
        "block_inverse",
        specs.block_inverse,
        [(_factor(5, 10), 0.1, 8), (_factor(6, 10), 0.1, 4), (_factor(7, 3), 0.3, 128)],
        HINTS["block_inverse"],
    ),
    Exercise("pi_damping", specs.pi_damping, _PI_CASES, HINTS["pi_damping"]),
    Exercise(
        "refreshes_and_mean_time",
        specs.refreshes_and_mean_time,
        _TIMES,
        HINTS["refreshes_and_mean_time"],
        rtol=1e-9,
    ),
    Exercise(
        "trace_decision",
        specs.trace_decision,
        [_trace_case(10 + 2 * i, change) for i, change in enumerate(_CHANGES)],
        HINTS["trace_decision"],
    ),
)


def check(name, attempt) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 03; see ``check.check``."""
    return checks.check(EXERCISES, name, attempt)
