r"""The principal components of snapshots, computed from their Gram matrix in blocks of columns.

    X (N, M) snapshots as rows, x their mean    A = X - 1 x^T    G = A A^T = V diag(l) V^T, (N, N)
    p_k = A^T v_k / sqrt(l_k)                   variance_k = l_k / (N - 1)

X is read twice, a block of columns at a time, and is never in memory as a whole. Its middle row is
subtracted, not its mean, which would take a pass of its own and which G and v_k account for. Sums
are in float64: a direction 10^-4 as long as the first one affects only the eighth digit of G.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from labkit.algorithms.subspace.snapshots import SnapshotFolder
from labkit.base.arguments import wrong
from labkit.base.machine import own_cores

# Columns that a thread reads at once (reading took twice as long with a quarter of them), and
# columns whose float64 copies stay in a core's cache.
_CHUNK, _BLOCK = 16384, 2048
# OpenBLAS computes products of up to 2^18 multiplications in the calling thread; larger ones wait
# for one another, and their bits depend on its number of threads.
_ITEM = 2**18
_ROUNDING = 2.0**-24  # half a unit in the last place of float32, relative to the number


def principal_components(
    snapshots: SnapshotFolder, components: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return P (K, M) float32 of the snapshots, its variances (K,), and the total variance.

    The largest variance comes first. The last snapshot lies on a row's positive side.

    Raises:
        InputError: if there are too few snapshots, one is not finite, or they span fewer than
            K = ``components`` directions beyond the rounding of their float32 numbers.
    """
    count, degrees = len(snapshots), len(snapshots) - 1
    if not 0 < components <= degrees:
        most = f"at most {degrees}, one less than the snapshots in {snapshots.folder}"
        raise wrong("components", components, f"at least 1 and {most}")
    # The bits do not depend on the number of threads.
    with ThreadPoolExecutor(len(own_cores())) as pool:
        gram, size = _gram(snapshots, pool)
        if not (np.isfinite(gram).all() and np.isfinite(size)):
            for index in range(count):
                snapshots.load(index)  # refuses those that are not finite
        centred = gram - gram.mean(0)  # G of the rows minus their mean
        centred -= centred.mean(1, keepdims=True)
        values, vectors = np.linalg.eigh(centred)
        values, vectors = values[::-1], vectors[:, ::-1]
        # The largest singular value of a matrix of float32 rounding errors; its square is the
        # floor, or the rounding error of G itself if that is larger.
        rounding = _ROUNDING * np.sqrt(size) * (1 + np.sqrt(count / snapshots.size))
        error = np.finfo(np.float64).eps * count * np.trace(gram)
        if (directions := int((values > max(rounding**2, error)).sum())) < components:
            span = f"the directions that {count} snapshots in {snapshots.folder} span"
            hint = " Take fewer, or snapshots that differ more"
            raise wrong("components", components, f"at most {directions}, {span}", hint)
        values, vectors = values[:components], vectors[:, :components].copy()
        for vector in vectors.T:
            vector *= np.sign(vector[np.abs(vector) > 1e-6][-1])
        weights = vectors.T / np.sqrt(values)[:, None]  # their rows sum to 0: the middle drops out
        matrix = np.empty((components, snapshots.size), np.float32)

        def project(start: int) -> None:
            for begin, rows, _ in _differences(snapshots, start):
                matrix[:, begin : begin + rows.shape[1]] = _times(weights, rows)

        list(pool.map(project, range(0, snapshots.size, _CHUNK)))
        # G's own error over the smallest eigenvalue says how far the rows are from orthogonal.
        if error / values[-1] > 1e-9:
            _orthonormalise(matrix, pool)
    return matrix, values / degrees, float(np.trace(centred) / degrees)


def _gram(snapshots: SnapshotFolder, pool: ThreadPoolExecutor) -> tuple[np.ndarray, float]:
    """Return G (N, N) of the rows minus the middle one, and the middle one's squared length."""

    def chunk(start: int) -> tuple[np.ndarray, float]:
        total, square = np.zeros((len(snapshots), len(snapshots))), 0.0
        # Infinity minus infinity is detected in the result.
        with np.errstate(invalid="ignore", over="ignore"):
            for _, rows, middle in _differences(snapshots, start):
                total += _outer(rows)
                square += middle @ middle
        return total, square

    # In the order of the chunks, whichever thread finishes first.
    totals, squares = zip(*pool.map(chunk, range(0, snapshots.size, _CHUNK)), strict=True)
    return sum(totals[1:], totals[0]), sum(squares)


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
    """Yield (begin, rows minus the middle one (N, n) float64, the middle one) of a chunk."""
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
    return rows[:, :whole].reshape(len(rows), -1, width).transpose(1, 0, 2), rows[:, whole:]


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
