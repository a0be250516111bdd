"""Exercises of lab 04, Adasum: plain specifications, cases, learners' mistakes."""

from collections.abc import Callable, Sequence

import numpy as np

from labkit import reference
from labkit.labs.exercises import on_lenet
from labkit.labs.exercises.check import Exercise, draw, of_lab
from labkit.labs.exercises.on_lenet import OnLeNet


def two_orders(w: np.ndarray, x: np.ndarray, y: np.ndarray, rate: float) -> np.ndarray:
    """Mean of two results of SGD: (x.w + 1)^2 / 2 then (y.w + 1)^2 / 2, and the other order."""
    first = _step(_step(w, x, rate), y, rate)
    second = _step(_step(w, y, rate), x, rate)
    return (first + second) / 2


def _step(w: np.ndarray, v: np.ndarray, rate: float) -> np.ndarray:
    return w - rate * (v @ w + 1) * v


def lenet_adasum(lenet: OnLeNet, sizes: Sequence[int]) -> list[np.ndarray]:
    """Adasum of the workers' gradients, each parameter by itself, in float64."""
    return on_lenet.combined(lenet, sizes, _tree)


def _tree(parts: np.ndarray, reduce: Callable = reference.adasum_tree) -> np.ndarray:
    return reduce(list(parts.reshape(len(parts), -1))).reshape(parts[0].shape)


def _in_turn(vectors: Sequence[np.ndarray]) -> np.ndarray:
    total = vectors[0]
    for vector in vectors[1:]:
        total = reference.adasum_pair(total, vector)
    return total


def _row_by_row(parts: np.ndarray) -> np.ndarray:
    return np.stack([_tree(parts[:, row, None])[0] for row in range(parts.shape[1])])


def _whole_network(lenet: OnLeNet, sizes: Sequence[int]) -> list[np.ndarray]:
    gradients = on_lenet.each_gradient(lenet, sizes)
    flat = [np.concatenate([part.ravel() for part in own]) for own in gradients]
    return on_lenet.by_parameter(lenet, reference.adasum_tree(flat))


def adasum_update(
    w: np.ndarray, gradients: np.ndarray, velocities: np.ndarray, rate: float, momentum: float
) -> tuple[np.ndarray, np.ndarray]:
    """Each worker's Momentum moves w by -rate v; the two moves are combined. Returns (w, v)."""
    velocities = momentum * velocities + gradients
    return w + reference.adasum_pair(*(-rate * velocities)), velocities


def _on_gradients(w: np.ndarray, kept: np.ndarray, gradients: np.ndarray, rate: float) -> tuple:
    velocities = kept + reference.adasum_pair(*gradients)
    return w - rate * velocities.mean(axis=0), velocities


def lenet_adasum_training(lenet: OnLeNet, sizes: Sequence[int], updates: int) -> list[np.ndarray]:
    """Parameters after ``updates`` updates, each with the on_lenet.combined gradient."""
    return on_lenet.trained(lenet, sizes, updates, _tree)


_STEPS = [(draw(i, 3), draw(5 + i, 3), draw(9 + i, 3), 0.1 + i / 5) for i in range(3)]
_UPDATES = [
    (draw(20 + i, 4), draw(30 + i, 2, 4), draw(40 + i, 2, 4), 0.1 + i / 5, 0.9 - i / 10)
    for i in range(3)
]

EXERCISES = (
    Exercise(two_orders, _STEPS, {
        "_step(_step(w, x, rate), y, rate)": "that is one order: what would the other one give?",
        "_step(w, x, rate) + _step(w, y, rate) - w":
            "both gradients belong to the weights at the start: where does a second step begin?",
        "(_step(w, x, rate) + _step(w, y, rate)) / 2":
            "two single steps, averaged: each order has two steps",
        "two_orders(w, x, y, -rate)": "it climbs: which way does SGD go?",
        "w - rate * reference.adasum_pair((x @ w + 1) * x, (y @ w + 1) * y)":
            "that is Adasum, the same at one rate only: make the steps themselves",
    }),
    Exercise(lenet_adasum, [(OnLeNet(1), [6, 6])], {
        "on_lenet.combined(lenet, sizes, lambda parts: parts.mean(axis=0))":
            "that is the mean, whatever the angle",
        "on_lenet.combined(lenet, sizes, sum)": "that is the sum, whatever the angle",
        "_whole_network(lenet, sizes)":
            "one angle for the whole network: each parameter is to have its own",
        "on_lenet.combined(lenet, sizes, _row_by_row)":
            "one angle for each row of a weight: the parameter is one vector",
    }, rtol=1e-4),  # float32: scalar products of 48 000 numbers are off by 1e-6 of the lengths
    Exercise(adasum_update, _UPDATES, {
        "_on_gradients(w, momentum * velocities, gradients, rate)":
            "the gradients were combined; here it is what the optimizers make",
        "(_on_gradients(w, momentum * velocities, gradients, rate)[0], right[1])":
            "that is Adasum of the gradients: it is the moves that are combined",
        "(w - rate * right[1].mean(axis=0), np.tile(right[1].mean(axis=0), (2, 1)))":
            "one optimizer for both, on the mean gradient: each worker has its own",
        "(2 * w - right[0], right[1])": "it climbs: which sign has a move?",
        "(w - rate * right[1].mean(axis=0), right[1])": "the moves were averaged",
        "(w - rate * right[1].sum(axis=0), right[1])": "the moves were summed",
        "(right[0], np.tile(reference.adasum_pair(*right[1]), (2, 1)))":
            "the workers share a velocity now: each has its own",
        "(right[0], velocities)": "the velocities are still those of the update before",
    }),
    Exercise(lenet_adasum_training, [(OnLeNet(1), [3, 3, 3, 3], 2)], {
        "on_lenet.trained(lenet, sizes, updates, lambda parts: parts.mean(axis=0))":
            "the gradients were averaged",
        "on_lenet.trained(lenet, sizes, updates, sum)": "the gradients were summed",
        "on_lenet.trained(lenet, sizes, updates, lambda parts: _tree(parts, _in_turn))":
            "one after the other: then the last worker counts as much as all before",
        "on_lenet.update_of_each(lenet, sizes, updates)":
            "it makes an update of every worker: the weights must wait",
    }, rtol=1e-4),
)  # fmt: skip

check, hint = of_lab(EXERCISES)
