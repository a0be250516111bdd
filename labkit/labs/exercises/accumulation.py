"""Exercises of lab 01, gradient accumulation: the cases, and the check that the notebook calls."""

import numpy as np

from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Exercise
from labkit.labs.exercises.mistakes.accumulation import HINTS
from labkit.labs.exercises.specs import accumulation as specs


def _gradients(seed, sizes):
    draw = np.random.default_rng(seed)
    return [draw.normal(size=6) for _ in sizes]


def _token_case(seed, lengths, width):
    draw = np.random.default_rng(seed)
    masks = [(np.arange(width) < n).astype(np.float64) for n in lengths]
    return [draw.uniform(0.5, 3.0, size=width) for _ in lengths], masks


_SIZES = ([32, 32, 32, 32], [64, 32, 16, 16], [5], [1, 9, 3])
_GRADIENT_CASES = [(_gradients(seed, sizes), sizes) for seed, sizes in enumerate(_SIZES)]

EXERCISES = (
    Exercise("mean_gradient", specs.mean_gradient, _GRADIENT_CASES, HINTS["mean_gradient"]),
    Exercise(
        "normalise",
        specs.normalise,
        [(np.array([0, 255]),), (np.arange(0, 256, 15),)],
        HINTS["normalise"],
    ),
    Exercise(
        "updates_per_epoch",
        specs.updates_per_epoch,
        [
            (1875, 4, "flush"),
            (1875, 4, "drop"),
            (1875, 5, "flush"),
            (3, 4, "flush"),
            (3, 4, "carry"),
            (1875, 4, "carry"),
        ],
        HINTS["updates_per_epoch"],
        rtol=0.0,
    ),
    Exercise(
        "clipped_update",
        specs.clipped_update,
        [(*case, norm) for case in _GRADIENT_CASES for norm in (0.3, 100.0)],
        HINTS["clipped_update"],
    ),
    Exercise(
        "token_loss",
        specs.token_loss,
        [_token_case(0, (8, 2, 5), 8), _token_case(1, (3, 3), 6), _token_case(2, (1, 12), 12)],
        HINTS["token_loss"],
    ),
)


def check(name, attempt) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 01; see ``check.check``."""
    return checks.check(EXERCISES, name, attempt)
