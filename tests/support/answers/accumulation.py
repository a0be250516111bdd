"""Lab 01: wrong answers."""

import numpy as np
from mindspore import Tensor

from tests.support.answers import solved

right = solved("01_gradient_accumulation")


def _keeps_going(lenet, sizes, updates):
    """The buffer is not cleared."""
    total = [np.zeros(parameter.shape, np.float32) for parameter in lenet.parameters]
    for _ in range(updates):
        total = [t + g for t, g in zip(total, right.lenet_gradient(lenet, sizes), strict=True)]
        lenet.update([Tensor(t) for t in total])
    return [parameter.asnumpy() for parameter in lenet.parameters]


def _short_norm(gradients, sizes, norm):
    mean = np.average(gradients, axis=0, weights=sizes)
    return mean if mean @ mean <= norm else mean * norm / (mean @ mean)


def _counts_on(lenet, sizes, updates):
    """The number of samples is never set back to 0."""
    samples = 0
    for _ in range(updates):
        samples += sum(sizes)
        gradient = right.lenet_gradient(lenet, sizes)
        lenet.update([Tensor(np.float32(sum(sizes) / samples) * g) for g in gradient])
    return [parameter.asnumpy() for parameter in lenet.parameters]


def _longest(gradients, sizes, norm):
    mean = np.average(gradients, axis=0, weights=sizes)
    if max(np.linalg.norm(gradients, axis=1)) > norm:
        return mean * norm / np.linalg.norm(mean)
    return mean


def _groups(n, k, tail):
    updates, rest = divmod(n, k)
    return updates + {"flush": rest > 0, "carry": rest > 0, "drop": False}[tail]


WRONG = [
    ("updates_per_epoch", _groups, "is completed when"),
    ("clipped_update", lambda g, n, norm: right.clipped_update(
        [sum(g)], [1], norm), "depends on the number"),
    ("clipped_update", _short_norm, "a root missing"),
    ("clipped_update", _longest, "is the mean, too"),
    ("clipped_update", lambda g, n, norm: right.clipped_update(
        [right.clipped_update([gradient], [1], norm) for gradient in g], n, np.inf), "on its own"),
    ("token_loss", lambda losses, masks: np.mean(
        [losses[i][masks[i] == 1].mean() for i in range(len(losses))]), "count as much"),
    ("token_loss", lambda losses, masks: (
        np.concatenate(losses) * np.concatenate(masks)).mean(), "padding was counted"),
    ("lenet_gradient", lambda lenet, sizes: lenet.gradients(
        *lenet.micro_batches([sum(sizes)])[0]), "out of memory"),
    ("lenet_training", _keeps_going, "of the one before"),
    ("lenet_training", _counts_on, "set back to zero"),
]  # fmt: skip
