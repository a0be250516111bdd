"""Exercises of lab 04, Adasum: specifications, cases, and what to say when wrong."""

import math

import numpy as np

from labkit import checks, reference
from labkit.checks import Exercise


def _draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def adasum_pair(a, b):
    """(1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b; a zero vector passes the other through."""
    return reference.adasum_pair(a, b)


def _by_lengths(a, b):
    product = sum(a * b)
    return (1 - product / (2 * math.hypot(*a))) * a + (1 - product / (2 * math.hypot(*b))) * b


def _whole_overlap(a, b):
    return 2 * adasum_pair(a, b) - a - b


def _swapped(a, b):
    product = sum(a * b)
    return (1 - product / (2 * sum(b * b))) * a + (1 - product / (2 * sum(a * a))) * b


def _cosine_twice(a, b):
    cosine = reference.cosine(a, b)
    return (1 - cosine / 2) * (a + b)


def adasum_all(vectors):
    """Adasum(Adasum(first half), Adasum(second half)) for (N, d), N a power of two."""
    if len(vectors) == 1:
        return vectors[0]
    half = len(vectors) // 2
    return adasum_pair(adasum_all(vectors[:half]), adasum_all(vectors[half:]))


def _one_by_one(vectors):
    total = vectors[0]
    for vector in vectors[1:]:
        total = adasum_pair(total, vector)
    return total


def _far_pairs(vectors):
    if len(vectors) == 1:
        return vectors[0]
    return adasum_pair(_far_pairs(vectors[::2]), _far_pairs(vectors[1::2]))


def _mean_of_pairs(vectors):
    pairs = [adasum_pair(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return np.mean(pairs, axis=0)


def _halves_meant(vectors):
    half = len(vectors) // 2
    return adasum_pair(np.mean(vectors[:half], axis=0), np.mean(vectors[half:], axis=0))


def _halves_summed(vectors):
    half = len(vectors) // 2
    return adasum_pair(np.sum(vectors[:half], axis=0), np.sum(vectors[half:], axis=0))


def adasum_by_layer(a, b, sizes):
    """The pair for each layer by itself; layers of ``sizes`` numbers lie one behind the other."""
    parts, start = [], 0
    for size in sizes:
        parts.append(adasum_pair(a[start : start + size], b[start : start + size]))
        start += size
    return np.concatenate(parts)


def _as_one_layer(a, b, sizes):
    return adasum_pair(a, b)


def _number_by_number(a, b, sizes):
    return adasum_by_layer(a, b, [1] * len(a))


def _as_many_to_each(a, b, sizes):
    ends = np.linspace(0, len(a), len(sizes) + 1).astype(int)
    return adasum_by_layer(a, b, np.diff(ends))


def _last_forgotten(a, b, sizes):
    known = sum(sizes[:-1])
    return np.concatenate([adasum_by_layer(a[:known], b[:known], sizes[:-1]), (a + b)[known:]])


def adasum_update(w, gradients, velocities, rate, momentum):
    """Each worker's Momentum moves w by -rate v; the two moves are combined. Returns (w, v)."""
    velocities = momentum * velocities + gradients
    moves = -rate * velocities
    return w + adasum_pair(*moves), velocities


def _on_gradients(w, gradients, velocities, rate, momentum):
    velocities = momentum * velocities + adasum_pair(*gradients)
    return w - rate * velocities.mean(axis=0), velocities


def _upwards(w, gradients, velocities, rate, momentum):
    moved, velocities = adasum_update(w, gradients, velocities, rate, momentum)
    return 2 * w - moved, velocities


def _moves_averaged(w, gradients, velocities, rate, momentum):
    velocities = momentum * velocities + gradients
    return w - rate * velocities.mean(axis=0), velocities


def _moves_summed(w, gradients, velocities, rate, momentum):
    velocities = momentum * velocities + gradients
    return w - rate * velocities.sum(axis=0), velocities


def _one_velocity(w, gradients, velocities, rate, momentum):
    moved, velocities = adasum_update(w, gradients, velocities, rate, momentum)
    return moved, np.tile(adasum_pair(*velocities), (2, 1))


def _velocities_forgotten(w, gradients, velocities, rate, momentum):
    moved, _ = adasum_update(w, gradients, velocities, rate, momentum)
    return moved, velocities


def coefficient_from_parts(parts):
    """1 - a.b / (2 |a|^2), where each rank holds a slice of a and the same one of b: (a_i, b_i)."""
    product = sum(float(a @ b) for a, b in parts)
    square = sum(float(a @ a) for a, _ in parts)
    return 1 - product / (2 * square)


def _mean_of_coefficients(parts):
    return np.mean([1 - a @ b / (2 * a @ a) for a, b in parts])


def _own_scales(parts):
    scaled = [(a / max(abs(a).max(), abs(b).max()), b / max(abs(a).max(), abs(b).max()))
              for a, b in parts]  # fmt: skip
    return coefficient_from_parts(scaled)


def _sum_of_overlaps(parts):
    return 1 - sum(a @ b / (2 * a @ a) for a, b in parts)


def _first_part(parts):
    return coefficient_from_parts(parts[:1])


def _of_b(parts):
    return coefficient_from_parts([(b, a) for a, b in parts])


def bytes_received(ranks, numbers):
    """(AllGather of float32, ring AllReduce) in bytes that one rank receives."""
    gathered = 4 * numbers * (ranks - 1)
    reduced = 2 * 4 * numbers * (ranks - 1) / ranks
    return gathered, reduced


def _own_too(ranks, numbers):
    return 4 * numbers * ranks, 8 * numbers * (ranks - 1) / ranks


def _counted_in_numbers(ranks, numbers):
    return tuple(value / 4 for value in bytes_received(ranks, numbers))


def _one_way_round(ranks, numbers):
    gathered, reduced = bytes_received(ranks, numbers)
    return gathered, reduced / 2


def _whole_vectors_round(ranks, numbers):
    gathered, reduced = bytes_received(ranks, numbers)
    return gathered, reduced * ranks


def _all_ranks_together(ranks, numbers):
    return tuple(ranks * value for value in bytes_received(ranks, numbers))


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


def _parts(seed, *scales):
    slices = [scale * _draw(seed + i, 2, 4) for i, scale in enumerate(scales)]
    return ([tuple(one) for one in slices],)


EXERCISES = (
    Exercise(
        "adasum_pair",
        adasum_pair,
        _PAIRS,
        (
            (lambda a, b: (a + b) / 2, "that is the mean, whatever the angle"),
            (lambda a, b: a + b, "that is the sum, whatever the angle"),
            (_by_lengths, "is the overlap divided by a length, or by its square?"),
            (_whole_overlap, "parallel vectors cancel now: how much of the overlap is to go?"),
            (_swapped, "each coefficient divides by the length of which vector?"),
            (_cosine_twice, "right for vectors of one length only: does it know the two lengths?"),
        ),
    ),
    Exercise(
        "adasum_all",
        adasum_all,
        [(_draw(5, 4, 6),), (_draw(6, 8, 6),), (_draw(7, 2, 3),)],
        (
            (_one_by_one, "one after the other: then the last worker counts as much as all before"),
            (_far_pairs, "which workers are combined first: neighbours, or every other one?"),
            (_mean_of_pairs, "only the first level is Adasum, the others are a mean"),
            (_halves_meant, "only the last level is Adasum; inside the halves it is a mean"),
            (_halves_summed, "only the last level is Adasum; inside the halves it is a sum"),
        ),
    ),
    Exercise(
        "adasum_by_layer",
        adasum_by_layer,
        _LAYERS,
        (
            (_as_one_layer, "one angle for all layers: each is to have its own"),
            (_number_by_number, "one angle for each number: a layer is a whole vector"),
            (_as_many_to_each, "the layers are not all of one size"),
            (_last_forgotten, "what about the last layer?"),
        ),
    ),
    Exercise(
        "adasum_update",
        adasum_update,
        _UPDATES,
        (
            (_on_gradients, "the gradients were combined; here it is what the optimizers make"),
            (_upwards, "it climbs: which sign has a move?"),
            (_moves_averaged, "the moves were averaged"),
            (_moves_summed, "the moves were summed"),
            (_one_velocity, "the workers share a velocity now: each has its own"),
            (_velocities_forgotten, "the velocities are still those of the update before"),
        ),
    ),
    Exercise(
        "coefficient_from_parts",
        coefficient_from_parts,
        [_parts(50, 1.0, 5.0), _parts(60, 2.0, 0.1, 1.0), _parts(70, 1.0, 1.0)],
        (
            (_mean_of_coefficients, "a mean of the slices' coefficients: do their lengths count?"),
            (_own_scales, "every slice has a unit of its own now: can they still be added?"),
            (_sum_of_overlaps, "a sum of quotients: what is to be added before dividing?"),
            (_first_part, "only the first rank's slice is in it"),
            (_of_b, "that is the coefficient of b"),
        ),
    ),
    Exercise(
        "bytes_received",
        bytes_received,
        [(2, 61_684), (16, 1000), (8, 25_000_000)],
        (
            (_own_too, "a rank need not receive what it already has"),
            (_counted_in_numbers, "these are numbers; how many bytes has one?"),
            (_one_way_round, "a ring goes round twice: once to add, and then?"),
            (_whole_vectors_round, "in a ring only a slice of the vector travels in each step"),
            (_all_ranks_together, "that is what all ranks receive together"),
        ),
        rtol=1e-9,
    ),
)


def check(name, attempt) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 04; see ``labkit.checks.check``."""
    return checks.check(EXERCISES, name, attempt)
