"""Lab 05: wrong answers."""

import numpy as np

from tests.support.answers import solved

right = solved("05_dimension_reduction")


def _last_weights(lenet, sizes, updates):
    for number in range(updates):
        batch = lenet.micro_batches(sizes)[number % len(sizes)]
        lenet.update(lenet.gradients(*batch))
    return [parameter.asnumpy() for parameter in lenet.parameters]


def _one_turn(lenet, sizes, updates):
    """``zip`` stops when every micro-batch has had its turn."""
    rows = []
    for batch, _ in zip(lenet.micro_batches(sizes), range(updates), strict=False):
        lenet.update(lenet.gradients(*batch))
        rows.append([parameter.asnumpy().copy() for parameter in lenet.parameters])
    return [np.mean(own, axis=0, dtype=np.float64) for own in zip(*rows, strict=True)]


def _search(bound):
    def attempt(losses, loss, slope, rho, sigma):
        for m, trial in enumerate(losses):
            if trial < bound(loss, slope, sigma, rho**m):
                return rho**m
        return 0.0

    return attempt


def _m(losses, loss, slope, rho, sigma):
    for m, trial in enumerate(losses):
        if trial < loss + sigma * rho**m * slope:
            return m
    return 0


def _always(losses, loss, slope, rho, sigma):
    for trial, rate in zip(losses, rho ** np.arange(len(losses)), strict=True):
        if trial < loss + sigma * rate * slope:
            break
    return rate


WRONG = [
    ("nearest_point", lambda p, m, w: p.T @ p @ (w - m), "where is the point itself"),
    ("nearest_point", lambda p, m, w: w - m - p.T @ p @ (w - m), "cannot express"),
    ("nearest_point", lambda p, m, w: m - p.T @ p @ (w - m), "mirror image"),
    ("line_search", _search(lambda loss, slope, sigma, rate: loss), "any decrease"),
    ("line_search", _search(
        lambda loss, slope, sigma, rate: loss + sigma * slope), "as much as a whole one"),
    ("line_search", _search(
        lambda loss, slope, sigma, rate: loss - sigma * rate * slope), "which sign"),
    ("line_search", _m, "how far does trial m go"),
    ("line_search", _always, "taken all the same"),
    ("lenet_average", _last_weights, "is every snapshot a copy"),
    ("lenet_average", _one_turn, "whose turn"),
    ("lenet_search", lambda lenet, p, rho, sigma: (
        0.0, lenet.loss(*lenet.micro_batches([12])[0])), "does the direction lead downhill"),
    ("lenet_search", lambda lenet, p, rho, sigma: right.lenet_search(
        lenet, p, rho, 0.0), "whatever its loss"),
]  # fmt: skip
