"""Mistakes that learners make in lab 01, gradient accumulation."""

import math

import numpy as np

from labkit.labs.exercises.accumulation import mean_gradient


def _clip(gradient: np.ndarray, clip_norm: float) -> np.ndarray:
    return gradient * min(1.0, clip_norm / np.linalg.norm(gradient))


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


HINTS = {
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
        (lambda pixels: (pixels // 255 - 0.1307) / 0.3081,
         "only two grey values are left: which division was that?"),
        (lambda pixels: (pixels - np.mean(pixels)) / np.std(pixels),
         "these pixels' own mean and deviation: another image gets others"),
    ),
    "updates_per_epoch": (
        (lambda n, k, tail: n // k, "a flushed tail is an update too"),
        (lambda n, k, tail: math.ceil(n / k), "not every `tail` makes an update of the rest"),
        (lambda n, k, tail: n // k + (tail == "flush"), "is there a tail when k divides n?"),
        (lambda n, k, tail: n // k + (tail != "drop" and n % k > 0),
         "a tail that is carried is completed when? In this epoch?"),
        (lambda n, k, tail: n / k, "an update is made or not: what is a fraction of one?"),
        (lambda n, k, tail: n, "that is the number of micro-batches: how many make an update?"),
    ),
    "clipped_update": (
        (lambda gradients, sizes, norm: mean_gradient([_clip(g, norm) for g in gradients], sizes),
         "each micro-batch was clipped on its own: which gradient does the optimizer see?"),
        (lambda gradients, sizes, norm: _clip(np.sum(gradients, axis=0), norm),
         "the sum was clipped, so the limit depends on the number of micro-batches"),
        (_always_scaled, "a gradient shorter than the limit was made longer"),
        (lambda gradients, sizes, norm: mean_gradient(gradients, sizes),
         "averaged, and never clipped"),
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
}  # fmt: skip
