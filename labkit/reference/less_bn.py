"""The normalised dense layer, and its slopes, row by row."""

import numpy as np

EPSILON = 1e-4


def normalised_dense(inputs: np.ndarray, weights: np.ndarray, multiplier: float) -> np.ndarray:
    """Return m x / |x| (W / |W|)^T (B, out), with |v| = sqrt(max(v.v, 1e-4)) for each row.

    inputs (B, in), weights (out, in).
    """
    rows = np.array([row / _length(row) for row in np.asarray(inputs, np.float64)])
    directions = np.array([row / _length(row) for row in np.asarray(weights, np.float64)])
    return multiplier * rows @ directions.T


def normalised_dense_slopes(
    inputs: np.ndarray, weights: np.ndarray, multiplier: float, slope: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return (d inputs, d weights, d multiplier) of a loss, given its slope by the outputs.

    slope (B, out). A row shorter than 1e-2 is divided by a constant.
    """
    cosines = normalised_dense(inputs, weights, 1.0)
    rows = np.array([row / _length(row) for row in np.asarray(inputs, np.float64)])
    directions = np.array([row / _length(row) for row in np.asarray(weights, np.float64)])
    by_rows, by_directions = multiplier * slope @ directions, multiplier * slope.T @ rows
    return (
        np.array([_by_vector(v, s) for v, s in zip(inputs, by_rows, strict=True)]),
        np.array([_by_vector(v, s) for v, s in zip(weights, by_directions, strict=True)]),
        float(np.sum(slope * cosines)),
    )


def _length(vector: np.ndarray) -> float:
    return float(np.sqrt(max(vector @ vector, EPSILON)))


def _by_vector(vector: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Return the slope with respect to v, given that with respect to v / |v|."""
    vector, length = np.asarray(vector, np.float64), _length(vector)
    if vector @ vector <= EPSILON:
        return slope / length
    direction = vector / length
    return (slope - direction * (direction @ slope)) / length
