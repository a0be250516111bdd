r"""The principal components of snapshots, computed from their Gram matrix in blocks of columns.

    X (N, M) snapshots as rows, x their mean    A = X - 1 x^T    G = A A^T = V diag(l) V^T, (N, N)
    p_k = A^T v_k / sqrt(l_k)                   variance_k = l_k / (N - 1)

With N = 40 and M = 25 million the covariance of the weights, (M, M), would take 2500 TB. X is read
twice, a block of columns at a time, and is never in memory as a whole. All sums are in float64:
l_k is a squared length, so a direction 10^-4 as long as the first one affects only the eighth digit
of G.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from labkit.algorithms.subspace.snapshots import SnapshotFolder
from labkit.base.arguments import wrong

# Columns that a thread reads at once (64 kB of a file; reading took twice as long with 16 kB) and
# columns whose float64 copies stay in a core's cache.
_CHUNK, _BLOCK = 16384, 2048
# Multiplications in one call of the matrix product. OpenBLAS computes products of up to 2^18
# multiplications in the calling thread; larger ones wait for one another, and their bits depend on
# its number of threads.
_ITEM = 2**18
# Half a unit in the last place of float32, relative to the number.
_ROUNDING = 2.0**-24
_EPSILON = np.finfo(np.float64).eps


def principal_components(
    snapshots: SnapshotFolder, components: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the first ``components`` components of N snapshots of M weights.

    Returns:
        The matrix (K, M) float32 with orthonormal rows, the largest variance first; the variances
        (K,); and the total variance of the snapshots. The sign of a row is such that the last
        snapshot lies on its positive side.

    Raises:
        InputError: if there are too few snapshots, one is not finite, or they span fewer than
            ``components`` directions beyond the rounding of their float32 numbers.
    """
    degrees = len(snapshots) - 1
    if not 0 < components <= degrees:
        most = f"at most {degrees}, one less than the snapshots in {snapshots.folder}"
        raise wrong("components", components, f"at least 1 and {most}")
    # The bits do not depend on the number of threads.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        gram, size = _gram(snapshots, pool)
        if not (np.isfinite(gram).all() and np.isfinite(size)):
            for index in range(len(snapshots)):
                snapshots.load(index)  # refuses those that are not finite
        values, vectors = _eigen(gram, size, snapshots, components)
        matrix = _project(snapshots, pool, vectors.T / np.sqrt(values)[:, None])
        # G's own error over the smallest eigenvalue says how far the rows are from orthogonal.
        if _EPSILON * len(snapshots) * np.trace(gram) / values[-1] > 1e-9:
            _orthonormalise(matrix, pool)
    total = np.trace(_centred(gram))
    return matrix, values / degrees, float(total / degrees)


def _eigen(
    gram: np.ndarray, size: float, snapshots: SnapshotFolder, components: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest eigenvalues (K,) and their eigenvectors (N, K), or raise InputError."""
    count = len(snapshots)
    values, vectors = np.linalg.eigh(_centred(gram))
    values, vectors = values[::-1], vectors[:, ::-1]
    # The largest singular value of a matrix of float32 rounding errors; the floor is its square, or
    # the rounding error of G itself if that is larger.
    rounding = _ROUNDING * np.sqrt(size) * (1 + np.sqrt(count / max(snapshots.size, 1)))
    floor = max(rounding**2, _EPSILON * count * np.trace(gram))
    directions = int((values > floor).sum())
    if directions < components:
        span = f"the directions that {count} snapshots in {snapshots.folder} span"
        hint = " Take fewer, or snapshots that differ more"
        raise wrong("components", components, f"at most {directions}, {span}", hint)
    vectors = vectors[:, :components].copy()
    for vector in vectors.T:
        vector *= np.sign(vector[np.abs(vector) > 1e-6][-1])
    return values[:components], vectors


def _centred(gram: np.ndarray) -> np.ndarray:
    """Return G of the rows minus their mean."""
    gram = gram - gram.mean(0)
    return gram - gram.mean(1, keepdims=True)


def _gram(snapshots: SnapshotFolder, pool: ThreadPoolExecutor) -> tuple[np.ndarray, float]:
    """Return G (N, N) of the rows minus the middle one, and the middle one's squared length."""
    count = len(snapshots)

    def chunk(start: int) -> tuple[np.ndarray, float]:
        total, square = np.zeros((count, count)), 0.0
        # Infinity minus infinity is detected in the result.
        with np.errstate(invalid="ignore", over="ignore"):
            for _, rows, middle in _differences(snapshots, start):
                total += _outer(rows)
                square += middle @ middle
        return total, square

    total, square = np.zeros((count, count)), 0.0
    # In the order of the chunks, whichever thread finishes first.
    for part, middle in pool.map(chunk, range(0, snapshots.size, _CHUNK)):
        total += part
        square += middle
    return total, square


def _project(
    snapshots: SnapshotFolder, pool: ThreadPoolExecutor, weights: np.ndarray
) -> np.ndarray:
    """Return ``weights`` (K, N), whose rows sum to 0 as for centred rows, times the rows."""
    matrix = np.empty((len(weights), snapshots.size), np.float32)

    def chunk(start: int) -> None:
        for begin, rows, _ in _differences(snapshots, start):
            matrix[:, begin : begin + rows.shape[1]] = _times(weights, rows)

    list(pool.map(chunk, range(0, snapshots.size, _CHUNK)))
    return matrix


def _orthonormalise(matrix: np.ndarray, pool: ThreadPoolExecutor) -> None:
    """Orthonormalise nearly orthonormal rows in place, by the Cholesky factor of P P^T."""
    parts = [matrix[:, start : start + _BLOCK] for start in range(0, matrix.shape[1], _BLOCK)]

    def correct(part: np.ndarray) -> None:
        part[:] = _times(inverse, part.astype(np.float64))

    products = pool.map(lambda part: _outer(part.astype(np.float64)), parts)
    inverse = np.linalg.inv(np.linalg.cholesky(sum(products, np.zeros(()))))
    list(pool.map(correct, parts))


def _differences(
    snapshots: SnapshotFolder, start: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield (begin, rows minus the middle one (N, n) float64, the middle one) of a chunk.

    Subtracting the middle row, not the mean, saves a pass; the small matrices account for the mean.
    """
    read = np.empty((len(snapshots), min(_CHUNK, snapshots.size - start)), np.float32)
    snapshots.read(start, read)
    for begin in range(0, read.shape[1], _BLOCK):
        rows = read[:, begin : begin + _BLOCK].astype(np.float64)
        middle = rows[len(rows) // 2].copy()
        rows -= middle
        yield start + begin, rows, middle


def _items(rows: np.ndarray, others: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns of ``rows`` as items (n, N, c), and the remaining columns."""
    width = max(1, min(rows.shape[1], _ITEM // (len(rows) * others)))
    whole = rows.shape[1] // width * width
    items = rows[:, :whole].reshape(len(rows), -1, width).transpose(1, 0, 2)
    return items, rows[:, whole:]


def _outer(rows: np.ndarray) -> np.ndarray:
    """Return rows @ rows.T in the calling thread."""
    items, rest = _items(rows, len(rows))
    return np.matmul(items, items.transpose(0, 2, 1)).sum(0) + rest @ rest.T


def _times(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return weights @ rows in the calling thread."""
    items, rest = _items(rows, len(weights))
    product = np.empty((len(weights), rows.shape[1]))
    whole = rows.shape[1] - rest.shape[1]
    out = product[:, :whole].reshape(len(weights), len(items), -1).transpose(1, 0, 2)
    np.matmul(weights, items, out=out)
    np.matmul(weights, rest, out=product[:, whole:])
    return product
