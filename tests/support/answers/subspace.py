"""Lab 05: wrong answers."""

import numpy as np

from tests.support.answers import solved

right = solved("05_dimension_reduction")


def _gram_shares(rows, components, power=1.0):
    values = np.maximum(np.linalg.eigvalsh(rows @ rows.T)[::-1], 0) ** power
    return values[:components] / values.sum()


def _eigenvalues(snapshots, components):
    rows = snapshots - snapshots.mean(axis=0)
    return np.linalg.eigvalsh(rows @ rows.T)[::-1][:components] / (len(rows) - 1)


def _last_weights(lenet, sizes, updates):
    for number in range(updates):
        batch = lenet.micro_batches(sizes)[number % len(sizes)]
        lenet.update(lenet.gradients(*batch))
    return [parameter.asnumpy() for parameter in lenet.parameters]


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


def _never_skipping(gradient, pairs):
    inverse = np.eye(len(gradient))
    for s, y in pairs:
        factor = np.eye(len(s)) - np.outer(s, y) / (y @ s)
        inverse = factor @ inverse @ factor.T + np.outer(s, s) / (y @ s)
    return -inverse @ gradient


WRONG = [
    ("swa", lambda a, n, w: a + w / n, "how many snapshots are there now"),
    ("explained", lambda x, k: _gram_shares(x, k), "are the rows centred"),
    ("explained", lambda x, k: _gram_shares(
        x - x.mean(axis=1)[:, None], k), "of a snapshot, or over the snapshots"),
    ("explained", lambda x, k: _gram_shares(x - x.mean(0), k, 0.5), "grow with a length"),
    ("explained", _eigenvalues, "not yet shares"),
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
    ("direction", _never_skipping, "not positive definite"),
    ("lenet_search", lambda lenet, p, rho, sigma: (
        0.0, lenet.loss(*lenet.micro_batches([12])[0])), "does the direction lead downhill"),
    ("lenet_search", lambda lenet, p, rho, sigma: right.lenet_search(
        lenet, p, rho, 0.0), "whatever its loss"),
]  # fmt: skip
