"""Exercises of lab 01, gradient accumulation: specifications, cases, and what to say when wrong."""

import math

import numpy as np

from labkit import checks
from labkit.checks import Exercise


def _gradients(seed, sizes):
    draw = np.random.default_rng(seed)
    return [draw.normal(size=6) for _ in sizes]


def mean_gradient(gradients, sizes):
    """Mean over samples: each micro-batch counts as often as it has samples."""
    return sum(n * g for g, n in zip(gradients, sizes, strict=True)) / sum(sizes)


def _summed(gradients, sizes):
    return sum(gradients)


def _mean_of_means(gradients, sizes):
    return sum(gradients) / len(gradients)


def normalise(pixels):
    """Pixels 0 .. 255 to zero mean and unit deviation: scale to 0 .. 1 first, then standardise."""
    return (np.asarray(pixels, dtype=np.float64) / 255 - 0.1307) / 0.3081


def _rescales_swapped(pixels):
    return (np.asarray(pixels, dtype=np.float64) / 0.3081 - 0.1307 / 0.3081) / 255


def updates_per_epoch(micro_batches, micro_steps, tail):
    """Updates in one epoch (for ``carry`` and ``drop`` the tail makes none of its own)."""
    full = micro_batches // micro_steps
    return full + 1 if tail == "flush" and micro_batches % micro_steps else full


def clipped_update(gradients, sizes, clip_norm):
    """Average first, then clip once."""
    mean = mean_gradient(gradients, sizes)
    return mean * min(1.0, clip_norm / np.linalg.norm(mean))


def _clip(gradient, clip_norm):
    return gradient * min(1.0, clip_norm / np.linalg.norm(gradient))


def token_loss(losses, is_token):
    """Mean loss over the tokens of all micro-batches; padding does not count."""
    total = sum((loss * mask).sum() for loss, mask in zip(losses, is_token, strict=True))
    return total / sum(mask.sum() for mask in is_token)


def _mean_of_token_means(losses, is_token):
    pairs = zip(losses, is_token, strict=True)
    return sum((loss * mask).sum() / mask.sum() for loss, mask in pairs) / len(losses)


def _padding_counted(losses, is_token):
    pairs = zip(losses, is_token, strict=True)
    return sum((loss * mask).sum() for loss, mask in pairs) / sum(mask.size for mask in is_token)


def _token_case(seed, lengths, width):
    draw = np.random.default_rng(seed)
    masks = [(np.arange(width) < n).astype(np.float64) for n in lengths]
    return [draw.uniform(0.5, 3.0, size=width) for _ in lengths], masks


_SIZES = ([32, 32, 32, 32], [64, 32, 16, 16], [5], [1, 9, 3])
_GRADIENT_CASES = [(_gradients(seed, sizes), sizes) for seed, sizes in enumerate(_SIZES)]

EXERCISES = (
    Exercise(
        "mean_gradient",
        mean_gradient,
        _GRADIENT_CASES,
        (
            (_summed, "it is the plain sum: what should it be divided by?"),
            (_mean_of_means, "right only while all micro-batches have the same size"),
            (
                lambda gradients, sizes: _summed(gradients, sizes) / sum(sizes),
                "each gradient is already a mean over its own samples: weigh it before dividing",
            ),
        ),
    ),
    Exercise(
        "normalise",
        normalise,
        [(np.array([0, 255]),), (np.arange(0, 256, 15),)],
        ((_rescales_swapped, "the constants are for pixels from 0 to 1: which step is first?"),),
    ),
    Exercise(
        "updates_per_epoch",
        updates_per_epoch,
        [
            (1875, 4, "flush"),
            (1875, 4, "drop"),
            (1875, 5, "flush"),
            (3, 4, "flush"),
            (3, 4, "carry"),
            (1875, 4, "carry"),
        ],
        (
            (lambda n, k, tail: n // k, "a flushed tail is an update too"),
            (lambda n, k, tail: math.ceil(n / k), "only `flush` makes an update of the tail"),
            (lambda n, k, tail: n // k + (tail == "flush"), "is there a tail when k divides n?"),
        ),
        rtol=0.0,
    ),
    Exercise(
        "clipped_update",
        clipped_update,
        [(*case, norm) for case in _GRADIENT_CASES for norm in (0.3, 100.0)],
        (
            (
                lambda gradients, sizes, norm: mean_gradient(
                    [_clip(g, norm) for g in gradients], sizes
                ),
                "each micro-batch was clipped on its own: which gradient does the optimizer see?",
            ),
            (
                lambda gradients, sizes, norm: _clip(_summed(gradients, sizes), norm),
                "the sum was clipped, so the limit depends on the number of micro-batches",
            ),
            (
                lambda gradients, sizes, norm: (
                    mean_gradient(gradients, sizes)
                    * (norm / np.linalg.norm(mean_gradient(gradients, sizes)))
                ),
                "a gradient shorter than the limit was made longer",
            ),
        ),
    ),
    Exercise(
        "token_loss",
        token_loss,
        [_token_case(0, (8, 2, 5), 8), _token_case(1, (3, 3), 6), _token_case(2, (1, 12), 12)],
        (
            (_mean_of_token_means, "short sequences count as much as long ones"),
            (_padding_counted, "the padding was counted"),
        ),
    ),
)


def check(name, attempt) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 01; see ``labkit.checks.check``."""
    return checks.check(EXERCISES, name, attempt)
