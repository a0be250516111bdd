"""Lab 03: wrong answers."""

import math

import numpy as np
from mindspore import nn, ops

from tests.support.answers import solved

right = solved("03_thor")


def _tap(of_p, of_d, back=lambda dout: dout):
    class Tap(nn.Cell):
        def construct(self, p, y, a, g):
            return y

        def bprop(self, p, y, a, g, out, dout):
            return ops.zeros_like(p), back(dout), of_p(p), of_d(dout)

    return Tap()


def _inverse_in_blocks(factor, damping, split):  # blocks of the whole inverse
    whole = np.linalg.inv(factor + damping * np.eye(len(factor)))
    return np.where(right.block_inverse(np.ones_like(factor), 1.0, split) != 0, whole, 0)


def _uneven(factor, damping, split):
    block = np.arange(len(factor)) // split
    cut = factor * (block[:, None] == block)
    return np.linalg.inv(cut + damping * np.eye(len(factor)))


def _trace(change_of):
    def attempt(a, g, t, damping, last, high, low):
        change = change_of(a, g, t, damping, last)
        return change, int(change > high) - int(change < low)

    return attempt


def _now(a, g, t, damping):
    return t * np.trace(a) * np.trace(g) + damping * len(a) * len(g)


WRONG = [
    ("lenet_factors", lambda lenet: [factor.asnumpy() for factor in lenet.through(
        _tap(lambda p: p.T @ p, lambda d: 12 * d.T @ d))], "A is a sum"),
    ("lenet_factors", lambda lenet: [factor.asnumpy() for factor in lenet.through(
        _tap(lambda p: p.T @ p / 12, lambda d: d.T @ d))], "is it G yet"),
    ("lenet_factors", lambda lenet: [factor.asnumpy() for factor in lenet.through(
        _tap(lambda p: p.T @ p / 12, lambda d: 12 * d.T @ d, ops.zeros_like))], "passes through"),
    ("lenet_thor", lambda lenet, damping, updates: right.lenet_thor(
        lenet, damping**2, updates), "the whole damping"),
    ("patch_factor", lambda p: np.einsum("nit,njt->ij", p, p) / p.shape[1], "a number of samples"),
    ("patch_factor", lambda p: np.cov(np.hstack(list(p)), bias=True), "that is the covariance"),
    ("patch_factor", lambda p: np.outer(p.mean((0, 2)), p.mean((0, 2))), "before the outer"),
    ("unscaled_factor", lambda d, s: len(d) * d.T @ d / s, "is quadratic"),
    ("unscaled_factor", lambda d, s: d.T @ d / len(d) / s**2, "of the mean loss"),
    ("unscaled_factor", lambda d, s: (len(d) * d / s).T @ (len(d) * d / s), "grows with the batch"),
    ("unscaled_factor", lambda d, s: np.outer(d.sum(0), d.sum(0)) / s**2, "forgets the batch"),
    ("block_inverse", _inverse_in_blocks, "not inverses of the blocks"),
    ("block_inverse", _uneven, "as equal as possible"),
    ("pi_damping", lambda a, g, t, damping: right.pi_damping(
        a * len(a), g * len(g), t, damping), "over what"),
    ("pi_damping", lambda a, g, t, damping: right.pi_damping(
        a * np.trace(a) / len(a), g * np.trace(g) / len(g), t, damping), "pi squared"),
    ("refreshes_and_mean_time", lambda n, f, r, c: (n // f, c + (r - c) * (n // f) / n), "too"),
    ("refreshes_and_mean_time", lambda n, f, r, c: (
        n // f + 1, c + (r - c) * (n // f + 1) / n), "divides the updates"),
    ("refreshes_and_mean_time", lambda n, f, r, c: (
        math.ceil(n / f), c + r * math.ceil(n / f) / n), "not on top"),
    ("trace_decision", _trace(lambda a, g, t, d, last: _now(a, g, t, d) / last - 1), "falls"),
    ("trace_decision", _trace(lambda a, g, t, d, last: abs(_now(a, g, t, d) - last)), "relative"),
    ("trace_decision", _trace(
        lambda a, g, t, d, last: abs(1 - last / _now(a, g, t, d))), "not to the new one"),
    ("trace_decision", _trace(lambda a, g, t, d, last: abs(
        (t * np.trace(a) * np.trace(g) + d) / last - 1)), "how large is I"),
    ("trace_decision", _trace(
        lambda a, g, t, d, last: abs(_now(a, g, 1, d) / last - 1)), "not in F"),
]  # fmt: skip
