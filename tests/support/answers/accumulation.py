"""Lab 01: right answers, and wrong ones."""

import numpy as np
from mindspore import Tensor


def mean_gradient(gradients, sizes):
    total = np.zeros_like(gradients[0])
    for gradient, size in zip(gradients, sizes, strict=True):
        total += size * gradient
    return total / np.sum(sizes)


def normalise(pixels):
    return (pixels / 255 - 0.1307) / 0.3081


def updates_per_epoch(micro_batches, micro_steps, tail):
    updates = 0
    for start in range(0, micro_batches, micro_steps):
        updates += tail == "flush" or start + micro_steps <= micro_batches
    return updates


def clipped_update(gradients, sizes, clip_norm):
    mean = np.average(gradients, axis=0, weights=sizes)
    norm = np.sqrt((mean**2).sum())
    return mean if norm <= clip_norm else mean * clip_norm / norm


def token_loss(losses, is_token):
    losses, is_token = np.concatenate(losses), np.concatenate(is_token)
    return losses[is_token == 1].mean()


def lenet_gradient(lenet, sizes):
    total = None
    for images, labels in lenet.micro_batches(sizes):
        own = [len(labels) * gradient.asnumpy() for gradient in lenet.gradients(images, labels)]
        total = own if total is None else [t + g for t, g in zip(total, own, strict=True)]
    return [t / sum(sizes) for t in total]


def lenet_training(lenet, sizes, updates):
    for _ in range(updates):
        lenet.update([Tensor(gradient) for gradient in lenet_gradient(lenet, sizes)])
    return [parameter.asnumpy() for parameter in lenet.parameters]


def _keeps_going(lenet, sizes, updates):
    """The buffer is not cleared."""
    total = [np.zeros(parameter.shape, np.float32) for parameter in lenet.parameters]
    for _ in range(updates):
        total = [t + g for t, g in zip(total, lenet_gradient(lenet, sizes), strict=True)]
        lenet.update([Tensor(t) for t in total])
    return [parameter.asnumpy() for parameter in lenet.parameters]


def _mean_of_all(losses, masks):
    return np.concatenate(losses).mean()


def _short_norm(gradients, sizes, norm):
    mean = mean_gradient(gradients, sizes)
    return mean if mean @ mean <= norm else mean * norm / (mean @ mean)


def _groups(n, k, tail):
    updates, rest = divmod(n, k)
    return updates + {"flush": rest > 0, "carry": rest > 0, "drop": False}[tail]


WRONG = [
    ("mean_gradient", lambda gradients, sizes: np.mean(gradients, axis=0), "same size"),
    ("mean_gradient", lambda g, n: sum(np.multiply(n, np.transpose(g)).T), "not yet a mean"),
    ("mean_gradient", lambda g, n: np.mean(
        [n[i] * g[i] for i in range(len(n))], axis=0), "by how many they are"),
    ("normalise", lambda pixels: (pixels - pixels.mean()) / pixels.std(), "another image"),
    ("updates_per_epoch", lambda n, k, tail: -(-n // k), "not every `tail`"),
    ("updates_per_epoch", _groups, "is completed when"),
    ("clipped_update", lambda g, n, norm: clipped_update(
        [sum(g)], [1], norm), "depends on the number"),
    ("clipped_update", _short_norm, "a root missing"),
    ("clipped_update", lambda g, n, norm: clipped_update(
        g, np.ones(len(n)), norm), "if the sizes differ"),
    ("clipped_update", lambda g, n, norm: clipped_update(
        [clipped_update([gradient], [1], norm) for gradient in g], n, np.inf), "on its own"),
    ("clipped_update", lambda g, n, norm: mean_gradient(g, n) * norm
        / np.linalg.norm(mean_gradient(g, n)), "made longer"),
    ("token_loss", lambda losses, masks: np.mean(
        [losses[i][masks[i] == 1].mean() for i in range(len(losses))]), "count as much"),
    ("token_loss", lambda losses, masks: (
        np.concatenate(losses) * np.concatenate(masks)).mean(), "padding was counted"),
    ("token_loss", lambda losses, masks: (
        np.concatenate(losses) @ np.concatenate(masks)), "grows with the number of tokens"),
    ("token_loss", lambda losses, masks: (
        np.concatenate(losses) @ np.concatenate(masks)) / len(masks), "of a sequence"),
    ("token_loss", _mean_of_all, "what is the mask for"),
    ("lenet_gradient", lambda lenet, sizes: lenet_gradient(lenet, sizes[-1:]), "off by"),
    ("lenet_gradient", lambda lenet, sizes: [
        3 * g for g in lenet_gradient(lenet, sizes)], "it is 3 times"),
    ("lenet_training", _keeps_going, "of the one before"),
    ("lenet_training", lambda lenet, sizes, updates: lenet_training(
        lenet, sizes, 0), "was the optimizer called"),
]  # fmt: skip
