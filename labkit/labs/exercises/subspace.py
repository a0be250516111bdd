"""Exercises of lab 05, dimension reduction: cases, hints, learners' mistakes."""

from functools import partial

import numpy as np

from labkit import reference
from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Advice, Exercise, draw
from labkit.labs.exercises.on_lenet import OnLeNet
from labkit.labs.exercises.subspace_answers import (
    after,
    averaged,
    bound_of_a_whole_step,
    davidon_fletcher_powell,
    direction,
    explained,
    forgetting,
    lenet_average,
    lenet_search,
    line_search,
    nearest_point,
    number_of_the_trial,
    of_the_first,
    searched,
    shares,
    singular,
    swa,
)


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
    Exercise(swa, _AVERAGES, level="easy"),
    Exercise(explained, _EXPLAINED, level="easy"),
    Exercise(nearest_point, _POINTS, level="medium"),
    Exercise(line_search, _SEARCHES, level="medium"),
    # float32: after three updates the weights are off by 1e-6 of the largest weight.
    Exercise(lenet_average, [(OnLeNet(1), [4, 4, 4], 3)], rtol=1e-5, level="medium"),
    Exercise(
        direction,
        [(draw(30 + n, size), _pairs(40 + n, n, size)) for n, size in ((1, 4), (3, 5), (0, 3))],
        level="hard",
    ),
    # float32 against float64: losses near 2.3 that differ by 1e-7.
    Exercise(
        lenet_search,
        [(OnLeNet(1), _of_biases(3), 0.55, 0.4), (OnLeNet(2), _of_biases(4), 0.5, 0.97)],
        rtol=1e-4,
        level="hard",
    ),
)

hint = Advice(EXERCISES)

HINTS = {
    "swa": (
        (lambda average, count, weights: (average + weights) / 2,
         "the new snapshot counts as much as all before it together"),
        (lambda average, count, weights: (count * average + weights) / count,
         "how many snapshots are there now?"),
        (lambda average, count, weights: (average + weights) / (count + 1),
         "the average stands for several snapshots, and counts once here"),
        (lambda average, count, weights: 0.9 * average + 0.1 * weights,
         "the same share for every new snapshot: the old ones are forgotten"),
        (lambda average, count, weights: count * average + weights,
         "that is the sum of the snapshots: what is it divided by?"),
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
        (partial(searched, answer=lambda m, size, losses: (size, losses[0])),
         "the step is right; the loss is that of the start"),
    ),
}  # fmt: skip

check = checks.checker(EXERCISES, HINTS)
