"""Exercises of lab 01, gradient accumulation: specifications, slow and plain, and public cases."""

from collections.abc import Callable, Sequence

import numpy as np

from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Exercise


def mean_gradient(gradients: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    """Mean over samples: each micro-batch counts as often as it has samples."""
    total = np.zeros_like(gradients[0])
    weighed = (n * g for g, n in zip(gradients, sizes, strict=True))
    return sum(weighed, start=total) / sum(sizes)


def normalise(pixels: np.ndarray) -> np.ndarray:
    """Pixels 0 .. 255 to zero mean and unit deviation: scale to 0 .. 1 first, then standardise."""
    return (np.asarray(pixels, dtype=np.float64) / 255 - 0.1307) / 0.3081


def updates_per_epoch(micro_batches: int, micro_steps: int, tail: str) -> int:
    """Updates in one epoch (for ``carry`` and ``drop`` the tail makes none of its own)."""
    full = micro_batches // micro_steps
    return full + 1 if tail == "flush" and micro_batches % micro_steps else full


def clipped_update(
    gradients: Sequence[np.ndarray], sizes: Sequence[int], clip_norm: float
) -> np.ndarray:
    """Average first, then clip once."""
    mean = mean_gradient(gradients, sizes)
    return mean * min(1.0, clip_norm / np.linalg.norm(mean))


def token_loss(losses: Sequence[np.ndarray], is_token: Sequence[np.ndarray]) -> float:
    """Mean loss over the tokens of all micro-batches; padding does not count."""
    total = sum((loss * mask).sum() for loss, mask in zip(losses, is_token, strict=True))
    return total / sum(mask.sum() for mask in is_token)


def _gradients(seed: int, sizes: Sequence[int]) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=6) for _ in sizes]


def _token_case(seed: int, lengths: Sequence[int], width: int) -> tuple:
    random = np.random.default_rng(seed)
    masks = [(np.arange(width) < n).astype(np.float64) for n in lengths]
    return [random.uniform(0.5, 3.0, size=width) for _ in lengths], masks


_SIZES = ([32, 32, 32, 32], [64, 32, 16, 16], [5], [1, 9, 3])
_GRADIENTS = [(_gradients(seed, sizes), sizes) for seed, sizes in enumerate(_SIZES)]
_COUNTS = [(1875, 4, "flush"), (1875, 4, "drop"), (1875, 5, "flush")]
_COUNTS += [(3, 4, "flush"), (3, 4, "carry"), (1875, 4, "carry")]
_TOKENS = [_token_case(0, (8, 2, 5), 8), _token_case(1, (3, 3), 6), _token_case(2, (1, 12), 12)]

EXERCISES = (
    Exercise(mean_gradient, _GRADIENTS),
    Exercise(normalise, [(np.array([0, 255]),), (np.arange(0, 256, 15),)]),
    Exercise(updates_per_epoch, _COUNTS, rtol=0.0),
    Exercise(clipped_update, [(*case, norm) for case in _GRADIENTS for norm in (0.3, 100.0)]),
    Exercise(token_loss, _TOKENS),
)


def check(name: str, attempt: Callable) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 01; see ``check.check``."""
    from labkit.labs.exercises.mistakes.accumulation import HINTS  # made of the functions above

    return checks.check(EXERCISES, name, attempt, HINTS)
