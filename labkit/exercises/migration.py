"""Exercises of lab 02, migration: specifications, cases, and what to say when wrong."""

import math

import numpy as np

from labkit import checks
from labkit.checks import Exercise


def same_padding(size, kernel, stride):
    """Padding before and after that pad_mode="same" takes on one axis."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return [total // 2, total - total // 2]


def _torch_padding(size, kernel, stride):
    return [(kernel - 1) // 2] * 2


def _excess_first(size, kernel, stride):
    return same_padding(size, kernel, stride)[::-1]


def running_variance(old, values, torch_momentum):
    """PyTorch's running variance after a batch: momentum weighs the new, unbiased variance."""
    return (1 - torch_momentum) * old + torch_momentum * np.var(values, ddof=1)


def smooth_targets(label, classes, smoothing):
    """PyTorch's target distribution: 1 - e + e/C at the label, e/C elsewhere."""
    targets = np.full(classes, smoothing / classes)
    targets[label] += 1 - smoothing
    return targets


def _documents_targets(label, classes, smoothing):
    targets = np.full(classes, smoothing / (classes - 1))
    targets[label] = 1 - smoothing
    return targets


def _label_without_its_share(label, classes, smoothing):
    targets = np.full(classes, smoothing / classes)
    targets[label] = 1 - smoothing
    return targets


def preprocess(pixels, mean, std):
    """What Normalize is given for pixels 0 .. 255, mean and std of pixels 0 .. 1."""
    return (np.asarray(pixels, np.float64) - 255 * np.asarray(mean)) / (255 * np.asarray(std))


def learning_rate(update, updates, warmup, rate):
    """A linear warm-up to ``rate``, then a cosine down to 0."""
    if update < warmup:
        return rate * (update + 1) / warmup
    return rate * (1 + math.cos(math.pi * (update - warmup) / (updates - warmup))) / 2


def _documents_rate(update, updates, warmup, rate):
    return rate * (1 + math.cos(math.pi * min(update, warmup) / warmup)) / 2


def _starts_at_zero(update, updates, warmup, rate):
    if update < warmup:
        return rate * update / warmup
    return learning_rate(update, updates, warmup, rate)


def _cosine_from_the_start(update, updates, warmup, rate):
    if update < warmup:
        return rate * (update + 1) / warmup
    return rate * (1 + math.cos(math.pi * update / updates)) / 2


def _values(seed, count):
    return np.random.default_rng(seed).normal(size=count)


_PIXELS = np.array([[0.0, 128.0, 255.0], [10.0, 20.0, 30.0]])
_MEAN, _STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])

EXERCISES = (
    Exercise(
        "same_padding",
        same_padding,
        [(64, 7, 2), (32, 3, 2), (32, 3, 1), (33, 3, 2), (32, 1, 2), (7, 2, 2)],
        (
            (
                _torch_padding,
                'that is PyTorch\'s; "same" takes just what ceil(size / stride) needs',
            ),
            (_excess_first, "an odd number of rows: on which side does MindSpore put the extra?"),
        ),
        rtol=0.0,
    ),
    Exercise(
        "running_variance",
        running_variance,
        [(1.0, _values(0, 8), 0.1), (0.5, _values(1, 5), 0.3), (2.0, _values(2, 64), 0.01)],
        (
            (
                lambda old, values, m: m * old + (1 - m) * np.var(values, ddof=1),
                "that is MindSpore's momentum: whose weight is PyTorch's?",
            ),
            (
                lambda old, values, m: (1 - m) * old + m * np.var(values),
                "the running statistics take the unbiased variance: divided by what?",
            ),
            (
                lambda old, values, m: m * old + (1 - m) * np.var(values),
                "both the momentum and the variance are the other framework's or the biased one",
            ),
        ),
    ),
    Exercise(
        "smooth_targets",
        smooth_targets,
        [(2, 10, 0.1), (0, 3, 0.3), (4, 5, 0.0)],
        (
            (_documents_targets, "that is CrossEntropySmooth of the document, not PyTorch's"),
            (_label_without_its_share, "they do not sum to 1: the label has its share of e too"),
        ),
    ),
    Exercise(
        "preprocess",
        preprocess,
        [(_PIXELS, _MEAN, _STD), (_PIXELS[0], np.full(3, 0.5), np.full(3, 0.25))],
        (
            (
                lambda pixels, mean, std: (pixels - mean) / std,
                "the constants are for pixels from 0 to 1, and these go to 255",
            ),
            (
                lambda pixels, mean, std: (pixels / 255 - mean) * std,
                "divide by the deviation",
            ),
        ),
    ),
    Exercise(
        "learning_rate",
        learning_rate,
        [(update, 100, 10, 0.4) for update in (0, 4, 9, 10, 55, 99)] + [(0, 10, 1, 0.1)],
        (
            (_documents_rate, "that is the document's: no warm-up, and the floor after `warmup`"),
            (_starts_at_zero, "the first update has the rate 0 and does nothing"),
            (_cosine_from_the_start, "the cosine begins where the warm-up ends"),
        ),
    ),
)


def check(name, attempt) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 02; see ``labkit.checks.check``."""
    return checks.check(EXERCISES, name, attempt)
