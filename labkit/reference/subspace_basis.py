"""The basis of a subspace by the singular values of all snapshots at once."""

from dataclasses import dataclass

import numpy as np

from labkit.errors import InputError


@dataclass(frozen=True)
class PrincipalComponents:
    """matrix (K, M) with orthonormal rows; variance (K,), largest first; total_variance of all."""

    matrix: np.ndarray
    variance: np.ndarray
    total_variance: float


def principal_components(snapshots: np.ndarray, components: int) -> PrincipalComponents:
    """Return the first K principal components of snapshots (N, M), one snapshot to a row.

    A = X - mean of the rows = U diag(s) W^T;  row k is w_k, its variance s_k^2 / (N - 1).

    The axis that is reduced is M: each snapshot is one point among M weights. The sign of a row is
    such that the last snapshot lies on its positive side.
    """
    rows = np.asarray(snapshots, np.float64)
    if rows.ndim != 2 or len(rows) <= components:
        raise InputError(f"snapshots: expected (N, M) with N > {components}, got {rows.shape}")
    centred = rows - rows.mean(axis=0)
    left, values, right = np.linalg.svd(centred, full_matrices=False)
    matrix = np.array(right[:components])
    for k in range(components):
        places = left[:, k][np.abs(left[:, k]) > 1e-6]
        if places[-1] < 0:
            matrix[k] = -matrix[k]
    variance = values**2 / (len(rows) - 1)
    return PrincipalComponents(matrix, variance[:components], float(variance.sum()))


def reconstruct(matrix: np.ndarray, mean: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the point of the subspace nearest to ``weights`` (M,): mean + P^T P (weights - mean).

    ``matrix`` is (K, M) with orthonormal rows.
    """
    difference = np.asarray(weights, np.float64) - mean
    return mean + matrix.T @ (matrix @ difference)
