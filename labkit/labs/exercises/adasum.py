"""Exercises of lab 04, Adasum: plain specifications, cases, learners' mistakes."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from labkit import reference
from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Exercise, draw


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


def _parts(seed: int, *scales: float) -> tuple:
    return ([tuple(scale * draw(seed + i, 2, 4)) for i, scale in enumerate(scales)],)


_PAIRS = [(draw(0, 5), draw(1, 5)), (3 * draw(2, 8), draw(3, 8)), (draw(4, 3), np.zeros(3))]
_LAYERS = [
    (draw(10, 9), draw(11, 9), [2, 6, 1]),
    (draw(12, 12), draw(13, 12), [5, 4, 3]),
    (draw(14, 7), draw(15, 7), [1, 2, 4]),
]
_UPDATES = [
    (draw(20 + i, 4), draw(30 + i, 2, 4), draw(40 + i, 2, 4), 0.1 + i / 5, 0.9 - i / 10)
    for i in range(3)
]
_SLICES = [_parts(50, 1.0, 5.0), _parts(60, 2.0, 0.1, 1.0), _parts(70, 1.0, 1.0)]

EXERCISES = (
    Exercise(adasum_pair, _PAIRS),
    Exercise(adasum_all, [(draw(5, 4, 6),), (draw(6, 8, 6),), (draw(7, 2, 3),)]),
    Exercise(adasum_by_layer, _LAYERS),
    Exercise(adasum_update, _UPDATES),
    Exercise(coefficient_from_parts, _SLICES),
    Exercise(bytes_received, [(2, 61_684), (16, 1000), (8, 25_000_000)], rtol=1e-9),
)


# Mistakes that learners make.


def _divided(a: np.ndarray, b: np.ndarray, for_a: float, for_b: float) -> np.ndarray:
    """The pair's sum with the overlap divided by twice these numbers."""
    product = sum(a * b)
    return (1 - product / (2 * for_a)) * a + (1 - product / (2 * for_b)) * b


def _one_after_the_other(vectors: np.ndarray) -> np.ndarray:
    total = vectors[0]
    for vector in vectors[1:]:
        total = adasum_pair(total, vector)
    return total


def _far_pairs(vectors: np.ndarray) -> np.ndarray:
    if len(vectors) == 1:
        return vectors[0]
    return adasum_pair(_far_pairs(vectors[::2]), _far_pairs(vectors[1::2]))


def _mean_of_pairs(vectors: np.ndarray) -> np.ndarray:
    pairs = [adasum_pair(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return np.mean(pairs, axis=0)


def _equal_layers(a: np.ndarray, b: np.ndarray, sizes: list) -> np.ndarray:
    ends = np.linspace(0, len(a), len(sizes) + 1).astype(int)
    return adasum_by_layer(a, b, np.diff(ends).tolist())


def _last_forgotten(a: np.ndarray, b: np.ndarray, sizes: list) -> np.ndarray:
    known = sum(sizes[:-1])
    return np.concatenate([adasum_by_layer(a[:known], b[:known], sizes[:-1]), (a + b)[known:]])


def _on_gradients(
    w: np.ndarray, gradients: np.ndarray, velocities: np.ndarray, rate: float, momentum: float
) -> tuple[np.ndarray, np.ndarray]:
    velocities = momentum * velocities + adasum_pair(*gradients)
    return w - rate * velocities.mean(axis=0), velocities


def _one_velocity(
    w: np.ndarray, gradients: np.ndarray, velocities: np.ndarray, rate: float, momentum: float
) -> tuple[np.ndarray, np.ndarray]:
    moved, velocities = adasum_update(w, gradients, velocities, rate, momentum)
    return moved, np.tile(adasum_pair(*velocities), (2, 1))


def _own_scales(parts: list) -> float:
    largest = [max(abs(a).max(), abs(b).max()) for a, b in parts]
    return coefficient_from_parts(
        [(a / size, b / size) for (a, b), size in zip(parts, largest, strict=True)]
    )


def _times(of_gathered: float, of_reduced: float) -> Callable:
    """The right numbers of bytes, times these factors."""

    def received(ranks: int, numbers: int) -> tuple[float, float]:
        gathered, reduced = bytes_received(ranks, numbers)
        return of_gathered * gathered, of_reduced * reduced

    return received


HINTS = {
    "adasum_pair": (
        (lambda a, b: (a + b) / 2, "that is the mean, whatever the angle"),
        (lambda a, b: a + b, "that is the sum, whatever the angle"),
        (lambda a, b: _divided(a, b, math.hypot(*a), math.hypot(*b)),
         "is the overlap divided by a length, or by its square?"),
        (lambda a, b: 2 * adasum_pair(a, b) - a - b,
         "parallel vectors cancel now: how much of the overlap is to go?"),
        (lambda a, b: _divided(a, b, sum(b * b), sum(a * a)),
         "each coefficient divides by the length of which vector?"),
        (lambda a, b: (1 - reference.cosine(a, b) / 2) * (a + b),
         "right for vectors of one length only: does it know the two lengths?"),
    ),
    "adasum_all": (
        (_one_after_the_other,
         "one after the other: then the last worker counts as much as all before"),
        (_far_pairs, "which workers are combined first: neighbours, or every other one?"),
        (_mean_of_pairs, "only the first level is Adasum, the others are a mean"),
        (lambda vectors: adasum_pair(*(half.mean(axis=0) for half in np.split(vectors, 2))),
         "only the last level is Adasum; inside the halves it is a mean"),
        (lambda vectors: adasum_pair(*(half.sum(axis=0) for half in np.split(vectors, 2))),
         "only the last level is Adasum; inside the halves it is a sum"),
    ),
    "adasum_by_layer": (
        (lambda a, b, sizes: adasum_pair(a, b),
         "one angle for all layers: each is to have its own"),
        (lambda a, b, sizes: adasum_by_layer(a, b, [1] * len(a)),
         "one angle for each number: a layer is a whole vector"),
        (_equal_layers, "the layers are not all of one size"),
        (_last_forgotten, "what about the last layer?"),
    ),
    "adasum_update": (
        (_on_gradients, "the gradients were combined; here it is what the optimizers make"),
        (lambda w, g, v, rate, momentum: adasum_update(w, g, v, -rate, momentum),
         "it climbs: which sign has a move?"),
        (lambda w, g, v, rate, momentum: (
            w - rate * (momentum * v + g).mean(axis=0), momentum * v + g),
         "the moves were averaged"),
        (lambda w, g, v, rate, momentum: (
            w - rate * (momentum * v + g).sum(axis=0), momentum * v + g),
         "the moves were summed"),
        (_one_velocity, "the workers share a velocity now: each has its own"),
        (lambda w, g, v, rate, momentum: (adasum_update(w, g, v, rate, momentum)[0], v),
         "the velocities are still those of the update before"),
    ),
    "coefficient_from_parts": (
        (lambda parts: np.mean([1 - a @ b / (2 * a @ a) for a, b in parts]),
         "a mean of the slices' coefficients: do their lengths count?"),
        (_own_scales, "every slice has a unit of its own now: can they still be added?"),
        (lambda parts: 1 - sum(a @ b / (2 * a @ a) for a, b in parts),
         "a sum of quotients: what is to be added before dividing?"),
        (lambda parts: coefficient_from_parts(parts[:1]), "only the first rank's slice is in it"),
        (lambda parts: coefficient_from_parts([(b, a) for a, b in parts]),
         "that is the coefficient of b"),
    ),
    "bytes_received": (
        (lambda ranks, numbers: (4 * numbers * ranks, bytes_received(ranks, numbers)[1]),
         "a rank need not receive what it already has"),
        (_times(1 / 4, 1 / 4), "these are numbers; how many bytes has one?"),
        (_times(1, 1 / 2), "a ring goes round twice: once to add, and then?"),
        (lambda ranks, numbers: _times(1, ranks)(ranks, numbers),
         "in a ring only a slice of the vector travels in each step"),
        (lambda ranks, numbers: _times(ranks, ranks)(ranks, numbers),
         "that is what all ranks receive together"),
    ),
}  # fmt: skip


def check(name: str, attempt: Callable) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 04; see ``check.check``."""
    return checks.check(EXERCISES, name, attempt, HINTS)
