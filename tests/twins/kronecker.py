"""The whole damped Kronecker system and blocks of a Fisher matrix: small layers only."""

from collections.abc import Sequence

import numpy as np

from labkit.reference.kronecker import block_diagonal, damping_pair


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
