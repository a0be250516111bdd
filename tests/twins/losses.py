"""Losses and their slopes, LeNet's parameters and Kronecker systems: small ones only."""

import math
from collections.abc import Sequence

import numpy as np

from labkit.reference.kronecker import block_diagonal, damping_pair
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


def lenet_parameters(seed: int, *, conv_bias: bool = False) -> dict[str, np.ndarray]:
    """Return normal parameters by the names of ``LeNet5``: deviation 1 / sqrt(in), biases 0.1."""
    shapes = {"conv1": (6, 1, 5, 5), "conv2": (16, 6, 5, 5)}
    shapes |= {"fc1": (120, 400), "fc2": (84, 120), "fc3": (10, 84)}
    random = np.random.default_rng(seed)
    parameters = {}
    for name, shape in shapes.items():
        parameters[f"{name}.weight"] = random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
        if conv_bias or name.startswith("fc"):
            parameters[f"{name}.bias"] = random.normal(scale=0.1, size=shape[0])
    return parameters


def kronecker_solve(
    a_factor: np.ndarray,
    g_factor: np.ndarray,
    positions: int,
    gradient: np.ndarray,
    damping: float,
    *,
    split: int | None = 128,
    damping_split: str = "equal",
) -> np.ndarray:
    """Return U by solving with the whole matrix T (G + ..) (x) (A + ..): small layers only."""
    a_damping, g_damping = damping_pair(a_factor, g_factor, positions, damping, damping_split)
    a_cut, g_cut = block_diagonal(a_factor, split), block_diagonal(g_factor, split)
    direction = np.zeros(gradient.shape)
    for group, matrix in enumerate(gradient):
        a_damped = a_cut[group] + a_damping * np.eye(matrix.shape[1])
        g_damped = g_cut[group] + g_damping * np.eye(matrix.shape[0])
        whole = positions * np.kron(g_damped, a_damped)
        direction[group] = np.linalg.solve(whole, matrix.reshape(-1)).reshape(matrix.shape)
    return direction


def layer_block(fisher: np.ndarray, sizes: Sequence[int], layer: int) -> np.ndarray:
    """Return the diagonal block of one layer, where ``sizes`` counts the weights of each."""
    first = sum(sizes[:layer])
    return fisher[first : first + sizes[layer], first : first + sizes[layer]]
