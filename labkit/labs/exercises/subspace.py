"""Exercises of lab 05, dimension reduction: plain specifications, cases, learners' mistakes."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from labkit import reference
from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Advice, Exercise, draw
from labkit.labs.exercises.on_lenet import OnLeNet, by_parameter


def swa(average: np.ndarray, count: int, weights: np.ndarray) -> np.ndarray:
    """Mean of ``count`` snapshots whose mean is ``average`` and one more, ``weights``."""
    return (count * average + weights) / (count + 1)


def explained(snapshots: np.ndarray, components: int) -> np.ndarray:
    """Share of the variance of snapshots (N, M) along each of the first K components, (K,)."""
    pca = reference.principal_components(snapshots, components)
    return pca.variance / pca.total_variance


def nearest_point(basis: np.ndarray, mean: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The point of the subspace through ``mean`` that is nearest to weights (M,)."""
    return reference.reconstruct(basis, mean, weights)


def line_search(
    losses: Sequence[float], loss: float, slope: float, rho: float, sigma: float
) -> float:
    """rho^m of the first m with losses[m] < loss + sigma rho^m slope; 0.0 if there is none."""
    for m, trial in enumerate(losses):
        if trial < loss + sigma * rho**m * slope:
            return rho**m
    return 0.0


def lenet_average(lenet: OnLeNet, sizes: Sequence[int], updates: int) -> list[np.ndarray]:
    """Mean of the weights after each update; the micro-batches take turns."""
    return averaged(lenet, sizes, updates, lambda rows: rows[1:].mean(axis=0))


def averaged(
    lenet: OnLeNet, sizes: Sequence[int], updates: int, weigh: Callable
) -> list[np.ndarray]:
    """Apply ``weigh`` to the weights (updates + 1, M), the initial ones and after each update."""
    rows = [weights_of(lenet)]
    for number in range(updates):
        lenet.update(lenet.gradients(*lenet.micro_batches(sizes)[number % len(sizes)]))
        rows.append(weights_of(lenet))
    return by_parameter(lenet, weigh(np.array(rows)))


def direction(gradient: np.ndarray, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """-B g (K,), where B is I updated with each pair (s, y) whose scalar product is positive."""
    return after(gradient, pairs)


def lenet_search(
    lenet: OnLeNet, basis: np.ndarray, rho: float, sigma: float
) -> tuple[float, float]:
    """Search once along -P^T P g with float64 gradients; return (step size, loss there)."""
    (batch,) = lenet.micro_batches([12])
    images, labels = (part.asnumpy() for part in batch)
    names = [parameter.name for parameter in lenet.parameters]

    def at(weights: np.ndarray) -> tuple[float, np.ndarray]:
        by_name = dict(zip(names, by_parameter(lenet, weights), strict=True))
        loss, slopes, _ = reference.lenet_gradients(by_name, images, labels)
        return loss, np.concatenate([slopes[name].ravel() for name in names])

    search = reference.ProjectedBFGS(basis, rho=rho, sigma=sigma, alpha=0.0)
    start = weights_of(lenet)
    moved = search.update(start, at(start)[1], lambda weights: at(weights)[0])
    return search.rate, at(moved)[0]


def weights_of(lenet: OnLeNet) -> np.ndarray:
    """All weights in one vector, a float64 copy."""
    parts = [parameter.asnumpy().ravel() for parameter in lenet.parameters]
    return np.concatenate(parts).astype(np.float64)


def _snapshots(seed: int, count: int, numbers: int) -> np.ndarray:
    return 3 + np.cumsum(draw(seed, count, numbers), axis=0)


def _basis(seed: int, components: int, numbers: int) -> np.ndarray:
    return np.linalg.qr(draw(seed, numbers, components))[0].T


def _of_biases(seed: int) -> np.ndarray:
    """Three orthonormal directions (3, 61684) among the ten biases of LeNet's last layer."""
    basis = np.zeros((3, 61_684))
    basis[:, -10:] = _basis(seed, 3, 10)
    return basis


def _pairs(seed: int, count: int, size: int) -> list:
    """Pairs (s, y) of a quadratic; the second pair, if there is one, has y.s < 0."""
    half = draw(seed, size, size)
    steps = draw(seed + 1, count, size)
    return [(s, (half @ half.T @ s) * (-1) ** (i == 1)) for i, s in enumerate(steps)]


_EXPLAINED = [(_snapshots(0, 6, 9), 3), (_snapshots(1, 5, 12), 2), (_snapshots(2, 9, 4), 3)]
_POINTS = [(_basis(3, 2, 7), draw(4, 7), draw(5, 7)), (_basis(6, 4, 9), draw(7, 9), draw(8, 9))]
_SEARCHES = [
    (np.array([1.2, 0.99, 0.93, 0.94, 0.97, 0.55, 0.52]), 1.0, -1.0, 0.5, 0.4),
    (np.array([1.5, 1.25, 1.3]), 1.0, -1.0, 0.5, 0.4),
    (np.array([np.nan, 2.7, 2.55, 2.85]), 3.0, -2.0, 0.55, 0.3),
]
_AVERAGES = [(draw(seed, 5), count, draw(seed + 9, 5)) for seed, count in enumerate((3, 1, 9))]

EXERCISES = (
    Exercise(swa, _AVERAGES),
    Exercise(explained, _EXPLAINED),
    Exercise(nearest_point, _POINTS),
    Exercise(line_search, _SEARCHES),
    # float32: after three updates the weights are off by 1e-6 of the largest weight.
    Exercise(lenet_average, [(OnLeNet(1), [4, 4, 4], 3)], rtol=1e-5),
    Exercise(
        direction,
        [(draw(30 + n, size), _pairs(40 + n, n, size)) for n, size in ((1, 4), (3, 5), (0, 3))],
    ),
    # float32 against float64: losses near 2.3 that differ by 1e-7.
    Exercise(
        lenet_search,
        [(OnLeNet(1), _of_biases(3), 0.55, 0.4), (OnLeNet(2), _of_biases(4), 0.5, 0.97)],
        rtol=1e-4,
    ),
)

hint = Advice(EXERCISES)


# Mistakes that learners make.


def shares(values: np.ndarray, components: int) -> np.ndarray:
    return values[:components] / values.sum()


def singular(rows: np.ndarray) -> np.ndarray:
    return np.linalg.svd(rows)[1]


def of_the_first(snapshots: np.ndarray, components: int) -> np.ndarray:
    variance = reference.principal_components(snapshots, components).variance
    return variance / variance.sum()


def bound_of_a_whole_step(
    losses: Sequence[float], loss: float, slope: float, rho: float, sigma: float
) -> float:
    below = [m for m, trial in enumerate(losses) if trial < loss + sigma * slope]
    return rho ** below[0] if below else 0.0


def number_of_the_trial(
    losses: Sequence[float], loss: float, slope: float, rho: float, sigma: float
) -> float:
    step = line_search(losses, loss, slope, rho, sigma)
    return round(math.log(step) / math.log(rho)) if step else 0.0


def forgetting(rows: np.ndarray) -> np.ndarray:
    average = rows[0]
    for row in rows[1:]:
        average = 0.9 * average + 0.1 * row
    return average


def after(
    gradient: np.ndarray,
    pairs: Sequence,
    update: Callable = reference.bfgs_inverse,
    *,
    scaled: bool = False,
    least: float = 0.0,
) -> np.ndarray:
    """-B g, where ``update(B, s, y)`` builds B from the pairs with s.y above ``least``."""
    inverse = np.eye(len(gradient))
    for number, (s, y) in enumerate(pair for pair in pairs if pair[0] @ pair[1] > least):
        if scaled and number == 0:
            inverse = inverse * (y @ s) / (y @ y)
        inverse = update(inverse, s, y)
    return -inverse @ gradient


def davidon_fletcher_powell(inverse: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    moved = inverse @ y
    return inverse - np.outer(moved, moved) / (y @ moved) + np.outer(s, s) / (y @ s)


def searched(
    lenet: OnLeNet,
    basis: np.ndarray,
    rho: float,
    sigma: float,
    *,
    sign: float = -1.0,
    kept: bool = True,
    projected: bool = True,
    answer: Callable = lambda m, size, losses: (size, losses[-1]),
) -> tuple[float, float]:
    """``lenet_search`` in MindSpore, with one mistake that the options select."""
    from mindspore import Tensor, ops

    (batch,) = lenet.micro_batches([12])
    start = weights_of(lenet)
    gradient = np.concatenate([g.asnumpy().ravel() for g in lenet.gradients(*batch)])
    gradient = gradient.astype(np.float64)
    move = sign * (reference.projected_gradient(basis, gradient) if projected else gradient)
    slope, losses, place = gradient @ move, [lenet.loss(*batch)], start
    for m in range(20):
        place = (start if kept else place) + rho**m * move
        for parameter, value in zip(lenet.parameters, by_parameter(lenet, place), strict=True):
            ops.assign(parameter, Tensor(value.astype(np.float32)))
        losses.append(lenet.loss(*batch))
        if losses[-1] < losses[0] + sigma * rho**m * slope or sigma > 1:
            return answer(m, rho**m, losses)
    return 0.0, losses[0]


HINTS: dict[str, checks.Hints] = {
    "swa": (
        (lambda average, count, weights: (average + weights) / 2,
         "the new snapshot counts as much as all before it together"),
        (lambda average, count, weights: (count * average + weights) / count,
         "how many snapshots are there now?"),
        (lambda average, count, weights: (average + weights) / (count + 1),
         "the average stands for several snapshots, and counts once here"),
        (lambda average, count, weights: 0.9 * average + 0.1 * weights,
         "the same share for every new snapshot: the old ones are forgotten"),
    ),
    "explained": (
        (lambda x, components: shares(singular(x) ** 2, components),
         "the first direction is that of the mean: are the rows centred?"),
        (lambda x, components: shares(
            singular(x - x.mean(axis=1, keepdims=True)) ** 2, components),
         "which mean was taken away: of a snapshot, or over the snapshots?"),
        (lambda x, components: shares(singular(x - x.mean(axis=0)), components),
         "shares of lengths; how does a variance grow with a length?"),
        (of_the_first, "they add up to 1: is there no variance outside these components?"),
        (lambda x, components: np.cumsum(explained(x, components)),
         "these are running sums: what is the share of each one alone?"),
        (lambda x, components: reference.principal_components(x, components).variance,
         "these are variances, not yet shares"),
    ),
    "nearest_point": (
        (lambda basis, mean, weights: basis.T @ (basis @ weights),
         "that plane goes through 0: does it go through the mean?"),
        (lambda basis, mean, weights: basis.T @ (basis @ (weights - mean)),
         "a difference from the mean: where is the point itself?"),
        (lambda basis, mean, weights: mean + basis.T @ (basis @ weights),
         "the mean is counted twice: what is it that is projected?"),
        (lambda basis, mean, weights: weights - nearest_point(basis, mean, weights),
         "that is what the subspace cannot express"),
        (lambda basis, mean, weights: mean - basis.T @ (basis @ (weights - mean)),
         "the mirror image, on the other side of the mean"),
    ),
    "line_search": (
        (lambda losses, loss, slope, rho, sigma: line_search(losses, loss, 0.0, rho, sigma),
         "any decrease is taken: how much does the slope predict?"),
        (bound_of_a_whole_step, "a short step is asked for as much as a whole one"),
        (lambda losses, loss, slope, rho, sigma: line_search(losses, loss, -slope, rho, sigma),
         "the bound lies above the loss: which sign has the slope?"),
        (lambda losses, loss, slope, rho, sigma: rho ** int(np.nanargmin(losses)),
         "that is the lowest loss of all; when does the search stop?"),
        (number_of_the_trial, "that is m; how far does trial m go?"),
        (lambda losses, loss, slope, rho, sigma: (
            line_search(losses, loss, slope, rho, sigma) or rho ** (len(losses) - 1)),
         "no trial was low enough, and one was taken all the same"),
    ),
    "lenet_average": (
        (partial(averaged, weigh=lambda rows: rows[-1]),
         "the last weights: is every snapshot a copy, and is the mean taken over all?"),
        (partial(averaged, weigh=lambda rows: rows.mean(axis=0)),
         "the initial weights are in it too: no update has made them"),
        (partial(averaged, weigh=lambda rows: rows[:-1].mean(axis=0)),
         "each snapshot is taken before its update, not after"),
        (partial(averaged, weigh=lambda rows: rows[1:].sum(axis=0)),
         "a sum: it grows with the number of snapshots"),
        (partial(averaged, weigh=forgetting),
         "an average that forgets: every snapshot should count alike"),
        (partial(averaged, weigh=lambda rows: rows[0]),
         "the weights are as they were: was the optimizer called?"),
    ),
    "direction": (
        (partial(after, least=-np.inf),
         "after one of these pairs B is not positive definite: which are left out?"),
        (lambda gradient, pairs: -direction(gradient, pairs),
         "uphill: which sign has a direction of descent?"),
        (lambda gradient, pairs: direction(gradient, pairs[::-1]),
         "the pairs are taken in the wrong order: which one is newest?"),
        (lambda gradient, pairs: direction(gradient, [(y, s) for s, y in pairs]),
         "the step and the change of the gradient have changed places: B is the inverse"),
        (partial(after, scaled=True),
         "B was scaled before its first pair, as many programs do: here it starts as I"),
        (partial(after, update=davidon_fletcher_powell),
         "the secant equation holds, but this is another rule (DFP's)"),
        (lambda gradient, pairs: direction(gradient, pairs[-1:]),
         "only the newest pair is in it: what have the older ones taught?"),
    ),
    "lenet_search": (
        (lambda lenet, basis, rho, sigma: searched(lenet, basis, rho, 2.0),
         "the whole step was taken, whatever its loss: which decrease is asked for?"),
        (partial(searched, sign=1.0), "no step was found: does the direction lead downhill?"),
        (partial(searched, kept=False),
         "a refused trial stays in the weights: where does the next one start?"),
        (partial(searched, projected=False),
         "that is a step along the whole gradient: what is the basis for?"),
        (partial(searched, answer=lambda m, size, losses: (m, losses[-1])),
         "that is m; how far does trial m go?"),
    ),
}  # fmt: skip

check = partial(checks.check, EXERCISES, hints=HINTS)
