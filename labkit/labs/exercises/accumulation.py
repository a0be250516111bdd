"""Exercises of lab 01, gradient accumulation: plain specifications, cases, learners' mistakes."""

from collections.abc import Callable, Sequence

import numpy as np

from labkit.labs.exercises import on_lenet
from labkit.labs.exercises.check import Exercise, draw, of_lab
from labkit.labs.exercises.on_lenet import OnLeNet


def mean_gradient(gradients: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    """Mean over samples: each micro-batch counts as often as it has samples."""
    total = np.zeros_like(gradients[0])
    weighed = (n * g for g, n in zip(gradients, sizes, strict=True))
    return sum(weighed, start=total) / sum(sizes)


def updates_per_epoch(micro_batches: int, micro_steps: int, tail: str) -> int:
    """Updates in one epoch; with ``carry`` and ``drop`` the tail makes no update of its own."""
    full = micro_batches // micro_steps
    return full + 1 if tail == "flush" and micro_batches % micro_steps else full


def clipped_update(
    gradients: Sequence[np.ndarray], sizes: Sequence[int], clip_norm: float
) -> np.ndarray:
    """Average first, then clip once."""
    return _clip(mean_gradient(gradients, sizes), clip_norm)


def _clip(gradient: np.ndarray, clip_norm: float) -> np.ndarray:
    return gradient * min(1.0, clip_norm / np.linalg.norm(gradient))


def token_loss(losses: Sequence[np.ndarray], is_token: Sequence[np.ndarray]) -> float:
    """Mean loss over the tokens of all micro-batches; padding does not count."""
    return _masked_sum(losses, is_token) / sum(mask.sum() for mask in is_token)


def _masked_sum(losses: Sequence[np.ndarray], is_token: Sequence[np.ndarray]) -> float:
    return sum((loss * mask).sum() for loss, mask in zip(losses, is_token, strict=True))


def lenet_gradient(lenet: OnLeNet, sizes: Sequence[int]) -> list[np.ndarray]:
    """Gradient of the whole batch: on a device with room for 8 images, the sum of its parts."""
    return on_lenet.combined(lenet, sizes, _by_size(sizes))


def lenet_training(lenet: OnLeNet, sizes: Sequence[int], updates: int) -> list[np.ndarray]:
    """Parameters after ``updates`` updates, each with the whole batch."""
    return on_lenet.trained(lenet, sizes, updates, _by_size(sizes))


def _by_size(sizes: Sequence[int]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda parts: np.average(parts, axis=0, weights=sizes)


def _never_cleared(lenet: OnLeNet, sizes: Sequence[int], updates: int) -> list[np.ndarray]:
    total = [np.zeros(parameter.shape) for parameter in lenet.parameters]
    for _ in range(updates):
        new = lenet_gradient(lenet, sizes)
        total = [t + g for t, g in zip(total, new, strict=True)]
        lenet.update(total)
    return on_lenet.arrays(lenet)


def _count_goes_on(lenet: OnLeNet, sizes: Sequence[int], updates: int) -> list[np.ndarray]:
    for number in range(1, updates + 1):
        lenet.update([gradient / number for gradient in lenet_gradient(lenet, sizes)])
    return on_lenet.arrays(lenet)


def _if_the_longest_is(
    gradients: Sequence[np.ndarray], sizes: Sequence[int], clip_norm: float
) -> np.ndarray:
    mean = mean_gradient(gradients, sizes)
    too_long = max(np.linalg.norm(gradient) for gradient in gradients) > clip_norm
    return mean / np.linalg.norm(mean) * clip_norm if too_long else mean


def _tokens(seed: int, lengths: Sequence[int], width: int) -> tuple:
    random = np.random.default_rng(seed)
    masks = [(np.arange(width) < n).astype(np.float64) for n in lengths]
    return [random.uniform(0.5, 3.0, size=width) for _ in lengths], masks


_SIZES = ([32, 32, 32, 32], [64, 32, 16, 16], [5], [1, 9, 3])
_GRADIENTS = [(list(draw(seed, len(sizes), 6)), sizes) for seed, sizes in enumerate(_SIZES)]
_CLIPPED = [(*case, norm) for case in _GRADIENTS for norm in (0.3, 100.0)]
_CLIPPED += [(*_GRADIENTS[0], 2.0)]  # the longest has length 2.82, their mean 0.83
_COUNTS = [(1875, 4, "flush"), (1875, 4, "drop"), (1875, 5, "flush")]
_COUNTS += [(3, 4, "flush"), (3, 4, "carry"), (1875, 4, "carry")]
_TOKENS = [_tokens(0, (8, 2, 5), 8), _tokens(1, (3, 3), 6), _tokens(2, (1, 12), 12)]

EXERCISES = (
    Exercise(updates_per_epoch, _COUNTS, {
        "micro_batches // micro_steps": "a flushed tail is an update too",
        "-(-micro_batches // micro_steps)": "not every `tail` makes an update of the rest",
        "micro_batches // micro_steps + (tail == 'flush')": "is there a tail when k divides n?",
        "-(-micro_batches // micro_steps) if tail != 'drop' else right":
            "a tail that is carried is completed when? In this epoch?",
    }, rtol=0.0),
    Exercise(token_loss, _TOKENS, {
        "np.mean([(a * b).sum() / b.sum() for a, b in zip(losses, is_token)])":
            "short sequences count as much as long ones",
        "_masked_sum(losses, is_token) / np.size(is_token)": "the padding was counted",
        "_masked_sum(losses, is_token)": "that is a sum: it grows with the number of tokens",
        "_masked_sum(losses, is_token) / len(losses)":
            "that is the loss of a sequence: how many tokens has one?",
        "np.mean(losses)": "the padding's losses are in it: what is the mask for?",
    }),
    Exercise(lenet_gradient, [(OnLeNet(1, room=8), [8, 2, 2])], {
        "on_lenet.combined(lenet, sizes, sum)": "the sum of means: what should it be divided by?",
        "on_lenet.combined(lenet, sizes, lambda parts: parts.mean(axis=0))":
            "right only while all micro-batches have the same size",
        "[gradient * sum(sizes) for gradient in right]":
            "weighed, but not yet a mean: it grows with the number of samples",
        "on_lenet.each_gradient(lenet, sizes)[-1]":
            "only the last micro-batch is in it: were the others overwritten?",
        "on_lenet.each_gradient(lenet, sizes)[0]":
            "only the first micro-batch is in it: does the loop return too early?",
    }, rtol=1e-4),  # float32: sums over 12 images in another order are off by 1e-6
    Exercise(clipped_update, _CLIPPED, {
        "mean_gradient([_clip(each, clip_norm) for each in gradients], sizes)":
            "each micro-batch was clipped on its own: which gradient does the optimizer see?",
        "_clip(np.sum(gradients, axis=0), clip_norm)":
            "the sum was clipped, so the limit depends on the number of micro-batches",
        "right / np.linalg.norm(right) * clip_norm":
            "a gradient shorter than the limit was made longer",
        "np.clip(mean_gradient(gradients, sizes), -clip_norm, clip_norm)":
            "each number was clipped by itself: what is the limit a limit of?",
        "(mean := mean_gradient(gradients, sizes)) * min(1, clip_norm / (mean @ mean))":
            "compared with the square of the length: is there a root missing?",
        "_clip(np.mean(gradients, axis=0), clip_norm)":
            "clipped well; is the mean right if the sizes differ?",
        "_if_the_longest_is(gradients, sizes, clip_norm)":
            "one micro-batch was longer than the limit: is the mean, too?",
    }, rtol=1e-5),  # PyTorch divides by the length + 1e-6
    Exercise(lenet_training, [(OnLeNet(1, room=8), [8, 2, 2], 2)], {
        "on_lenet.trained(lenet, sizes, updates, sum)":
            "the sum of the gradients: the learning rate is larger than it seems",
        "on_lenet.trained(lenet, sizes, updates, lambda parts: parts.mean(axis=0))":
            "right only while all micro-batches have the same size",
        "_never_cleared(lenet, sizes, updates)":
            "an update after the first still holds the gradients of the one before",
        "_count_goes_on(lenet, sizes, updates)":
            "the first update is right, the next too small: is every count set back to zero?",
        "on_lenet.update_of_each(lenet, sizes, updates)":
            "it makes an update of every micro-batch: the weights must wait",
        "lenet_training(lenet, sizes, 0)":
            "the parameters are as they were: was the optimizer called?",
    }, rtol=1e-4),
)  # fmt: skip

check, hint = of_lab(EXERCISES)
