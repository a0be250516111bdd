"""Specifications of lab 04, Adasum: what each exercise asks for, slow and plain."""

import numpy as np

from labkit import reference


def adasum_pair(a, b):
    """(1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b; a zero vector passes the other through."""
    return reference.adasum_pair(a, b)


def adasum_all(vectors):
    """Adasum(Adasum(first half), Adasum(second half)) for (N, d), N a power of two."""
    if len(vectors) == 1:
        return vectors[0]
    half = len(vectors) // 2
    return adasum_pair(adasum_all(vectors[:half]), adasum_all(vectors[half:]))


def adasum_by_layer(a, b, sizes):
    """The pair for each layer by itself; layers of ``sizes`` numbers lie one behind the other."""
    parts, start = [], 0
    for size in sizes:
        parts.append(adasum_pair(a[start : start + size], b[start : start + size]))
        start += size
    return np.concatenate(parts)


def adasum_update(w, gradients, velocities, rate, momentum):
    """Each worker's Momentum moves w by -rate v; the two moves are combined. Returns (w, v)."""
    velocities = momentum * velocities + gradients
    moves = -rate * velocities
    return w + adasum_pair(*moves), velocities


def coefficient_from_parts(parts):
    """1 - a.b / (2 |a|^2), where each rank holds a slice of a and the same one of b: (a_i, b_i)."""
    product = sum(float(a @ b) for a, b in parts)
    square = sum(float(a @ a) for a, _ in parts)
    return 1 - product / (2 * square)


def bytes_received(ranks, numbers):
    """(AllGather of float32, ring AllReduce) in bytes that one rank receives."""
    gathered = 4 * numbers * (ranks - 1)
    reduced = 2 * 4 * numbers * (ranks - 1) / ranks
    return gathered, reduced
