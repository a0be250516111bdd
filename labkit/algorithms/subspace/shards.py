"""The rows of the basis that a rank holds, with columns in the order of the optimizer."""

import math
from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from labkit.algorithms.subspace.basis import check_orthonormal
from labkit.errors import InputError
from labkit.ranks.cluster import rank_and_size
from labkit.steps.state import bounds


class Shard:
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
        InputError: if ``basis`` is not a basis, is of other weights, or has rows that are not
            orthonormal.
    """

    def __init__(self, basis: Any, parameters: Sequence[Parameter]):
        if not all(hasattr(basis, name) for name in ("matrix", "names", "shapes", "checksum")):
            raise InputError(
                f"basis: expected a Basis, got a {type(basis).__name__}; Basis.load reads one from "
                "its file, Basis.of makes one of snapshots"
            )
        columns = _columns(basis, parameters)
        self.components, self.numbers = basis.matrix.shape
        self.starts, self.ends = zip(*bounds([p.size for p in parameters]), strict=True)
        check_orthonormal(basis.matrix, "the rows of the basis")
        self.rank, self.ranks = rank_and_size()
        self.rows = math.ceil(self.components / self.ranks)
        self.first = self.rank * self.rows
        own = basis.matrix[self.first : self.first + self.rows]
        if columns != [(0, self.numbers)] or len(own) < self.rows:
            padded = np.zeros((self.rows, self.numbers), np.float32)
            parts = [own[:, begin:end] for begin, end in columns]
            padded[: len(own)] = np.concatenate(parts, axis=1)
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


def _columns(basis: Any, parameters: Sequence[Parameter]) -> list[tuple[int, int]]:
    """Return the columns (first, end) of each parameter in the basis; of all if in its order."""
    names = list(basis.names)
    shapes = dict(zip(names, map(tuple, basis.shapes), strict=True))
    expected = {parameter.name: tuple(parameter.shape) for parameter in parameters}
    if shapes != expected:
        name = next(n for n in [*expected, *shapes] if shapes.get(n) != expected.get(n))
        raise InputError(
            f"the basis is of other weights: {name!r} is {shapes.get(name, 'not there')} in the "
            f"basis and {expected.get(name, 'not there')} in the optimizer"
        )
    places = dict(zip(names, bounds([math.prod(shape) for shape in shapes.values()]), strict=True))
    numbers, matrix = places[names[-1]][1], basis.matrix
    if matrix.ndim != 2 or not len(matrix) or matrix.shape[1] != numbers:
        raise InputError(
            f"the basis has shape {matrix.shape}; expected (components, {numbers}), a column for "
            "every weight"
        )
    return [(0, numbers)] if names == list(expected) else [places[name] for name in expected]
