"""Lab 03: wrong answers."""

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


def _inverse_in_blocks(factor, epsilon, split):  # blocks of the whole inverse
    whole = np.linalg.inv(factor + epsilon * np.eye(len(factor)))
    return np.where(right.block_inverse(np.ones_like(factor), 1.0, split) != 0, whole, 0)


def _uneven(factor, epsilon, split):
    block = np.arange(len(factor)) // split
    cut = factor * (block[:, None] == block)
    return np.linalg.inv(cut + epsilon * np.eye(len(factor)))


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
    ("block_inverse", _inverse_in_blocks, "not inverses of the blocks"),
    ("block_inverse", _uneven, "as equal as possible"),
    ("block_inverse", lambda factor, epsilon, split: right.block_inverse(
        factor, epsilon**0.5, split), "the root was taken"),
]  # fmt: skip
