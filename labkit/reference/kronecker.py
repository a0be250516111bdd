r"""Kronecker factors of a layer's Fisher matrix, and the direction into which they turn a gradient.

For a layer with weight W (out, in) in each group, N rows in the batch, T output positions, p the
part of the input that one position sees, d = dL/dy there, and L the mean loss over the rows:

    A = sum p p^T / (N T)      G = N^2 sum d d^T / (N T)      F ~ T G (x) A
    U = (1 / T) (G + g_damping I)^-1 dW (A + a_damping I)^-1

N d is the derivative of one row's loss. Of a mean over c terms instead, such as tokens, whose
positions may be any, c d is that of one term:

    A = sum p p^T / (N T)      G = c sum d d^T                F ~ G (x) A

which is the same F as over rows where c = N. Matrices are flattened row by row, so that the
Kronecker product is G (x) A. Sources: Martens and Grosse 2015 (arXiv:1503.05671), for dense layers
and the damping; Grosse and Martens 2016 (arXiv:1602.01407), for convolutions.

Shapes: inputs as columns (N, groups, in, T), derivatives as columns (N, groups, out, T), A (groups,
in, in), G (groups, out, out), gradient (groups, out, in). Positions: T, or (T of A, T of G).
"""

import math
from collections.abc import Sequence

import numpy as np

from labkit.base.arguments import choice

Positions = int | tuple[int, int]


def columns_of(
    inputs: np.ndarray, derivatives: np.ndarray, *, homogeneous: bool, layout: str = "dense"
) -> tuple[np.ndarray, np.ndarray]:
    """Return (inputs, derivatives) as columns; if ``homogeneous``, with a 1 below each input.

    ``layout`` is "dense", for inputs (N, ..., in) and derivatives (N, ..., out), or "patches", for
    inputs of ``patches`` and derivatives (N, O, H', W').
    """
    choice("layout", layout, ("dense", "patches"))
    columns, slopes = np.asarray(inputs, np.float64), np.asarray(derivatives, np.float64)
    if layout == "patches":
        slopes = slopes.reshape(*columns.shape[:2], -1, columns.shape[3])
    else:
        columns = columns.reshape(len(inputs), -1, columns.shape[-1]).swapaxes(1, 2)[:, None]
        slopes = slopes.reshape(len(inputs), -1, slopes.shape[-1]).swapaxes(1, 2)[:, None]
    if homogeneous:
        columns = np.concatenate([columns, np.ones_like(columns[:, :, :1])], axis=2)
    return columns, slopes


def kronecker_factors(
    inputs: np.ndarray,
    derivatives: np.ndarray,
    *,
    homogeneous: bool,
    layout: str = "dense",
    terms: float | None = None,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return (A, G, T) for ``derivatives`` of the mean loss over ``terms``, or None: over rows.

    The other arguments are those of ``columns_of``; T is 1 over terms.
    """
    columns, slopes = columns_of(inputs, derivatives, homogeneous=homogeneous, layout=layout)
    rows, positions = len(columns), columns.shape[3]
    a_factor = np.einsum("ngpt,ngqt->gpq", columns, columns, optimize=True)
    g_factor = np.einsum("ngpt,ngqt->gpq", slopes, slopes, optimize=True)
    a_factor = a_factor / (rows * positions)
    if terms is not None:
        return a_factor, g_factor * terms, 1
    return a_factor, g_factor * rows / positions, positions


def gradient_matrix(
    weight: np.ndarray, bias: np.ndarray | None = None, groups: int = 1
) -> np.ndarray:
    """Return the gradients of weight (out, ...) and bias (out,) as (groups, out/groups, in)."""
    matrix = np.asarray(weight, dtype=np.float64).reshape(groups, len(weight) // groups, -1)
    if bias is None:
        return matrix
    return np.concatenate([matrix, bias.reshape(groups, -1, 1)], axis=2)


def weight_and_bias(
    matrix: np.ndarray, shape: Sequence[int], homogeneous: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return (weight of ``shape``, bias or None): the inverse of ``gradient_matrix``."""
    if not homogeneous:
        return matrix.reshape(shape), None
    return matrix[:, :, :-1].reshape(shape), matrix[:, :, -1].reshape(-1)


def block_bounds(n: int, split: int | None) -> list[tuple[int, int]]:
    """Return (first, end) of the diagonal blocks of an (n, n) matrix, none larger than ``split``.

    They are ceil(n / split) blocks of one size, but for a shorter last one.
    """
    if split is None:
        return [(0, n)]
    size = math.ceil(n / math.ceil(n / split))
    return [(first, min(first + size, n)) for first in range(0, n, size)]


def block_diagonal(matrix: np.ndarray, split: int | None) -> np.ndarray:
    """Return the matrices (..., n, n) with zeros outside the diagonal blocks."""
    kept = np.zeros_like(matrix, dtype=np.float64)
    for first, end in block_bounds(matrix.shape[-1], split):
        kept[..., first:end, first:end] = matrix[..., first:end, first:end]
    return kept


def damping_pair(
    a_factor: np.ndarray,
    g_factor: np.ndarray,
    positions: Positions,
    damping: float,
    damping_split: str = "equal",
) -> tuple[float, float]:
    """Return (a_damping, g_damping) = (pi sqrt(damping / T), sqrt(damping / T) / pi).

    pi is 1 ("equal"), or sqrt((tr A / dim A) / (tr G / dim G)) over all groups ("pi"), between 1e-3
    and 1e3: a factor of zeros must not take the damping away.
    """
    a_positions, g_positions = np.broadcast_to(positions, 2)
    choice("damping_split", damping_split, ("equal", "pi"))
    pi = 1.0
    if damping_split == "pi":
        a_mean = np.trace(a_factor, axis1=1, axis2=2).mean() / a_factor.shape[-1]
        g_mean = np.trace(g_factor, axis1=1, axis2=2).mean() / g_factor.shape[-1]
        pi = min(max(math.sqrt(max(a_mean, 1e-30) / max(g_mean, 1e-30)), 1e-3), 1e3)
    return pi * math.sqrt(damping / a_positions), math.sqrt(damping / g_positions) / pi


def damped_inverse(matrix: np.ndarray, damping: float) -> np.ndarray:
    """Return (matrix + damping I)^-1."""
    return np.linalg.inv(matrix + damping * np.eye(len(matrix)))


def thor_direction(
    a_factor: np.ndarray,
    g_factor: np.ndarray,
    positions: Positions,
    gradient: np.ndarray,
    damping: float,
    *,
    split: int | None = 128,
    damping_split: str = "equal",
) -> np.ndarray:
    """Return U (groups, out, in), computed for each pair of diagonal blocks."""
    a_damping, g_damping = damping_pair(a_factor, g_factor, positions, damping, damping_split)
    direction = np.zeros(gradient.shape)
    for group in range(len(gradient)):
        for top, bottom in block_bounds(gradient.shape[1], split):
            g_inverse = damped_inverse(g_factor[group, top:bottom, top:bottom], g_damping)
            for left, right in block_bounds(gradient.shape[2], split):
                a_inverse = damped_inverse(a_factor[group, left:right, left:right], a_damping)
                block = gradient[group, top:bottom, left:right]
                direction[group, top:bottom, left:right] = g_inverse @ block @ a_inverse
    return direction / np.broadcast_to(positions, 2)[0]


def per_sample_gradients(
    inputs: np.ndarray, derivatives: np.ndarray, *, homogeneous: bool, layout: str = "dense"
) -> np.ndarray:
    """Return every row's own gradient of one layer, (N, groups, out, in): N sum_t d p^T."""
    columns, slopes = columns_of(inputs, derivatives, homogeneous=homogeneous, layout=layout)
    return len(columns) * np.einsum("ngot,ngpt->ngop", slopes, columns)


def exact_fisher(gradients: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
    """Return F = mean over rows of g g^T, (W, W), of gradients (N, ...), or a list of a layer each.

    For whole networks of a few hundred weights at most.
    """
    layers = [gradients] if isinstance(gradients, np.ndarray) else gradients
    flat = np.concatenate([layer.reshape(len(layer), -1) for layer in layers], axis=1)
    return flat.T @ flat / len(flat)


def kronecker_fisher(a_factor: np.ndarray, g_factor: np.ndarray, positions: int) -> np.ndarray:
    """Return T G (x) A, group by group on the diagonal: the factors' estimate of the block."""
    size = a_factor.shape[-1] * g_factor.shape[-1]
    whole = np.zeros((len(a_factor), size, len(a_factor), size))
    for group, (a, g) in enumerate(zip(a_factor, g_factor, strict=True)):
        whole[group, :, group] = positions * np.kron(g, a)
    return whole.reshape(len(a_factor) * size, -1)


def relative_error(approximation: np.ndarray, exact: np.ndarray) -> float:
    """Return the Frobenius norm of the difference over that of the exact matrix."""
    return float(np.linalg.norm(approximation - exact) / np.linalg.norm(exact))
