"""Lab 05: right answers, and wrong ones."""

import numpy as np


def _gram_shares(rows, components, power=1.0):
    gram = rows @ rows.T
    values = np.maximum(np.linalg.eigvalsh(gram)[::-1], 0) ** power
    return values[:components] / values.sum()


def explained(snapshots, components):
    return _gram_shares(snapshots - snapshots.mean(axis=0), components)


def nearest_point(basis, mean, weights):
    coordinates = [row @ (weights - mean) for row in basis]
    return mean + sum(x * row for x, row in zip(coordinates, basis, strict=True))


def bfgs(inverse, s, y):
    product = y @ s
    if product <= 0:
        return inverse
    left = np.eye(len(s)) - np.outer(s, y) / product
    return left @ inverse @ left.T + np.outer(s, s) / product


def line_search(losses, loss, slope, rho, sigma):
    rate = 1.0
    for trial in losses:
        if trial < loss + sigma * rate * slope:
            return rate
        rate *= rho
    return 0.0


def residual_update(residual, gradient, basis, gamma, alpha):
    residual = gamma * residual + gradient - basis.T @ (basis @ gradient)
    return residual, alpha * residual


def first_and_count(components, ranks, rank):
    room = (components + ranks - 1) // ranks
    own = range(components)[rank * room : (rank + 1) * room]
    return rank * room, len(own)


def _by_snapshot(snapshots, components):
    return _gram_shares(snapshots - snapshots.mean(axis=1)[:, None], components)


def _among_themselves(snapshots, components):
    shares = explained(snapshots, components)
    return shares / shares.sum()


def _eigenvalues(snapshots, components):
    rows = snapshots - snapshots.mean(axis=0)
    return np.linalg.eigvalsh(rows @ rows.T)[::-1][:components] / (len(rows) - 1)


def _two_sided(inverse, s, y, left):
    return left @ inverse @ left.T + np.outer(s, s) / (y @ s)


def _left(s, y):
    return np.eye(len(s)) - np.outer(s, y) / (y @ s)


def _direct(hessian, s, y):
    if y @ s <= 0:
        return hessian
    return _two_sided(hessian, y, s, _left(y, s))


def _dfp(inverse, s, y):
    if y @ s <= 0:
        return inverse
    v = inverse @ y
    return inverse + np.outer(s, s) / (s @ y) - np.outer(v, v) / (v @ y)


def _search(bound):
    def attempt(losses, loss, slope, rho, sigma):
        for m, trial in enumerate(losses):
            if trial < bound(loss, slope, sigma, rho**m):
                return rho**m
        return 0.0

    return attempt


def _argmin(losses, loss, slope, rho, sigma):
    return rho ** np.nanargmin(losses)


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


def _residual(part, seen=lambda new, old, part, alpha: alpha * new):
    def attempt(r, g, basis, gamma, alpha):
        inside = basis.T @ (basis @ g)
        new = part(gamma * r, g, inside, gamma)
        return new, seen(new, r, g - inside, alpha)

    return attempt


WRONG = [
    ("explained", lambda x, k: _gram_shares(x, k), "are the rows centred"),
    ("explained", _by_snapshot, "of a snapshot, or over the snapshots"),
    ("explained", lambda x, k: _gram_shares(x - x.mean(0), k, 0.5), "grow with a length"),
    ("explained", _among_themselves, "no variance outside"),
    ("explained", lambda x, k: explained(x, k).cumsum(), "of each one alone"),
    ("explained", _eigenvalues, "not yet shares"),
    ("nearest_point", lambda p, m, w: p.T @ p @ w, "goes through 0"),
    ("nearest_point", lambda p, m, w: p.T @ p @ (w - m), "where is the point itself"),
    ("nearest_point", lambda p, m, w: p.T @ p @ w + m, "counted twice"),
    ("nearest_point", lambda p, m, w: w - m - p.T @ p @ (w - m), "cannot express"),
    ("nearest_point", lambda p, m, w: m - p.T @ p @ (w - m), "mirror image"),
    ("bfgs", lambda b, s, y: _two_sided(b, s, y, _left(s, y)), "which pairs are let in"),
    ("bfgs", _direct, "or its inverse"),
    ("bfgs", _dfp, "DFP"),
    ("bfgs", lambda b, s, y: _left(s, y) @ b + np.outer(s, s) / (y @ s), "not symmetric"),
    ("bfgs", lambda b, s, y: _two_sided(b, s, y, _left(y, s)), "in which order"),
    ("line_search", _search(lambda loss, slope, sigma, rate: loss), "any decrease"),
    ("line_search", _search(
        lambda loss, slope, sigma, rate: loss + sigma * slope), "as much as a whole one"),
    ("line_search", _search(
        lambda loss, slope, sigma, rate: loss - sigma * rate * slope), "which sign"),
    ("line_search", _argmin, "when does the search stop"),
    ("line_search", _m, "how far does trial m go"),
    ("line_search", _always, "taken all the same"),
    ("residual_update", _residual(lambda old, g, inside, gamma: old + g), "who else moves"),
    ("residual_update", _residual(lambda old, g, inside, gamma: old + inside), "has had"),
    ("residual_update", _residual(lambda old, g, inside, gamma: g - inside), "gamma for"),
    ("residual_update", _residual(
        lambda old, g, inside, gamma: old + g - inside,
        lambda new, old, part, alpha: alpha * part), "newest part only"),
    ("residual_update", _residual(
        lambda old, g, inside, gamma: old + g - inside,
        lambda new, old, part, alpha: alpha * old), "of the update before"),
    ("residual_update", _residual(
        lambda old, g, inside, gamma: old + (1 - gamma) * (g - inside)), "weigh both"),
    ("first_and_count", lambda k, n, i: (
        i * (k // n), k // n + (k % n if i == n - 1 else 0)), "has room for"),
    ("first_and_count", lambda k, n, i: (
        i * (k // n) + min(i, k % n), k // n + (i < k % n)), "not the same for all"),
]  # fmt: skip
