"""Exercises of lab 05, dimension reduction: the cases, and the check that the notebook calls."""

import numpy as np

from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Exercise
from labkit.labs.exercises.mistakes.subspace import HINTS
from labkit.labs.exercises.specs import subspace as specs


def _draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def _snapshots(seed, count, numbers):
    return 3 + np.cumsum(_draw(seed, count, numbers), axis=0)


def _basis(seed, components, numbers):
    return np.linalg.qr(_draw(seed, numbers, components))[0].T


def _inverse(seed, size):
    half = _draw(seed, size, size)
    return half @ half.T / size + np.eye(size)


def _pair(seed, size, sign):
    """(s, y) with y.s of the given sign."""
    s, y = _draw(seed, 2, size)
    return s, y * np.sign(y @ s) * sign


_NAN = float("nan")

EXERCISES = (
    Exercise(
        "explained",
        specs.explained,
        [(_snapshots(0, 6, 9), 3), (_snapshots(1, 5, 12), 2), (_snapshots(2, 9, 4), 3)],
        HINTS["explained"],
    ),
    Exercise(
        "nearest_point",
        specs.nearest_point,
        [(_basis(3, 2, 7), _draw(4, 7), _draw(5, 7)), (_basis(6, 4, 9), _draw(7, 9), _draw(8, 9))],
        HINTS["nearest_point"],
    ),
    Exercise(
        "bfgs",
        specs.bfgs,
        [
            (_inverse(9, 4), *_pair(10, 4, 1)),
            (_inverse(11, 3), *_pair(12, 3, 1)),
            (_inverse(13, 3), *_pair(14, 3, -1)),
        ],
        HINTS["bfgs"],
    ),
    Exercise(
        "line_search",
        specs.line_search,
        [
            (np.array([1.2, 0.99, 0.93, 0.94, 0.97, 0.55, 0.52]), 1.0, -1.0, 0.5, 0.4),
            (np.array([1.5, 1.25, 1.3]), 1.0, -1.0, 0.5, 0.4),
            (np.array([_NAN, 2.7, 2.55, 2.85]), 3.0, -2.0, 0.55, 0.3),
        ],
        HINTS["line_search"],
    ),
    Exercise(
        "residual_update",
        specs.residual_update,
        [
            (_draw(20, 6), _draw(21, 6), _basis(22, 2, 6), 0.9, 0.001),
            (_draw(23, 8), _draw(24, 8), _basis(25, 3, 8), 0.5, 0.3),
        ],
        HINTS["residual_update"],
    ),
    Exercise(
        "first_and_count",
        specs.first_and_count,
        [(32, 3, 2), (32, 5, 4), (3, 4, 3), (10, 3, 1)],
        HINTS["first_and_count"],
        rtol=1e-9,
    ),
)


def check(name, attempt) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 05; see ``check.check``."""
    return checks.check(EXERCISES, name, attempt)
