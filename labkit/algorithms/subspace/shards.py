"""The rows of the basis that a rank holds, with columns in the order of the optimizer."""

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from labkit.algorithms.subspace.basis_files import ORTHONORMAL, off_orthonormal
from labkit.errors import InputError
from labkit.ranks.cluster import rank_and_size
from labkit.steps.state import bounds


class Shard(nn.Cell):
    """This rank's components of a basis, in the order of the optimizer's parameters.

    Args:
        basis: object with the matrix (K, M) float32, names, shapes and checksum of a ``Basis``.
        parameters: those of the optimizer, with the names and shapes of the basis in any order.

    Attributes:
        tensor: (L, M) float32, L = ceil(K / ranks); rows beyond the K components are zero.
        components: K.
        numbers: M.
        starts: where each parameter starts among the M numbers; ``ends``: where it ends.

    Raises:
        InputError: if ``basis`` is not a basis, is of other weights, is not finite, or has rows
            that are not orthonormal.
    """

    def __init__(self, basis: Any, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        if not all(hasattr(basis, name) for name in ("matrix", "names", "shapes", "checksum")):
            raise InputError(
                f"basis: expected a Basis, got a {type(basis).__name__}; Basis.load reads one from "
                "its file, Basis.of makes one of snapshots"
            )
        columns = _columns(basis, parameters)
        self.components, self.numbers = basis.matrix.shape
        self.starts, self.ends = zip(*bounds([p.size for p in parameters]), strict=True)
        _check_rows(basis.matrix)
        self.rank, self.ranks = rank_and_size()
        self.rows = rows_of_rank(self.components, self.ranks)
        self.first = self.rank * self.rows
        own = basis.matrix[self.first : self.first + self.rows]
        if columns is not None or len(own) < self.rows:
            padded = np.zeros((self.rows, self.numbers), np.float32)
            start = 0
            for begin, end in columns or [(0, self.numbers)]:
                padded[: len(own), start : start + end - begin] = own[:, begin:end]
                start += end - begin
            own = padded
        self.tensor = Tensor(np.ascontiguousarray(own, np.float32))

    def others(self) -> tuple[Tensor | None, Tensor | None]:
        """Return zeros for the components of the ranks before this one and after it, or None."""
        after = (self.ranks - 1 - self.rank) * self.rows
        counts = (self.first, after)
        before, behind = (Tensor(np.zeros(n), ms.float32) if n else None for n in counts)
        return before, behind

    def of(self, coefficients: np.ndarray) -> Tensor:
        """Return this rank's columns (N, L) of coefficients (N, K)."""
        padded = np.zeros((len(coefficients), self.ranks * self.rows), np.float32)
        padded[:, : self.components] = coefficients
        return Tensor(np.ascontiguousarray(padded[:, self.first : self.first + self.rows]))


def rows_of_rank(components: int, ranks: int) -> int:
    """Return how many rows of the basis each rank holds."""
    return -(-components // ranks)


def _columns(basis: Any, parameters: Sequence[Parameter]) -> list[tuple[int, int]] | None:
    """Return the columns (first, end) of each parameter in the basis; None if they are in order."""
    names = list(basis.names)
    shapes = dict(zip(names, map(tuple, basis.shapes), strict=True))
    expected = {parameter.name: tuple(parameter.shape) for parameter in parameters}
    if shapes != expected:
        name = next(n for n in [*expected, *shapes] if shapes.get(n) != expected.get(n))
        raise InputError(
            f"the basis is of other weights: {name!r} is {shapes.get(name, 'not there')} in the "
            f"basis and {expected.get(name, 'not there')} in the optimizer"
        )
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    matrix = basis.matrix
    if matrix.ndim != 2 or not len(matrix) or matrix.shape[1] != sum(sizes):
        raise InputError(
            f"the basis has shape {matrix.shape}; expected (components, {sum(sizes)}), a column "
            "for every weight"
        )
    if names == list(expected):
        return None
    ends = dict(zip(names, np.cumsum(sizes), strict=True))
    return [(int(ends[n] - np.prod(shapes[n])), int(ends[n])) for n in expected]


def _check_rows(matrix: np.ndarray) -> None:
    off = off_orthonormal(matrix)
    if not np.isfinite(off):
        raise InputError("the basis holds numbers that are not finite")
    if off > ORTHONORMAL:
        raise InputError(
            f"the basis' rows are not orthonormal: P P^T differs from I by {off:.2g}; "
            f"expected at most {ORTHONORMAL}"
        )
