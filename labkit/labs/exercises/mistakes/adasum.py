"""Mistakes that learners make in lab 04, Adasum, each with what to say to them."""

import math

import numpy as np

from labkit import reference
from labkit.labs.exercises.specs import adasum as specs


def _by_lengths(a, b):
    product = sum(a * b)
    return (1 - product / (2 * math.hypot(*a))) * a + (1 - product / (2 * math.hypot(*b))) * b


def _whole_overlap(a, b):
    return 2 * specs.adasum_pair(a, b) - a - b


def _swapped(a, b):
    product = sum(a * b)
    return (1 - product / (2 * sum(b * b))) * a + (1 - product / (2 * sum(a * a))) * b


def _cosine_twice(a, b):
    cosine = reference.cosine(a, b)
    return (1 - cosine / 2) * (a + b)


def _one_by_one(vectors):
    total = vectors[0]
    for vector in vectors[1:]:
        total = specs.adasum_pair(total, vector)
    return total


def _far_pairs(vectors):
    if len(vectors) == 1:
        return vectors[0]
    return specs.adasum_pair(_far_pairs(vectors[::2]), _far_pairs(vectors[1::2]))


def _mean_of_pairs(vectors):
    pairs = [specs.adasum_pair(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return np.mean(pairs, axis=0)


def _halves_meant(vectors):
    half = len(vectors) // 2
    return specs.adasum_pair(np.mean(vectors[:half], axis=0), np.mean(vectors[half:], axis=0))


def _halves_summed(vectors):
    half = len(vectors) // 2
    return specs.adasum_pair(np.sum(vectors[:half], axis=0), np.sum(vectors[half:], axis=0))


def _as_one_layer(a, b, sizes):
    return specs.adasum_pair(a, b)


def _number_by_number(a, b, sizes):
    return specs.adasum_by_layer(a, b, [1] * len(a))


def _as_many_to_each(a, b, sizes):
    ends = np.linspace(0, len(a), len(sizes) + 1).astype(int)
    return specs.adasum_by_layer(a, b, np.diff(ends))


def _last_forgotten(a, b, sizes):
    known = sum(sizes[:-1])
    return np.concatenate(
        [specs.adasum_by_layer(a[:known], b[:known], sizes[:-1]), (a + b)[known:]]
    )


def _on_gradients(w, gradients, velocities, rate, momentum):
    velocities = momentum * velocities + specs.adasum_pair(*gradients)
    return w - rate * velocities.mean(axis=0), velocities


def _upwards(w, gradients, velocities, rate, momentum):
    moved, velocities = specs.adasum_update(w, gradients, velocities, rate, momentum)
    return 2 * w - moved, velocities


def _moves_averaged(w, gradients, velocities, rate, momentum):
    velocities = momentum * velocities + gradients
    return w - rate * velocities.mean(axis=0), velocities


def _moves_summed(w, gradients, velocities, rate, momentum):
    velocities = momentum * velocities + gradients
    return w - rate * velocities.sum(axis=0), velocities


def _one_velocity(w, gradients, velocities, rate, momentum):
    moved, velocities = specs.adasum_update(w, gradients, velocities, rate, momentum)
    return moved, np.tile(specs.adasum_pair(*velocities), (2, 1))


def _velocities_forgotten(w, gradients, velocities, rate, momentum):
    moved, _ = specs.adasum_update(w, gradients, velocities, rate, momentum)
    return moved, velocities


def _mean_of_coefficients(parts):
    return np.mean([1 - a @ b / (2 * a @ a) for a, b in parts])


def _own_scales(parts):
    scaled = [(a / max(abs(a).max(), abs(b).max()), b / max(abs(a).max(), abs(b).max()))
              for a, b in parts]  # fmt: skip
    return specs.coefficient_from_parts(scaled)


def _sum_of_overlaps(parts):
    return 1 - sum(a @ b / (2 * a @ a) for a, b in parts)


def _first_part(parts):
    return specs.coefficient_from_parts(parts[:1])


def _of_b(parts):
    return specs.coefficient_from_parts([(b, a) for a, b in parts])


def _own_too(ranks, numbers):
    return 4 * numbers * ranks, 8 * numbers * (ranks - 1) / ranks


def _counted_in_numbers(ranks, numbers):
    return tuple(value / 4 for value in specs.bytes_received(ranks, numbers))


def _one_way_round(ranks, numbers):
    gathered, reduced = specs.bytes_received(ranks, numbers)
    return gathered, reduced / 2


def _whole_vectors_round(ranks, numbers):
    gathered, reduced = specs.bytes_received(ranks, numbers)
    return gathered, reduced * ranks


def _all_ranks_together(ranks, numbers):
    return tuple(ranks * value for value in specs.bytes_received(ranks, numbers))


HINTS = {
    "adasum_pair": (
        (lambda a, b: (a + b) / 2, "that is the mean, whatever the angle"),
        (lambda a, b: a + b, "that is the sum, whatever the angle"),
        (_by_lengths, "is the overlap divided by a length, or by its square?"),
        (_whole_overlap, "parallel vectors cancel now: how much of the overlap is to go?"),
        (_swapped, "each coefficient divides by the length of which vector?"),
        (_cosine_twice, "right for vectors of one length only: does it know the two lengths?"),
    ),
    "adasum_all": (
        (_one_by_one, "one after the other: then the last worker counts as much as all before"),
        (_far_pairs, "which workers are combined first: neighbours, or every other one?"),
        (_mean_of_pairs, "only the first level is Adasum, the others are a mean"),
        (_halves_meant, "only the last level is Adasum; inside the halves it is a mean"),
        (_halves_summed, "only the last level is Adasum; inside the halves it is a sum"),
    ),
    "adasum_by_layer": (
        (_as_one_layer, "one angle for all layers: each is to have its own"),
        (_number_by_number, "one angle for each number: a layer is a whole vector"),
        (_as_many_to_each, "the layers are not all of one size"),
        (_last_forgotten, "what about the last layer?"),
    ),
    "adasum_update": (
        (_on_gradients, "the gradients were combined; here it is what the optimizers make"),
        (_upwards, "it climbs: which sign has a move?"),
        (_moves_averaged, "the moves were averaged"),
        (_moves_summed, "the moves were summed"),
        (_one_velocity, "the workers share a velocity now: each has its own"),
        (_velocities_forgotten, "the velocities are still those of the update before"),
    ),
    "coefficient_from_parts": (
        (_mean_of_coefficients, "a mean of the slices' coefficients: do their lengths count?"),
        (_own_scales, "every slice has a unit of its own now: can they still be added?"),
        (_sum_of_overlaps, "a sum of quotients: what is to be added before dividing?"),
        (_first_part, "only the first rank's slice is in it"),
        (_of_b, "that is the coefficient of b"),
    ),
    "bytes_received": (
        (_own_too, "a rank need not receive what it already has"),
        (_counted_in_numbers, "these are numbers; how many bytes has one?"),
        (_one_way_round, "a ring goes round twice: once to add, and then?"),
        (_whole_vectors_round, "in a ring only a slice of the vector travels in each step"),
        (_all_ranks_together, "that is what all ranks receive together"),
    ),
}
