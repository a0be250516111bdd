"""The combinations that a step can apply to the workers' vectors: (N, D) -> (D,).

The D numbers are those of all layers, one after the other; each layer is combined separately.
"""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from labkit.algorithms.adasum.gram import TINY, Coefficients
from labkit.algorithms.adasum.tree import Tree
from labkit.algorithms.words import ADASUM_REDUCTIONS
from labkit.base.arguments import choice
from labkit.errors import InputError
from labkit.steps.state import at, bounds

# Between these, squares of float32 numbers keep their precision and their sums stay finite.
SMALLEST, LARGEST = 1e-24, 1e36


class ByTree(nn.Cell):
    """Adasum computed on the vectors: N d multiplications per level; correct for finite float32.

    Args:
        sizes: count of numbers in each layer, in order.
        workers: N >= 1.
    """

    def __init__(self, sizes: Sequence[int], workers: int):
        super().__init__(auto_prefix=False)
        # Layers of equal size go through the tree together: a ResNet-50 has 161, of 22 sizes.
        ends = bounds(sizes)
        groups = [
            [layer for layer, of in enumerate(sizes) if of == size] for size in dict.fromkeys(sizes)
        ]
        self.starts = tuple(tuple(ends[layer][0] for layer in group) for group in groups)
        self.ends = tuple(tuple(ends[layer][1] for layer in group) for group in groups)
        order = [layer for group in groups for layer in group]
        self.places = tuple(order.index(layer) for layer in range(len(ends)))
        self.tree = Tree(workers)
        self.map, self.unstack, self.squeeze = ops.HyperMap(), ops.Unstack(), ops.Squeeze(1)

    def construct(self, rows: Tensor, present: Tensor | None = None) -> Tensor:
        made: tuple = ()
        for starts, ends in zip(self.starts, self.ends):  # noqa: B905, no strict in a graph
            layers = self.map(ops.partial(_layer, rows), starts, ends)
            combined = self.tree(ops.stack(layers))
            made += self.unstack(self.squeeze(combined))
        return ops.concat(self.map(ops.partial(at, made), self.places))


class ByGram(nn.Cell):
    """Adasum computed from each layer's N x N Gram matrix: two passes over the rows.

    Every vector in the tree is a combination of the N rows, so everything that the tree needs
    follows from their scalar products; it runs on N coefficients instead of d numbers.

    ``ByTree`` takes over if a layer's squares leave float32's range or its vectors nearly cancel:
    cancellation costs a product twice as many bits as a vector.

    Args:
        sizes: as in ``ByTree``.
        workers: as in ``ByTree``.
    """

    def __init__(self, sizes: Sequence[int], workers: int):
        super().__init__(auto_prefix=False)
        self.starts, self.ends = zip(*bounds(sizes), strict=True)
        self.by_tree = ByTree(sizes, workers)
        self.coefficients = Coefficients(workers)
        self.matmul, self.gram = ops.MatMul(), ops.MatMul(transpose_b=True)
        self.eye = Tensor(np.eye(workers), ms.float32)
        self.max, self.any = ops.ReduceMax(), ops.ReduceAny()
        # Not a loop over the layers: iterations nest, and MindSpore compiles at most 1000 levels.
        self.map, self.unstack = ops.HyperMap(), ops.Unstack()

    def construct(self, rows: Tensor, present: Tensor | None = None) -> Tensor:
        combined, sure = self.attempt(rows)
        if not sure:
            combined = self.by_tree(rows)
        return combined

    def attempt(self, rows: Tensor, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (the result from scalar products alone, whether it can be relied on)."""
        layers, squares, weights, sound = self.from_products(rows)
        # Zero vectors are harmless; nonzero vectors whose squares have vanished are not.
        sums = ops.stack(self.map(_sum_of_sizes, layers))
        vanished = ops.logical_and(squares <= SMALLEST, sums > 0)
        return self.weighted(layers, weights), ops.logical_and(
            sound, ops.logical_not(self.any(vanished))
        )

    def from_products(self, rows: Tensor) -> tuple:
        """Return (layers, their vectors' squared lengths, weights, whether these are sound)."""
        # Not ops.split, which is itself a loop: in the step of a ResNet-50 it reached 1001 levels.
        layers = self.map(ops.partial(_layer, rows), self.starts, self.ends)
        grams = ops.stack(self.map(self.gram, layers, layers))
        squares = ops.reduce_sum(grams * self.eye, (-1,))
        lengths = ops.sqrt(squares)
        weights, sound = self.coefficients(grams, lengths)
        weights = weights / (ops.expand_dims(lengths, -2) + TINY)
        return layers, squares, weights, ops.logical_and(sound, self.max(squares) < LARGEST)

    def weighted(self, layers: tuple, weights: Tensor) -> Tensor:
        parts = self.map(self.matmul, self.unstack(weights), layers)
        return ops.reshape(ops.concat(parts, -1), (-1,))


class Sum(nn.Cell):
    """Sum of the rows."""

    def construct(self, rows: Tensor, present: Tensor | None = None) -> Tensor:
        return ops.reduce_sum(rows, (0,))

    def attempt(self, rows: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        return self.construct(rows, present), ops.cast(True, ms.bool_)


class Mean(Sum):
    """Mean of the rows that are present."""

    def construct(self, rows: Tensor, present: Tensor | None = None) -> Tensor:
        count = rows.shape[0]
        if present is not None:
            count = ops.reduce_sum(present)
        return ops.reduce_sum(rows, (0,)) / count


def combination(reduction: str, sizes: Sequence[int], workers: int, by: str = "gram") -> nn.Cell:
    """Return the cell (N, D) -> (D,) for a ``reduction`` in ``words.ADASUM_REDUCTIONS``.

    Its optional second argument, (N,), is 1 for the rows that count in a mean and 0 for the others,
    which must be all zeros.

    Args:
        reduction: ``adasum``, ``mean`` or ``sum``.
        sizes: count of numbers in each layer, in order.
        workers: N >= 1.
        by: ``gram`` or ``tree``.

    Raises:
        InputError: if a name is unknown, there is no layer or no worker, or a layer is empty.
    """
    choice("reduction", reduction, ADASUM_REDUCTIONS)
    choice("by", by, ("gram", "tree"))
    if not sizes or min(sizes) < 1 or workers < 1:
        raise InputError(
            "expected at least one worker and one layer, and no empty layer, got "
            f"{workers} workers and layers of sizes {tuple(sizes)}"
        )
    if reduction == "adasum":
        return (ByGram if by == "gram" else ByTree)(sizes, workers)
    return Mean() if reduction == "mean" else Sum()


def _layer(rows: Tensor, start: int, end: int) -> Tensor:
    return ops.slice(rows, (0, start), (rows.shape[0], end - start))


def _sum_of_sizes(layer: Tensor) -> Tensor:
    return ops.reduce_sum(ops.abs(layer), (-1,))
