"""Exercises of lab 03, THOR: plain specifications, cases, learners' mistakes."""

import math

import numpy as np

from labkit.labs.exercises import on_lenet
from labkit.labs.exercises.check import Exercise, draw, of_lab
from labkit.labs.exercises.on_lenet import OnTappedLeNet
from labkit.reference import damped_inverse


def patch_factor(patches: np.ndarray) -> np.ndarray:
    """A = sum over rows and positions of p p^T / (N T), for patches (N, inputs, T)."""
    total = np.zeros((patches.shape[1],) * 2)
    for row in range(len(patches)):
        for position in range(patches.shape[2]):
            total += np.outer(patches[row, :, position], patches[row, :, position])
    return total / (patches.shape[0] * patches.shape[2])


def block_inverse(factor: np.ndarray, epsilon: float, split: int) -> np.ndarray:
    """Damp by epsilon, invert ceil(n / split) diagonal blocks, as equal as possible; else zeros."""
    inverse = np.zeros_like(factor)
    for rows in np.array_split(np.arange(len(factor)), math.ceil(len(factor) / split)):
        block = np.ix_(rows, rows)
        inverse[block] = damped_inverse(factor[block], epsilon)
    return inverse


def lenet_factors(lenet: OnTappedLeNet) -> list[np.ndarray]:
    """A and G of fc3, computed in float64 from the p and d that a tap has seen."""
    p, d = _seen(lenet)
    return [p.T @ p / len(p), len(d) * d.T @ d]


def _seen(lenet: OnTappedLeNet) -> list[np.ndarray]:
    return [part.asnumpy().astype(np.float64) for part in lenet.seen()[1:]]


def lenet_thor(
    lenet: OnTappedLeNet,
    damping: float,
    updates: int,
    *,
    power: float = 0.5,
    frequency: int = 10**6,
    sides: str = "AG",
    scale: float = 1.0,
) -> list[np.ndarray]:
    """Parameters after updates with the inverses of update 0 on both sides of fc3's gradient.

    Each factor has ``damping**power``, and G is multiplied by ``scale``.
    """
    for number in range(updates):
        if number % frequency == 0:
            a, g = lenet_factors(lenet)
            left = damped_inverse(scale * g, damping**power) if "G" in sides else np.eye(len(g))
            right = damped_inverse(a, damping**power) if "A" in sides else np.eye(len(a))
        gradients = lenet.seen()[0]
        gradients[on_lenet.WEIGHT] = left @ gradients[on_lenet.WEIGHT].asnumpy() @ right
        lenet.update(gradients)
    return on_lenet.arrays(lenet)


def _factor(seed: int, n: int) -> np.ndarray:
    vectors = draw(seed, 3 * n, n)
    return vectors.T @ vectors / len(vectors)


_BLOCKS = [(_factor(5, 10), 0.1, 8), (_factor(6, 10), 0.1, 4), (_factor(7, 3), 0.3, 128)]
_IMAGES = on_lenet.IMAGES

EXERCISES = (
    Exercise(patch_factor, [(draw(0, 4, 3, 5),), (draw(1, 2, 4, 1),), (draw(2, 3, 2, 7),)], {
        "patch_factor(patches.mean(axis=0, keepdims=True))":
            "the patches were averaged over the batch first: that forgets the batch",
        "right * patches.shape[2]": "a mean over rows; what about the positions?",
        "right * len(patches)": "a mean over positions; what about the rows?",
        "right * len(patches) * patches.shape[2] / patches.shape[1]":
            "divided by the width of the layer: that is not a number of samples",
        "np.outer(*[patches.mean(axis=(0, 2))] * 2)":
            "p was averaged before the outer product: that forgets how the patches differ",
        "right - np.outer(*[patches.mean(axis=(0, 2))] * 2)":
            "that is the covariance of p: A is its second moment, nothing is centred",
    }),
    Exercise(block_inverse, _BLOCKS, {
        "np.where(block_inverse(factor, 1.0, split), damped_inverse(factor, epsilon), 0)":
            "blocks of the inverse are not inverses of the blocks",
        "damped_inverse(factor * np.equal.outer(*[np.arange(len(factor)) // split] * 2), epsilon)":
            "blocks of `split` and a rest: these are not as equal as possible",
        "block_inverse(factor + epsilon, 0.0, split)":
            "epsilon was added to every entry: where does it belong?",
        "block_inverse(factor, epsilon**0.5, split)":
            "the root was taken: epsilon is the root of the damping already",
        "block_inverse(factor, 0.0, split)": "there is no damping in it",
    }),
    Exercise(lenet_factors, [(OnTappedLeNet(1),)], {
        "[right[0], right[1] / _IMAGES**2]":
            "d is the derivative of the mean loss: how much larger is that of one image's?",
        "[right[0], right[1] * _IMAGES]": "G is a sum over the images: it grows with the batch",
        "[right[0] * _IMAGES, right[1]]": "A is a sum over the images: it grows with the batch",
        "[right[0], right[1] / _IMAGES]":
            "the sum of the outer products of d is there: is it G yet?",
        "[np.outer(p.mean(0), p.mean(0)) * by**2 for p, by in zip(_seen(lenet), (1, _IMAGES))]":
            "averages before the outer product: that forgets the batch",
        "[0 * right[0], 0 * right[1]]":
            "both are zeros: does `bprop` return something for a and g?",
    }, rtol=1e-4),  # float32, and 12 images whose derivatives nearly cancel in places
    Exercise(lenet_thor, [(OnTappedLeNet(1), 0.1, 2)], {
        "lenet_thor(lenet, damping, updates, frequency=1)":
            "the inverses are made again at each update: they were to be kept",
        "lenet_thor(lenet, damping, updates, power=1.0)":
            "the whole damping went into each factor: their product gets its square",
        "lenet_thor(lenet, damping, updates, sides='A')":
            "only the inputs' side is there: G is missing",
        "lenet_thor(lenet, damping, updates, sides='G')":
            "only the outputs' side is there: A is missing",
        "lenet_thor(lenet, damping, updates, scale=1 / _IMAGES**2)":
            "G is too small: of which loss is d the derivative?",
        "on_lenet.update_of_each(lenet, [_IMAGES], updates)":
            "that is Momentum with the plain gradient: what did the inverses do?",
    }, rtol=1e-4),
)  # fmt: skip

check, hint = of_lab(EXERCISES)
