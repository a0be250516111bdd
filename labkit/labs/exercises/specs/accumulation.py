"""Specifications of lab 01, gradient accumulation: what each exercise asks for, slow and plain."""

import numpy as np


def mean_gradient(gradients, sizes):
    """Mean over samples: each micro-batch counts as often as it has samples."""
    return sum(n * g for g, n in zip(gradients, sizes, strict=True)) / sum(sizes)


def normalise(pixels):
    """Pixels 0 .. 255 to zero mean and unit deviation: scale to 0 .. 1 first, then standardise."""
    return (np.asarray(pixels, dtype=np.float64) / 255 - 0.1307) / 0.3081


def updates_per_epoch(micro_batches, micro_steps, tail):
    """Updates in one epoch (for ``carry`` and ``drop`` the tail makes none of its own)."""
    full = micro_batches // micro_steps
    return full + 1 if tail == "flush" and micro_batches % micro_steps else full


def clipped_update(gradients, sizes, clip_norm):
    """Average first, then clip once."""
    mean = mean_gradient(gradients, sizes)
    return mean * min(1.0, clip_norm / np.linalg.norm(mean))


def token_loss(losses, is_token):
    """Mean loss over the tokens of all micro-batches; padding does not count."""
    total = sum((loss * mask).sum() for loss, mask in zip(losses, is_token, strict=True))
    return total / sum(mask.sum() for mask in is_token)
