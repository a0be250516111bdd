"""The empirical Fisher matrix, exactly: whole networks of a few hundred weights at most."""

from collections.abc import Sequence

import numpy as np

from labkit.reference.kronecker import columns_of


def per_sample_gradients(
    inputs: np.ndarray, derivatives: np.ndarray, *, homogeneous: bool, layout: str = "dense"
) -> np.ndarray:
    """Return every row's own gradient of one layer, (N, groups, out, in): N sum_t d p^T.

    The arguments are those of ``kronecker_factors``; the mean over the rows is dL/dW.
    """
    columns, slopes = columns_of(inputs, derivatives, homogeneous=homogeneous, layout=layout)
    return len(columns) * np.einsum("ngot,ngpt->ngop", slopes, columns)


def exact_fisher(gradients: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
    """Return F = mean over rows of g g^T, (W, W), of the rows' gradients.

    ``gradients`` is an array (N, ...), or a list of them, one a layer; W counts all their weights.
    """
    layers = [gradients] if isinstance(gradients, np.ndarray) else list(gradients)
    rows = len(layers[0])
    flat = np.concatenate([np.asarray(layer).reshape(rows, -1) for layer in layers], axis=1)
    fisher = np.zeros((flat.shape[1], flat.shape[1]))
    for gradient in flat:
        fisher += np.outer(gradient, gradient)
    return fisher / rows


def layer_block(fisher: np.ndarray, sizes: Sequence[int], layer: int) -> np.ndarray:
    """Return the diagonal block of one layer, where ``sizes`` counts the weights of each."""
    first = sum(sizes[:layer])
    return fisher[first : first + sizes[layer], first : first + sizes[layer]]


def kronecker_fisher(a_factor: np.ndarray, g_factor: np.ndarray, positions: int) -> np.ndarray:
    """Return T G (x) A, group by group on the diagonal: what the factors say of the block."""
    size = a_factor.shape[-1] * g_factor.shape[-1]
    whole = np.zeros((len(a_factor) * size, len(a_factor) * size))
    for group, (a, g) in enumerate(zip(a_factor, g_factor, strict=True)):
        first = group * size
        whole[first : first + size, first : first + size] = positions * np.kron(g, a)
    return whole


def relative_error(approximation: np.ndarray, exact: np.ndarray) -> float:
    """Return the Frobenius norm of the difference over that of the exact matrix."""
    return float(np.linalg.norm(approximation - exact) / np.linalg.norm(exact))
