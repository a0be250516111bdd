"""Adasum of two vectors, of three, and of any number."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from labkit.errors import InputError


def cosine(a: ArrayLike, b: ArrayLike) -> float:
    """Return a . b / (|a| |b|), or 0 if one of the vectors is 0."""
    a, b = _vector(a), _vector(b)
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / lengths) if lengths else 0.0


def adasum_pair(a: ArrayLike, b: ArrayLike, m: int = 1, n: int = 1) -> np.ndarray:
    """Return Adasum of a, made by m workers, and b, made by n workers; each (d,).

    (1 - m / (m + n) a.b / |a|^2) a  +  (1 - n / (m + n) a.b / |b|^2) b

    With m = n it is the pairwise rule of Maleki et al., arXiv 2006.02924. Parallel vectors give
    their mean over the workers, (m a + n b) / (m + n); a zero vector leaves the other unchanged.
    """
    a, b = _vector(a), _vector(b)
    if not a.any() or not b.any():
        return a + b
    product = a @ b
    return (1 - m / (m + n) * product / (a @ a)) * a + (1 - n / (m + n) * product / (b @ b)) * b


def adasum_triple(vectors: Sequence[ArrayLike], counts: Sequence[int] = (1, 1, 1)) -> np.ndarray:
    """Return Adasum of three vectors (3, d), made by ``counts`` workers: the mean of three orders.

    In each order two are combined first, and then their result with the third.
    """
    a, b, c = vectors
    i, j, k = counts
    of_ab = adasum_pair(adasum_pair(a, b, i, j), c, i + j, k)
    of_bc = adasum_pair(adasum_pair(b, c, j, k), a, j + k, i)
    of_ca = adasum_pair(adasum_pair(c, a, k, i), b, k + i, j)
    return (of_ab + of_bc + of_ca) / 3


def adasum_tree(vectors: Sequence[ArrayLike]) -> np.ndarray:
    """Return Adasum of N vectors (N, d), level by level.

    On each level neighbours are combined in pairs; where their number is odd, the last three are
    combined as three. With N = 2^x this is the recursion Adasum(Adasum(first half), Adasum(second
    half)).
    """
    nodes = [(_vector(vector), 1) for vector in vectors]
    if not nodes:
        raise InputError("vectors: expected at least one, got none")
    while len(nodes) > 1:
        paired = len(nodes) - 3 * (len(nodes) % 2)
        level = [
            (adasum_pair(a, b, m, n), m + n)
            for (a, m), (b, n) in zip(nodes[:paired:2], nodes[1:paired:2], strict=True)
        ]
        if paired < len(nodes):
            last, counts = zip(*nodes[paired:], strict=True)
            level.append((adasum_triple(last, counts), sum(counts)))
        nodes = level
    return nodes[0][0]


def _vector(values: ArrayLike) -> np.ndarray:
    return np.asarray(values, np.float64).ravel()
