"""The workers' vectors, (N, D), to one, (D,): the combinations that a step may use.

D numbers are those of all layers, one after the other; each layer is combined by itself.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from labkit.algorithms.adasum.tree import Tree
from labkit.errors import InputError, refuse_unknown

REDUCTION = ("adasum", "mean", "sum")
# Squares of float32 numbers keep their bits and their sums stay finite between these.
SMALLEST, LARGEST = 1e-24, 1e36
# Below it, lengths that follow from scalar products have lost too many bits.
SOUND = 0.05


class ByTree(nn.Cell):
    """Adasum vector by vector: N d multiplications a level. Right for every finite float32.

    sizes    numbers in each layer, in order
    workers  N >= 1
    """

    def __init__(self, sizes, workers):
        super().__init__(auto_prefix=False)
        # Layers of one size go through the tree at once: a ResNet-50 has 161, of 22 sizes.
        found = bounds(sizes)
        groups = [
            [layer for layer, of in enumerate(sizes) if of == size] for size in dict.fromkeys(sizes)
        ]
        self.starts = tuple(tuple(found[layer][0] for layer in group) for group in groups)
        self.ends = tuple(tuple(found[layer][1] for layer in group) for group in groups)
        order = [layer for group in groups for layer in group]
        self.places = tuple(order.index(layer) for layer in range(len(found)))
        self.tree = Tree(workers)
        self.map, self.unstack = ops.HyperMap(), ops.Unstack()

    def construct(self, rows, present=None):
        made = ()
        for starts, ends in zip(self.starts, self.ends):  # noqa: B905, no strict in a graph
            layers = self.map(ops.partial(_layer, rows), starts, ends)
            combined, _ = self.tree(ops.stack(layers))
            made += self.unstack(ops.squeeze(combined, 1))
        return ops.concat(self.map(ops.partial(_at, made), self.places))


class ByGram(nn.Cell):
    """The same from each layer's N x N scalar products, the Gram matrix: two passes over the rows.

    Every vector in the tree is a combination of the N rows, so all that the tree needs follows from
    their scalar products; the tree runs on N coefficients instead of d numbers.

    Where a layer's squares leave float32's range, or its vectors nearly cancel, which costs a
    product twice the bits that it costs a vector, ``ByTree`` does the work.

    sizes, workers  as in ``ByTree``
    """

    def __init__(self, sizes, workers):
        super().__init__(auto_prefix=False)
        self.starts, self.ends = zip(*bounds(sizes), strict=True)
        self.by_tree = ByTree(sizes, workers)
        self.tree = Tree(workers, metric=True)
        self.matmul, self.gram = ops.MatMul(), ops.MatMul(transpose_b=True)
        self.eye = Tensor(np.eye(workers), ms.float32)
        self.min, self.max = ops.ReduceMin(), ops.ReduceMax()
        # Not a loop over the layers: its steps nest, and MindSpore compiles no more than 1000.
        self.map, self.unstack = ops.HyperMap(), ops.Unstack()

    def construct(self, rows, present=None):
        layers = self.map(ops.partial(_layer, rows), self.starts, self.ends)
        grams = ops.stack(self.map(self.gram, layers, layers))
        squares = ops.reduce_sum(grams * self.eye, -1)
        in_range = ops.logical_and(self.min(squares) > SMALLEST, self.max(squares) < LARGEST)
        lengths = ops.sqrt(squares)
        cosines = grams / ops.expand_dims(lengths, -1) / ops.expand_dims(lengths, -2)
        basis = ops.expand_dims(lengths, -1) * self.eye
        coefficients, soundness = self.tree(basis, cosines)
        if ops.logical_and(in_range, soundness > SOUND):
            coefficients = self.unstack(coefficients / ops.expand_dims(lengths, -2))
            weighted = self.map(self.matmul, coefficients, layers)
            combined = ops.reshape(ops.concat(weighted, -1), (-1,))
        else:
            combined = self.by_tree(rows)
        return combined


class Sum(nn.Cell):
    """Sum of the rows."""

    def construct(self, rows, present=None):
        return ops.reduce_sum(rows, 0)


class Mean(nn.Cell):
    """Mean of the rows that are present."""

    def construct(self, rows, present=None):
        count = rows.shape[0]
        if present is not None:
            count = ops.reduce_sum(present)
        return ops.reduce_sum(rows, 0) / count


def combination(reduction, sizes, workers, by="gram"):
    """Return the cell (N, D) -> (D,) of a ``reduction`` named in ``REDUCTION``.

    Its optional second argument, (N,), is 1 for the rows that count in a mean and 0 for the others,
    which must be 0 throughout.

    sizes    numbers in each layer; workers  N >= 1; by  ``gram`` or ``tree``

    Raises ``InputError`` for other names.
    """
    refuse_unknown("reduction", reduction, REDUCTION)
    refuse_unknown("by", by, ("gram", "tree"))
    if not sizes or min(sizes) < 1 or workers < 1:
        raise InputError(
            f"layers of sizes {tuple(sizes)} and {workers} workers came; expected at least one of "
            "each, and no empty layer"
        )
    if reduction == "adasum":
        return (ByGram if by == "gram" else ByTree)(sizes, workers)
    return Mean() if reduction == "mean" else Sum()


def bounds(sizes):
    """Return (start, end) of each layer."""
    ends = np.cumsum(sizes).tolist()
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def _layer(rows, start, end):
    return rows[:, start:end]


def _at(tensors, place):
    return tensors[place]
