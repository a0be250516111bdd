"""Exercises of lab 04, Adasum: specifications, slow and plain, and public cases."""

from collections.abc import Callable, Sequence

import numpy as np

from labkit import reference
from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Exercise


def adasum_pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b; a zero vector passes the other through."""
    return reference.adasum_pair(a, b)


def adasum_all(vectors: np.ndarray) -> np.ndarray:
    """Adasum(Adasum(first half), Adasum(second half)) for (N, d), N a power of two."""
    if len(vectors) == 1:
        return vectors[0]
    half = len(vectors) // 2
    return adasum_pair(adasum_all(vectors[:half]), adasum_all(vectors[half:]))


def adasum_by_layer(a: np.ndarray, b: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """The pair for each layer by itself; layers of ``sizes`` numbers lie one behind the other."""
    parts, start = [], 0
    for size in sizes:
        parts.append(adasum_pair(a[start : start + size], b[start : start + size]))
        start += size
    return np.concatenate(parts)


def adasum_update(
    w: np.ndarray, gradients: np.ndarray, velocities: np.ndarray, rate: float, momentum: float
) -> tuple[np.ndarray, np.ndarray]:
    """Each worker's Momentum moves w by -rate v; the two moves are combined. Returns (w, v)."""
    velocities = momentum * velocities + gradients
    moves = -rate * velocities
    return w + adasum_pair(*moves), velocities


def coefficient_from_parts(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """1 - a.b / (2 |a|^2), where each rank holds a slice of a and the same one of b: (a_i, b_i)."""
    product = sum(float(a @ b) for a, b in parts)
    square = sum(float(a @ a) for a, _ in parts)
    return 1 - product / (2 * square)


def bytes_received(ranks: int, numbers: int) -> tuple[int, float]:
    """(AllGather of float32, ring AllReduce) in bytes that one rank receives."""
    gathered = 4 * numbers * (ranks - 1)
    reduced = 2 * 4 * numbers * (ranks - 1) / ranks
    return gathered, reduced


def _draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def _parts(seed: int, *scales: float) -> tuple:
    return ([tuple(scale * _draw(seed + i, 2, 4)) for i, scale in enumerate(scales)],)


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
_SLICES = [_parts(50, 1.0, 5.0), _parts(60, 2.0, 0.1, 1.0), _parts(70, 1.0, 1.0)]

EXERCISES = (
    Exercise(adasum_pair, _PAIRS),
    Exercise(adasum_all, [(_draw(5, 4, 6),), (_draw(6, 8, 6),), (_draw(7, 2, 3),)]),
    Exercise(adasum_by_layer, _LAYERS),
    Exercise(adasum_update, _UPDATES),
    Exercise(coefficient_from_parts, _SLICES),
    Exercise(bytes_received, [(2, 61_684), (16, 1000), (8, 25_000_000)], rtol=1e-9),
)


def check(name: str, attempt: Callable) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 04; see ``check.check``."""
    from labkit.labs.exercises.mistakes.adasum import HINTS  # made of the functions above

    return checks.check(EXERCISES, name, attempt, HINTS)
