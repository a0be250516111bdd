"""Losses and their slopes, written out."""

import math

import numpy as np

from labkit.reference.lenet import cross_entropy
from labkit.reference.thor import Arrays


def linear_regression(
    weights: np.ndarray, bias: np.ndarray, inputs: np.ndarray, targets: np.ndarray
) -> tuple[float, Arrays]:
    """Return (mean squared error over all entries, [d weights, d bias]) of inputs W^T + b.

    weights (out, in), bias (out,), inputs (B, in), targets (B, out).
    """
    error = inputs @ weights.T + bias - targets
    slope = 2.0 * error / error.size
    return float(np.mean(error**2)), [slope.T @ inputs, slope.sum(axis=0)]


def softmax_regression(
    weights: np.ndarray, bias: np.ndarray, inputs: np.ndarray, labels: np.ndarray
) -> tuple[float, Arrays]:
    """Return (mean cross entropy, [d weights, d bias]) of logits inputs W^T + b.

    weights (classes, in), bias (classes,), inputs (B, in), labels (B,) integers.
    """
    loss, slope = cross_entropy(inputs @ weights.T + bias, labels)
    return loss, [slope.T @ inputs, slope.sum(axis=0)]


def token_cross_entropy(
    logits: np.ndarray, labels: np.ndarray, ignore_index: int = -100
) -> tuple[float, int]:
    """Return (sum of cross entropies, number of tokens) over labels that are not ``ignore_index``.

    logits (B, T, V), labels (B, T) integers; loops over every token.
    """
    total, count = 0.0, 0
    for row, row_labels in zip(logits.astype(np.float64), labels, strict=True):
        for scores, label in zip(row, row_labels, strict=True):
            if label != ignore_index:
                assert 0 <= label < len(scores)
                largest = scores.max()
                total += largest + np.log(np.exp(scores - largest).sum()) - scores[label]
                count += 1
    return total, count


def smoothed_cross_entropy(
    logits: np.ndarray, labels: np.ndarray, on: float, off: float
) -> tuple[float, np.ndarray]:
    """Return (mean loss, its slope by the logits) for targets ``on`` at the label, else ``off``.

    logits (B, C), labels (B,) integers. Loops over every logit; the targets must sum to 1.
    """
    total, slope = 0.0, np.zeros(logits.shape)
    for row, (scores, label) in enumerate(zip(logits.astype(np.float64), labels, strict=True)):
        log_sum = scores.max() + math.log(sum(math.exp(s - scores.max()) for s in scores))
        for column, score in enumerate(scores):
            target = on if column == label else off
            total -= target * (score - log_sum) / len(labels)
            slope[row, column] = (math.exp(score - log_sum) - target) / len(labels)
    return total, slope
