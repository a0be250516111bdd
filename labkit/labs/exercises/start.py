"""Exercises of notebook 00, first steps: plain specifications, cases, learners' mistakes."""

import math
from functools import partial

import numpy as np

from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Advice, Exercise, draw


def output_side(size: int, kernel: int, stride: int, pad_mode: str) -> int:
    """Side of the output of ``nn.Conv2d`` for an input of side ``size``."""
    if pad_mode == "same":
        return math.ceil(size / stride)
    return len(range(0, size - kernel + 1, stride))


def gradient_of_squares(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Gradient with respect to w (F,) of the mean of (x w - y)^2; x (N, F), y (N,)."""
    errors = [row @ w - target for row, target in zip(x, y, strict=True)]
    terms = [2 * error * row for error, row in zip(errors, x, strict=True)]
    return np.sum(terms, axis=0) / len(x)


def _squares(seed: int, rows: int, features: int) -> tuple:
    numbers = draw(seed, rows + 1, features + 1).astype(np.float32)
    return numbers[:-1, :-1], numbers[:-1, -1], numbers[-1, :-1]


_SIDES = [(28, 3, 1, "same"), (28, 3, 2, "same"), (7, 2, 2, "same")]
_SIDES += [(28, 3, 2, "valid"), (28, 5, 1, "valid"), (9, 3, 2, "valid")]

EXERCISES = (
    Exercise(output_side, _SIDES, rtol=0.0),
    Exercise(
        gradient_of_squares,
        [_squares(0, 1, 1), _squares(1, 4, 3), _squares(2, 16, 5)],
        rtol=1e-5,  # float32 on the learner's side: sums of at most 16 terms
    ),
)
hint = Advice(EXERCISES)


# Mistakes that learners make.


def _floored(size: int, kernel: int, stride: int, pad_mode: str) -> int:
    return size // stride if pad_mode == "same" else (size - kernel) // stride + 1


def _without_the_last(size: int, kernel: int, stride: int, pad_mode: str) -> int:
    return -(-size // stride) if pad_mode == "same" else (size - kernel) // stride


HINTS: dict[str, checks.Hints] = {
    "output_side": (
        (lambda size, kernel, stride, mode: -(-size // stride),
         "the kernel plays no part in it: does it fit everywhere without padding?"),
        (lambda size, kernel, stride, mode: (size - kernel) // stride + 1,
         "without padding it is right: what does `same` keep?"),
        (_floored, "`same` loses the last pixels where the stride does not divide the side"),
        (_without_the_last, "one place too few: where does a kernel as large as the side fit?"),
        (lambda size, kernel, stride, mode: size if mode == "same" else size - kernel + 1,
         "right for a stride of 1: which places does a larger one skip?"),
    ),
    "gradient_of_squares": (
        (lambda x, y, w: gradient_of_squares(x, y, w) * len(x),
         "the gradient of the sum: the loss is a mean"),
        (lambda x, y, w: gradient_of_squares(x, y, w) / 2,
         "half of it: what is the derivative of a square?"),
        (lambda x, y, w: -gradient_of_squares(x, y, w),
         "uphill and downhill have changed places"),
        (lambda x, y, w: 2 * w * (x @ w - y).mean(),
         "that is the derivative by something else: which argument does `ms.grad` take first?"),
        (lambda x, y, w: gradient_of_squares(x, np.zeros_like(y), w), "the targets are not in it"),
    ),
}  # fmt: skip

check = partial(checks.check, EXERCISES, hints=HINTS)
