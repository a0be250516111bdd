"""Exercises of lab 02, migration: specifications, slow and plain, and public cases."""

import math
from collections.abc import Callable

import numpy as np

from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Exercise


def same_padding(size: int, kernel: int, stride: int) -> list[int]:
    """Padding before and after that pad_mode="same" takes on one axis."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return [total // 2, total - total // 2]


def running_variance(old: float, values: np.ndarray, torch_momentum: float) -> float:
    """PyTorch's running variance after a batch: momentum weighs the new, unbiased variance."""
    return (1 - torch_momentum) * old + torch_momentum * np.var(values, ddof=1)


def smooth_targets(label: int, classes: int, smoothing: float) -> np.ndarray:
    """PyTorch's target distribution: 1 - e + e/C at the label, e/C elsewhere."""
    targets = np.full(classes, smoothing / classes)
    targets[label] += 1 - smoothing
    return targets


def preprocess(pixels: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """What Normalize makes of pixels 0 .. 255, with mean and std of pixels 0 .. 1."""
    return (np.asarray(pixels, np.float64) - 255 * np.asarray(mean)) / (255 * np.asarray(std))


def learning_rate(update: int, updates: int, warmup: int, rate: float) -> float:
    """A linear warm-up to ``rate``, then a cosine down to 0."""
    if update < warmup:
        return rate * (update + 1) / warmup
    return rate * (1 + math.cos(math.pi * (update - warmup) / (updates - warmup))) / 2


def _values(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=count)


_PADDINGS = [(64, 7, 2), (32, 3, 2), (32, 3, 1), (33, 3, 2), (32, 1, 2), (7, 2, 2)]
_VARIANCES = [(1.0, _values(0, 8), 0.1), (0.5, _values(1, 5), 0.3), (2.0, _values(2, 64), 0.01)]
_PIXELS = np.array([[0.0, 128.0, 255.0], [10.0, 20.0, 30.0]])
_MEAN, _STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
_RATES = [(update, 100, 10, 0.4) for update in (0, 4, 9, 10, 55, 99)] + [(0, 10, 1, 0.1)]

EXERCISES = (
    Exercise(same_padding, _PADDINGS, rtol=0.0),
    Exercise(running_variance, _VARIANCES),
    Exercise(smooth_targets, [(2, 10, 0.1), (0, 3, 0.3), (4, 5, 0.0)]),
    Exercise(preprocess, [(_PIXELS, _MEAN, _STD), (_PIXELS[0], np.full(3, 0.5), np.full(3, 0.25))]),
    Exercise(learning_rate, _RATES),
)


def check(name: str, attempt: Callable) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 02; see ``check.check``."""
    from labkit.labs.exercises.mistakes.migration import HINTS  # made of the functions above

    return checks.check(EXERCISES, name, attempt, HINTS)
