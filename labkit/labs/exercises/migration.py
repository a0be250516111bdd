"""Exercises of lab 02, migration: the cases, and the check that the notebook calls."""

import numpy as np

from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Exercise
from labkit.labs.exercises.mistakes.migration import HINTS
from labkit.labs.exercises.specs import migration as specs


def _values(seed, count):
    return np.random.default_rng(seed).normal(size=count)


_PIXELS = np.array([[0.0, 128.0, 255.0], [10.0, 20.0, 30.0]])
_MEAN, _STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])

EXERCISES = (
    Exercise(
        "same_padding",
        specs.same_padding,
        [(64, 7, 2), (32, 3, 2), (32, 3, 1), (33, 3, 2), (32, 1, 2), (7, 2, 2)],
        HINTS["same_padding"],
        rtol=0.0,
    ),
    Exercise(
        "running_variance",
        specs.running_variance,
        [(1.0, _values(0, 8), 0.1), (0.5, _values(1, 5), 0.3), (2.0, _values(2, 64), 0.01)],
        HINTS["running_variance"],
    ),
    Exercise(
        "smooth_targets",
        specs.smooth_targets,
        [(2, 10, 0.1), (0, 3, 0.3), (4, 5, 0.0)],
        HINTS["smooth_targets"],
    ),
    Exercise(
        "preprocess",
        specs.preprocess,
        [(_PIXELS, _MEAN, _STD), (_PIXELS[0], np.full(3, 0.5), np.full(3, 0.25))],
        HINTS["preprocess"],
    ),
    Exercise(
        "learning_rate",
        specs.learning_rate,
        [(update, 100, 10, 0.4) for update in (0, 4, 9, 10, 55, 99)] + [(0, 10, 1, 0.1)],
        HINTS["learning_rate"],
    ),
)


def check(name, attempt) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 02; see ``check.check``."""
    return checks.check(EXERCISES, name, attempt)
