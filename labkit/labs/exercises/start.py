"""Exercises of notebook 00, first steps: plain specifications, cases, learners' mistakes."""

import math

import numpy as np

from labkit.labs.exercises.check import Exercise, draw, of_lab


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
    Exercise(output_side, _SIDES, {
        "math.ceil(size / stride)":
            "the kernel plays no part in it: does it fit everywhere without padding?",
        "(size - kernel) // stride + 1": "without padding it is right: what does `same` keep?",
        "size // stride if pad_mode == 'same' else right":
            "`same` loses the last pixels where the stride does not divide the side",
        "right if pad_mode == 'same' else right - 1":
            "one place too few: where does a kernel as large as the side fit?",
        "size if pad_mode == 'same' else size - kernel + 1":
            "right for a stride of 1: which places does a larger one skip?",
    }, rtol=0.0),
    Exercise(gradient_of_squares, [_squares(0, 1, 1), _squares(1, 4, 3), _squares(2, 16, 5)], {
        "right * len(x)": "the gradient of the sum: the loss is a mean",
        "right / 2": "half of it: what is the derivative of a square?",
        "-right": "uphill and downhill have changed places",
        "2 * w * (x @ w - y).mean()":
            "that is the derivative by something else: which argument does `ms.grad` take "
            "first?",
        "gradient_of_squares(x, 0 * y, w)": "the targets are not in it",
    }, rtol=1e-5),  # float32 on the learner's side: sums of at most 16 terms
)  # fmt: skip

check, hint = of_lab(EXERCISES)
