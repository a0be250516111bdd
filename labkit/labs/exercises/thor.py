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


def unscaled_factor(derivatives: np.ndarray, loss_scale: float) -> np.ndarray:
    """G = N^2 sum d d^T / N for derivatives d of the mean loss; ``derivatives`` is loss_scale d."""
    own = len(derivatives) * derivatives / loss_scale  # the derivatives of each row's loss
    total = np.zeros((derivatives.shape[1],) * 2)
    return sum((np.outer(d, d) for d in own), start=total) / len(derivatives)


def block_inverse(factor: np.ndarray, damping: float, split: int) -> np.ndarray:
    """Damp and invert ceil(n / split) diagonal blocks, as equal as possible; zeros elsewhere."""
    inverse = np.zeros_like(factor)
    for rows in np.array_split(np.arange(len(factor)), math.ceil(len(factor) / split)):
        block = np.ix_(rows, rows)
        inverse[block] = damped_inverse(factor[block], damping)
    return inverse


def pi_damping(
    a_factor: np.ndarray, g_factor: np.ndarray, positions: int, damping: float
) -> tuple[float, float]:
    """(pi sqrt(damping / T), sqrt(damping / T) / pi); pi^2 is the ratio of mean eigenvalues."""
    a, g = (np.trace(factor) / len(factor) for factor in (a_factor, g_factor))
    return _shared(math.sqrt(a / g), math.sqrt(damping / positions))


def _shared(pi: float, root: float) -> tuple[float, float]:
    return pi * root, root / pi


def refreshes_and_mean_time(
    updates: int, frequency: int, refresh: float, cached: float, *, count: int | None = None
) -> tuple[int, float]:
    """Number of refreshes (updates 0, frequency, ... below ``updates``) and mean time."""
    count = len(range(0, updates, frequency)) if count is None else count
    return count, (count * refresh + (updates - count) * cached) / updates


def trace_decision(
    a_factor: np.ndarray,
    g_factor: np.ndarray,
    positions: int,
    damping: float,
    last: float,
    high: float,
    low: float,
) -> tuple[float, int]:
    """D = |t - last| / last for t = trace(T G (x) A + damping I), and 1, 0 or -1 accordingly."""
    now = _trace(a_factor, g_factor, positions, damping)
    return _decided(abs(now - last) / last, high, low)


def _trace(a_factor: np.ndarray, g_factor: np.ndarray, positions: int, damping: float) -> float:
    """Trace of T G (x) A + damping I, without building the Kronecker product."""
    size = len(a_factor) * len(g_factor)
    return positions * np.trace(a_factor) * np.trace(g_factor) + damping * size


def _decided(change: float, high: float, low: float) -> tuple[float, int]:
    return change, 1 if change > high else -1 if change < low else 0


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


def _trace_case(seed: int, change: float) -> tuple:
    """A case whose trace has changed by ``change`` since the last refresh."""
    a_factor, g_factor = _factor(seed, 4), _factor(seed + 1, 3)
    last = _trace(a_factor, g_factor, 5, 0.3) / (1 + change)
    return a_factor, g_factor, 5, 0.3, last, 0.01, 0.001


_TIMES = [(936, 10, 42.0, 21.0), (7, 3, 30.0, 10.0), (6, 3, 30.0, 10.0), (100, 1, 5.0, 2.0)]
_DERIVATIVES = [(draw(3, 8, 3), 128.0), (draw(4, 5, 2), 1024.0), (draw(5, 1, 4), 2.0)]
_BLOCKS = [(_factor(5, 10), 0.1, 8), (_factor(6, 10), 0.1, 4), (_factor(7, 3), 0.3, 128)]
_FACTORS = [(_factor(1, 6), 20 * _factor(2, 3), 4, 0.3), (3 * _factor(3, 2), _factor(4, 5), 9, 1)]
_IMAGES = on_lenet.IMAGES
# Above both thresholds and between them, of either sign; below both.
_CHANGES = (0.2, -0.2, 0.004, -0.005, 0.0002)

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
    Exercise(refreshes_and_mean_time, _TIMES, {
        "refreshes_and_mean_time(updates, 0, refresh, cached, count=updates // frequency)":
            "update 0 refreshes too: is the last, incomplete stretch counted?",
        "refreshes_and_mean_time(updates, 0, refresh, cached, count=updates // frequency + 1)":
            "is there one more when the frequency divides the updates?",
        "(right[0], cached + right[0] * refresh / updates)":
            "an update with refresh takes `refresh` in all, not on top",
        "(right[0], cached + (refresh - cached) / frequency)":
            "right in the long run; here the refreshes can be counted",
    }, rtol=1e-9),
    Exercise(unscaled_factor, _DERIVATIVES, {
        "right * loss_scale": "G is quadratic in the derivatives: how often is the scale in it?",
        "right * loss_scale**2": "the loss scale is still in it",
        "right / len(derivatives) ** 2":
            "these are derivatives of the mean loss: how much larger are those of one row's?",
        "right * len(derivatives)": "a sum over the rows: it grows with the batch, and G must not",
        "unscaled_factor(derivatives.sum(axis=0, keepdims=True), loss_scale)":
            "the derivatives were averaged first: that forgets the batch",
    }),
    Exercise(block_inverse, _BLOCKS, {
        "np.where(block_inverse(factor, 1.0, split), damped_inverse(factor, damping), 0)":
            "blocks of the inverse are not inverses of the blocks",
        "damped_inverse(factor * np.equal.outer(*[np.arange(len(factor)) // split] * 2), damping)":
            "blocks of `split` and a rest: these are not as equal as possible",
        "block_inverse(factor + damping, 0.0, split)":
            "the damping was added to every entry: where does it belong?",
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
    Exercise(pi_damping, _FACTORS, {
        "right[::-1]": "the factor with the larger eigenvalues is to get the larger damping",
        "_shared((np.trace(a_factor) / np.trace(g_factor)) ** 0.5, (damping / positions) ** 0.5)":
            "the mean eigenvalue is the trace over what?",
        "_shared(right[0] / right[1], (damping / positions) ** 0.5)": "that is pi squared",
        "pi_damping(a_factor, g_factor, 1, damping)": "the positions T are missing",
        "[math.sqrt(damping / positions)] * 2": "both got the same: where is pi?",
    }),
    Exercise(trace_decision, [_trace_case(10 + 2 * i, c) for i, c in enumerate(_CHANGES)], {
        "(right[0], -right[1])": "a layer whose trace hardly changes is the one to freeze",
        "_decided(_trace(a_factor, g_factor, positions, damping) / last - 1, high, low)":
            "a trace that falls has changed as well",
        "_decided(right[0] * last, high, low)": "the thresholds are for the relative change",
        "_decided(abs(1 - last / _trace(a_factor, g_factor, positions, damping)), high, low)":
            "relative to the last refresh's trace, not to the new one",
        "trace_decision(a_factor, g_factor, positions, 0.0, last, high, low)":
            "the damping is in both traces, in the last one and in the new one",
        "trace_decision(a_factor, g_factor, positions, damping / 12, last, high, low)":
            "lambda I has a trace: how large is I?",
        "trace_decision(a_factor, g_factor, 1, damping, last, high, low)":
            "the positions T are not in F",
    }),
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
