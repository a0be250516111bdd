"""Specifications of lab 02, migration: what each exercise asks for, slow and plain."""

import math

import numpy as np


def same_padding(size, kernel, stride):
    """Padding before and after that pad_mode="same" takes on one axis."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return [total // 2, total - total // 2]


def running_variance(old, values, torch_momentum):
    """PyTorch's running variance after a batch: momentum weighs the new, unbiased variance."""
    return (1 - torch_momentum) * old + torch_momentum * np.var(values, ddof=1)


def smooth_targets(label, classes, smoothing):
    """PyTorch's target distribution: 1 - e + e/C at the label, e/C elsewhere."""
    targets = np.full(classes, smoothing / classes)
    targets[label] += 1 - smoothing
    return targets


def preprocess(pixels, mean, std):
    """What Normalize is given for pixels 0 .. 255, mean and std of pixels 0 .. 1."""
    return (np.asarray(pixels, np.float64) - 255 * np.asarray(mean)) / (255 * np.asarray(std))


def learning_rate(update, updates, warmup, rate):
    """A linear warm-up to ``rate``, then a cosine down to 0."""
    if update < warmup:
        return rate * (update + 1) / warmup
    return rate * (1 + math.cos(math.pi * (update - warmup) / (updates - warmup))) / 2
