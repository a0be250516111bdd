"""Exercises of lab 01, gradient accumulation: plain specifications, cases, learners' mistakes."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Advice, Exercise, draw
from labkit.labs.exercises.on_lenet import OnLeNet, each_gradient, update_of_each


def mean_gradient(gradients: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    """Mean over samples: each micro-batch counts as often as it has samples."""
    total = np.zeros_like(gradients[0])
    weighed = (n * g for g, n in zip(gradients, sizes, strict=True))
    return sum(weighed, start=total) / sum(sizes)


def normalise(pixels: np.ndarray) -> np.ndarray:
    """Scale pixels 0 .. 255 to 0 .. 1, then standardise them to zero mean and unit deviation."""
    return (np.asarray(pixels, dtype=np.float64) / 255 - 0.1307) / 0.3081


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
    total = sum((loss * mask).sum() for loss, mask in zip(losses, is_token, strict=True))
    return total / sum(mask.sum() for mask in is_token)


def lenet_gradient(lenet: OnLeNet, sizes: Sequence[int]) -> list[np.ndarray]:
    """Gradient of the whole batch, computed at once."""
    (batch,) = lenet.micro_batches([sum(sizes)])
    return [gradient.asnumpy() for gradient in lenet.gradients(*batch)]


def lenet_training(lenet: OnLeNet, sizes: Sequence[int], updates: int) -> list[np.ndarray]:
    """Parameters after ``updates`` updates, each with the whole batch."""
    for _ in range(updates):
        (batch,) = lenet.micro_batches([sum(sizes)])
        lenet.update(lenet.gradients(*batch))
    return [parameter.asnumpy() for parameter in lenet.parameters]


def _token_case(seed: int, lengths: Sequence[int], width: int) -> tuple:
    random = np.random.default_rng(seed)
    masks = [(np.arange(width) < n).astype(np.float64) for n in lengths]
    return [random.uniform(0.5, 3.0, size=width) for _ in lengths], masks


_SIZES = ([32, 32, 32, 32], [64, 32, 16, 16], [5], [1, 9, 3])
_GRADIENTS = [(list(draw(seed, len(sizes), 6)), sizes) for seed, sizes in enumerate(_SIZES)]
_COUNTS = [(1875, 4, "flush"), (1875, 4, "drop"), (1875, 5, "flush")]
_COUNTS += [(3, 4, "flush"), (3, 4, "carry"), (1875, 4, "carry")]
_TOKENS = [_token_case(0, (8, 2, 5), 8), _token_case(1, (3, 3), 6), _token_case(2, (1, 12), 12)]

EXERCISES = (
    Exercise(mean_gradient, _GRADIENTS),
    Exercise(normalise, [(np.array([0, 255]),), (np.arange(0, 256, 15),)]),
    Exercise(updates_per_epoch, _COUNTS, rtol=0.0),
    Exercise(token_loss, _TOKENS),
    # float32: sums over 12 images in another order are off by 1e-6.
    Exercise(lenet_gradient, [(OnLeNet(1), [8, 2, 2])], rtol=1e-4),
    Exercise(clipped_update, [(*case, norm) for case in _GRADIENTS for norm in (0.3, 100.0)]),
    Exercise(lenet_training, [(OnLeNet(1), [8, 2, 2], 2)], rtol=1e-4),
)

hint = Advice(EXERCISES)


# Mistakes that learners make.


def _averaged(lenet: OnLeNet, sizes: list, weights: Sequence[float]) -> list[np.ndarray]:
    parts = zip(*each_gradient(lenet, sizes), strict=True)
    return [sum(w * g for w, g in zip(weights, own, strict=True)) for own in parts]


def _train(
    lenet: OnLeNet, sizes: list, updates: int, *, weights: list, cleared: bool = True
) -> list:
    from mindspore import Tensor

    total: list = [0.0] * len(lenet.parameters)
    for _ in range(updates):
        if cleared:
            total = [0.0] * len(total)
        new = _averaged(lenet, sizes, weights)
        total = [t + g for t, g in zip(total, new, strict=True)]
        lenet.update([Tensor(t) for t in total])
    return [parameter.asnumpy() for parameter in lenet.parameters]


def _always_scaled(gradients: list, sizes: list, clip_norm: float) -> np.ndarray:
    mean = mean_gradient(gradients, sizes)
    return mean * (clip_norm / np.linalg.norm(mean))


def _without_root(gradients: list, sizes: list, clip_norm: float) -> np.ndarray:
    mean = mean_gradient(gradients, sizes)
    return mean * min(1.0, clip_norm / (mean @ mean))


def _masked_sum(losses: list, is_token: list) -> float:
    return sum((loss * mask).sum() for loss, mask in zip(losses, is_token, strict=True))


def _mean_of_token_means(losses: list, is_token: list) -> float:
    pairs = zip(losses, is_token, strict=True)
    return sum((loss * mask).sum() / mask.sum() for loss, mask in pairs) / len(losses)


HINTS: dict[str, checks.Hints] = {
    "mean_gradient": (
        (lambda gradients, sizes: sum(gradients),
         "it is the plain sum: what should it be divided by?"),
        (lambda gradients, sizes: sum(gradients) / len(gradients),
         "right only while all micro-batches have the same size"),
        (lambda gradients, sizes: sum(gradients) / sum(sizes),
         "each gradient is already a mean over its own samples: weigh it before dividing"),
        (lambda gradients, sizes: mean_gradient(gradients, sizes) * sum(sizes),
         "weighed, but not yet a mean: it grows with the number of samples"),
        (lambda gradients, sizes: mean_gradient(gradients, sizes) * sum(sizes) / len(sizes),
         "weighed by samples: is it then divided by how many they are?"),
        (lambda gradients, sizes: gradients[-1],
         "only the last micro-batch is in it: were the others overwritten?"),
    ),
    "normalise": (
        (lambda pixels: (pixels / 0.3081 - 0.1307 / 0.3081) / 255,
         "the constants are for pixels from 0 to 1: which step is first?"),
        (lambda pixels: pixels / 255 - 0.1307 / 0.3081,
         "the mean itself was divided: in which order are `-` and `/` done?"),
        (lambda pixels: (pixels / 255 - 0.1307) * 0.3081,
         "the spread has become smaller, not 1: which way does a deviation rescale?"),
        (lambda pixels: (pixels / 255 - 0.3081) / 0.1307,
         "the mean and the deviation have changed places"),
        (lambda pixels: pixels / 255 - 0.1307, "the mean is 0 now: what is the deviation?"),
        (lambda pixels: (pixels - np.mean(pixels)) / np.std(pixels),
         "these pixels' own mean and deviation: another image gets others"),
    ),
    "updates_per_epoch": (
        (lambda n, k, tail: n // k, "a flushed tail is an update too"),
        (lambda n, k, tail: math.ceil(n / k), "not every `tail` makes an update of the rest"),
        (lambda n, k, tail: n // k + (tail == "flush"), "is there a tail when k divides n?"),
        (lambda n, k, tail: n // k + (tail != "drop" and n % k > 0),
         "a tail that is carried is completed when? In this epoch?"),
    ),
    "clipped_update": (
        (lambda gradients, sizes, norm: mean_gradient([_clip(g, norm) for g in gradients], sizes),
         "each micro-batch was clipped on its own: which gradient does the optimizer see?"),
        (lambda gradients, sizes, norm: _clip(np.sum(gradients, axis=0), norm),
         "the sum was clipped, so the limit depends on the number of micro-batches"),
        (_always_scaled, "a gradient shorter than the limit was made longer"),
        (lambda gradients, sizes, norm: np.clip(mean_gradient(gradients, sizes), -norm, norm),
         "each number was clipped by itself: what is the limit a limit of?"),
        (_without_root, "compared with the square of the length: is there a root missing?"),
        (lambda gradients, sizes, norm: _clip(np.mean(gradients, axis=0), norm),
         "clipped well; is the mean right if the sizes differ?"),
    ),
    "token_loss": (
        (_mean_of_token_means, "short sequences count as much as long ones"),
        (lambda losses, masks: _masked_sum(losses, masks) / sum(mask.size for mask in masks),
         "the padding was counted"),
        (_masked_sum, "that is a sum: it grows with the number of tokens"),
        (lambda losses, masks: _masked_sum(losses, masks) / len(losses),
         "that is the loss of a sequence: how many tokens has one?"),
        (lambda losses, masks: np.mean([loss.mean() for loss in losses]),
         "the padding's losses are in it: what is the mask for?"),
    ),
    "lenet_gradient": (
        (lambda lenet, sizes: _averaged(lenet, sizes, [1.0] * len(sizes)),
         "the sum of means: what should it be divided by?"),
        (lambda lenet, sizes: _averaged(lenet, sizes, [1 / len(sizes)] * len(sizes)),
         "right only while all micro-batches have the same size"),
        (lambda lenet, sizes: _averaged(lenet, sizes, sizes),
         "weighed, but not yet a mean: it grows with the number of samples"),
        (lambda lenet, sizes: each_gradient(lenet, sizes)[-1],
         "only the last micro-batch is in it: were the others overwritten?"),
        (lambda lenet, sizes: each_gradient(lenet, sizes)[0],
         "only the first micro-batch is in it: does the loop return too early?"),
    ),
    "lenet_training": (
        (lambda lenet, sizes, updates: _train(lenet, sizes, updates, weights=[1.0] * len(sizes)),
         "the sum of the gradients: the learning rate is larger than it seems"),
        (lambda lenet, sizes, updates: _train(
            lenet, sizes, updates, weights=[1 / len(sizes)] * len(sizes)),
         "right only while all micro-batches have the same size"),
        (lambda lenet, sizes, updates: _train(
            lenet, sizes, updates, weights=[n / sum(sizes) for n in sizes], cleared=False),
         "an update after the first still holds the gradients of the one before"),
        (update_of_each, "it makes an update of every micro-batch: the weights must wait"),
        (lambda lenet, sizes, updates: lenet_training(lenet, sizes, 0),
         "the parameters are as they were: was the optimizer called?"),
    ),
}  # fmt: skip

check = partial(checks.check, EXERCISES, hints=HINTS)
