"""Exercises of lab 04, Adasum: the cases, and the check that the notebook calls."""

import numpy as np

from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Exercise
from labkit.labs.exercises.mistakes.adasum import HINTS
from labkit.labs.exercises.specs import adasum as specs


def _draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def _parts(seed, *scales):
    slices = [scale * _draw(seed + i, 2, 4) for i, scale in enumerate(scales)]
    return ([tuple(one) for one in slices],)


_PAIRS = [(_draw(0, 5), _draw(1, 5)), (3 * _draw(2, 8), _draw(3, 8)), (_draw(4, 3), np.zeros(3))]
_LAYERS = [
    (_draw(10, 9), _draw(11, 9), [2, 6, 1]),
    (_draw(12, 12), _draw(13, 12), [5, 4, 3]),
    (_draw(14, 7), _draw(15, 7), [1, 2, 4]),
]
_UPDATES = [
    (_draw(20 + i, 4), _draw(30 + i, 2, 4), _draw(40 + i, 2, 4), 0.1 + i / 5, 0.9 - i / 10)
    for i in range(3)
]

EXERCISES = (
    Exercise("adasum_pair", specs.adasum_pair, _PAIRS, HINTS["adasum_pair"]),
    Exercise(
        "adasum_all",
        specs.adasum_all,
        [(_draw(5, 4, 6),), (_draw(6, 8, 6),), (_draw(7, 2, 3),)],
        HINTS["adasum_all"],
    ),
    Exercise("adasum_by_layer", specs.adasum_by_layer, _LAYERS, HINTS["adasum_by_layer"]),
    Exercise("adasum_update", specs.adasum_update, _UPDATES, HINTS["adasum_update"]),
    Exercise(
        "coefficient_from_parts",
        specs.coefficient_from_parts,
        [_parts(50, 1.0, 5.0), _parts(60, 2.0, 0.1, 1.0), _parts(70, 1.0, 1.0)],
        HINTS["coefficient_from_parts"],
    ),
    Exercise(
        "bytes_received",
        specs.bytes_received,
        [(2, 61_684), (16, 1000), (8, 25_000_000)],
        HINTS["bytes_received"],
        rtol=1e-9,
    ),
)


def check(name, attempt) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 04; see ``check.check``."""
    return checks.check(EXERCISES, name, attempt)
