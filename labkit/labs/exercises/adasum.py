"""Exercises of lab 04, Adasum: plain specifications, cases, learners' mistakes."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from labkit import reference
from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Advice, Exercise, draw
from labkit.labs.exercises.on_lenet import OnLeNet, by_parameter, each_gradient, update_of_each


def two_orders(w: np.ndarray, x: np.ndarray, y: np.ndarray, rate: float) -> np.ndarray:
    """Mean of two results of SGD: (x.w + 1)^2 / 2 then (y.w + 1)^2 / 2, and the other order."""
    first = _step(_step(w, x, rate), y, rate)
    second = _step(_step(w, y, rate), x, rate)
    return (first + second) / 2


def _step(w: np.ndarray, v: np.ndarray, rate: float) -> np.ndarray:
    return w - rate * (v @ w + 1) * v


def bytes_received(ranks: int, numbers: int) -> tuple[int, float]:
    """Bytes that one rank receives of float32 vectors: (AllGather, ring AllReduce)."""
    gathered = 4 * numbers * (ranks - 1)
    reduced = 2 * 4 * numbers * (ranks - 1) / ranks
    return gathered, reduced


def adasum_by_layer(a: np.ndarray, b: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Adasum of each layer by itself; ``a`` and ``b`` concatenate layers of ``sizes`` numbers."""
    parts, start = [], 0
    for size in sizes:
        parts.append(reference.adasum_pair(a[start : start + size], b[start : start + size]))
        start += size
    return np.concatenate(parts)


def lenet_adasum(lenet: OnLeNet, sizes: Sequence[int]) -> list[np.ndarray]:
    """Adasum of the workers' gradients, each parameter by itself, in float64."""
    return _by_parameter(each_gradient(lenet, sizes), reference.adasum_tree)


def adasum_update(
    w: np.ndarray, gradients: np.ndarray, velocities: np.ndarray, rate: float, momentum: float
) -> tuple[np.ndarray, np.ndarray]:
    """Each worker's Momentum moves w by -rate v; the two moves are combined. Returns (w, v)."""
    velocities = momentum * velocities + gradients
    moves = -rate * velocities
    return w + reference.adasum_pair(*moves), velocities


def lenet_adasum_training(lenet: OnLeNet, sizes: Sequence[int], updates: int) -> list[np.ndarray]:
    """Parameters after ``updates`` updates, each with the combined gradient."""
    return _trained(lenet, sizes, updates, reference.adasum_tree)


Combine = Callable[[Sequence[np.ndarray]], np.ndarray]


def _by_parameter(gradients: list[list[np.ndarray]], combine: Combine) -> list[np.ndarray]:
    """Combine the workers' vectors of each parameter; each result has the parameter's shape."""
    return [
        combine([part.ravel() for part in parts]).reshape(parts[0].shape)
        for parts in zip(*gradients, strict=True)
    ]


def _trained(lenet: OnLeNet, sizes: Sequence[int], updates: int, combine: Combine) -> list:
    from mindspore import Tensor

    for _ in range(updates):
        parts = _by_parameter(each_gradient(lenet, sizes), combine)
        lenet.update([Tensor(part.astype(np.float32)) for part in parts])
    return [parameter.asnumpy() for parameter in lenet.parameters]


_STEPS = [(draw(i, 3), draw(5 + i, 3), draw(9 + i, 3), 0.1 + i / 5) for i in range(3)]
_LAYERS = [
    (draw(10, 9), draw(11, 9), [2, 6, 1]),
    (draw(12, 12), draw(13, 12), [5, 4, 3]),
    (draw(14, 7), np.append(draw(15, 3), np.zeros(4)), [1, 2, 4]),
]
_UPDATES = [
    (draw(20 + i, 4), draw(30 + i, 2, 4), draw(40 + i, 2, 4), 0.1 + i / 5, 0.9 - i / 10)
    for i in range(3)
]

EXERCISES = (
    Exercise(two_orders, _STEPS),
    Exercise(bytes_received, [(2, 61_684), (16, 1000), (8, 25_000_000)], 1e-9),
    Exercise(adasum_by_layer, _LAYERS),
    # float32: scalar products of 48 000 numbers are off by 1e-6 of the lengths.
    Exercise(lenet_adasum, [(OnLeNet(1), [6, 6])], rtol=1e-4),
    Exercise(adasum_update, _UPDATES),
    Exercise(lenet_adasum_training, [(OnLeNet(1), [3, 3, 3, 3], 2)], rtol=1e-4),
)

hint = Advice(EXERCISES)


# Mistakes that learners make.


def _divided(a: np.ndarray, b: np.ndarray, for_a: float, for_b: float) -> np.ndarray:
    """Adasum of a pair, but with the overlap divided by 2 ``for_a`` and 2 ``for_b``."""
    product = sum(a * b)
    return (1 - product / (2 * for_a)) * a + (1 - product / (2 * for_b)) * b


def _each_layer(pair: Callable) -> Callable:
    """Apply a wrong pair function layer by layer."""

    def by_layer(a: np.ndarray, b: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
        ends = np.cumsum(sizes)[:-1]
        both = zip(np.split(a, ends), np.split(b, ends), strict=True)
        return np.concatenate([pair(*layer) for layer in both])

    return by_layer


def _on_gradients(
    w: np.ndarray, gradients: np.ndarray, velocities: np.ndarray, rate: float, momentum: float
) -> tuple[np.ndarray, np.ndarray]:
    velocities = momentum * velocities + reference.adasum_pair(*gradients)
    return w - rate * velocities.mean(axis=0), velocities


def _shared_velocity(
    w: np.ndarray, gradients: np.ndarray, velocities: np.ndarray, rate: float, momentum: float
) -> tuple[np.ndarray, np.ndarray]:
    moved, velocities = adasum_update(w, gradients, velocities, rate, momentum)
    return moved, np.tile(reference.adasum_pair(*velocities), (2, 1))


def _times(of_gathered: float, of_reduced: float) -> Callable:
    """The right numbers of bytes, times these factors."""

    def received(ranks: int, numbers: int) -> tuple[float, float]:
        gathered, reduced = bytes_received(ranks, numbers)
        return of_gathered * gathered, of_reduced * reduced

    return received


def _of_rows(reduce: Callable) -> Combine:
    return partial(reduce, axis=0)


def _in_turn(vectors: Sequence[np.ndarray]) -> np.ndarray:
    total = vectors[0]
    for vector in vectors[1:]:
        total = reference.adasum_pair(total, vector)
    return total


def _whole_network(lenet: OnLeNet, sizes: Sequence[int]) -> list[np.ndarray]:
    parts = each_gradient(lenet, sizes)
    whole = reference.adasum_tree([np.concatenate([p.ravel() for p in own]) for own in parts])
    return by_parameter(lenet, whole)


def _row_by_row(lenet: OnLeNet, sizes: Sequence[int]) -> list[np.ndarray]:
    return [
        np.stack([reference.adasum_pair(x, y).reshape(x.shape) for x, y in zip(a, b, strict=True)])
        for a, b in zip(*each_gradient(lenet, sizes), strict=True)
    ]


HINTS: dict[str, checks.Hints] = {
    "two_orders": (
        (lambda w, x, y, rate: _step(_step(w, x, rate), y, rate),
         "that is one order: what would the other one give?"),
        (lambda w, x, y, rate: _step(w, x, rate) + _step(w, y, rate) - w,
         "both gradients belong to the weights at the start: where does a second step begin?"),
        (lambda w, x, y, rate: (_step(w, x, rate) + _step(w, y, rate)) / 2,
         "two single steps, averaged: each order has two steps"),
        (lambda w, x, y, rate: two_orders(w, x, y, -rate), "it climbs: which way does SGD go?"),
        (lambda w, x, y, rate: w - rate * reference.adasum_pair((x @ w + 1) * x, (y @ w + 1) * y),
         "that is Adasum, the same at one rate only: make the steps themselves"),
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
    "adasum_by_layer": (
        (lambda a, b, sizes: reference.adasum_pair(a, b),
         "one angle for all layers: each is to have its own"),
        (lambda a, b, sizes: adasum_by_layer(a, b, [1] * len(a)),
         "one angle for each number: a layer is a whole vector"),
        (lambda a, b, sizes: (a + b) / 2, "that is the mean, whatever the angle"),
        (lambda a, b, sizes: a + b, "that is the sum, whatever the angle"),
        (_each_layer(lambda a, b: _divided(a, b, math.hypot(*a), math.hypot(*b))),
         "is the overlap divided by a length, or by its square?"),
        (_each_layer(lambda a, b: 2 * reference.adasum_pair(a, b) - a - b),
         "parallel vectors cancel now: how much of the overlap is to go?"),
        (_each_layer(lambda a, b: _divided(a, b, sum(b * b), sum(a * a))),
         "each coefficient divides by the length of which vector?"),
        (_each_layer(lambda a, b: (1 - reference.cosine(a, b) / 2) * (a + b)),
         "right for vectors of one length only: does it know the two lengths?"),
    ),
    "lenet_adasum": (
        (lambda lenet, sizes: _by_parameter(each_gradient(lenet, sizes), _of_rows(np.mean)),
         "that is the mean, whatever the angle"),
        (lambda lenet, sizes: _by_parameter(each_gradient(lenet, sizes), _of_rows(np.sum)),
         "that is the sum, whatever the angle"),
        (_whole_network, "one angle for the whole network: each parameter is to have its own"),
        (_row_by_row, "one angle for each row of a weight: the parameter is one vector"),
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
        (_shared_velocity, "the workers share a velocity now: each has its own"),
        (lambda w, g, v, rate, momentum: (adasum_update(w, g, v, rate, momentum)[0], v),
         "the velocities are still those of the update before"),
    ),
    "lenet_adasum_training": (
        (partial(_trained, combine=_of_rows(np.mean)), "the gradients were averaged"),
        (partial(_trained, combine=_of_rows(np.sum)), "the gradients were summed"),
        (partial(_trained, combine=_in_turn),
         "one after the other: then the last worker counts as much as all before"),
        (update_of_each, "it makes an update of every worker: the weights must wait"),
    ),
}  # fmt: skip

check = partial(checks.check, EXERCISES, hints=HINTS)
