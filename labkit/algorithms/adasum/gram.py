"""The tree of combinations, computed from the Gram matrix of the N vectors alone.

A level combines its n input vectors into r vectors, each from at most six of them. With G (n, n)
the Gram matrix of its inputs, W (n, N) their coefficients in the N original vectors, and C (r, n)
the matrix of the level,

    C from G,    G <- C G C^T,    W <- C W
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from labkit.algorithms.adasum.tree import ORDERS

# A combination's squared length is a difference. Below this share of the sum of its parts' squares,
# too many of its bits are lost. The first bound is for combinations that are combined further, the
# second for the last one. At 0.00125, for two vectors of 2 million numbers, whose products are
# accurate only to 1.3e-6, the last one was off by 2.1e-5.
SOUND, SOUND_AT_THE_END = 0.05, 0.02
# Avoids 0 / 0: it is negligible beside squares in range, and a product of 0 divided by it is 0.
TINY = 1e-37

Pair = tuple[int, int, float, float]


class Coefficients(nn.Cell):
    """Gram matrices (L, N, N) of L layers -> Adasum's coefficients (L, 1, N), whether sound ().

    The coefficients apply to the vectors divided by their lengths. A vector of length 0 leaves the
    others unchanged. ``workers`` is N >= 1.
    """

    def __init__(self, workers: int):
        super().__init__(auto_prefix=False)
        self.levels = nn.CellList([_Level(*level) for level in _levels(workers)], auto_prefix=False)
        self.eye = Tensor(np.eye(workers), ms.float32)
        self.min = ops.ReduceMin()

    def construct(self, grams: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        weights = ops.expand_dims(lengths, -1) * self.eye
        margins: tuple = ()
        for level in self.levels:
            if level.combined:
                squares = ops.reduce_sum(grams * level.eye, (-1,))
                margins += (squares - SOUND * ops.reduce_sum(ops.square(weights), (-1,)),)
            grams, weights = level(grams, weights)
        parts = ops.reduce_sum(ops.square(weights), (-1,))
        margins += (ops.reduce_sum(grams, (-1,)) - SOUND_AT_THE_END * parts,)
        return weights, self.min(ops.concat(margins, -1)) >= 0


class _Level(nn.Cell):
    """Gram matrices (L, n, n) and coefficients (L, n, N) of n vectors -> those of r vectors.

    Args:
        count: n.
        pairs: (i, j, m / (m + n), n / (m + n)) for each pair of vectors i and j to combine.
        rows: how each of the r vectors is made: a list gives the mean of the pairs in it, a number
            the input vector with that index.
        combined: whether the inputs are combinations rather than the original vectors.
    """

    def __init__(self, count: int, pairs: list[Pair], rows: list[int | list[int]], combined: bool):
        super().__init__(auto_prefix=False)
        self.combined = combined
        self.count, self.made, self.both = count, len(rows), 2 * len(pairs)
        first, second, of_first, of_second = map(np.array, zip(*pairs, strict=True))
        # pick: takes a pair's |a|^2, |b|^2, and a.b times its two shares, from the entries of G.
        # spread, kept: C = factors . spread + kept.
        pick = np.zeros((count, count, 4, len(pairs)))
        spread = np.zeros((2, len(pairs), self.made, count))
        kept = np.zeros((self.made, count))
        every = np.arange(len(pairs))
        pick[first, first, 0, every] = pick[second, second, 1, every] = 1
        pick[first, second, 2, every], pick[first, second, 3, every] = of_first, of_second
        for row, made_of in enumerate(rows):
            if isinstance(made_of, int):
                kept[row, made_of] = 1
            else:
                spread[0, made_of, row, first[made_of]] = 1 / len(made_of)
                spread[1, made_of, row, second[made_of]] = 1 / len(made_of)
        self.pick = Tensor(pick.reshape(count * count, -1), ms.float32)
        self.spread = Tensor(spread.reshape(self.both, -1), ms.float32)
        self.kept = Tensor(kept, ms.float32)
        self.eye = Tensor(np.eye(count), ms.float32)
        self.matmul, self.product = ops.MatMul(), ops.BatchMatMul()
        self.halves = ops.Split(-1, 2)
        self.product_with_transposed = ops.BatchMatMul(transpose_b=True)

    def construct(self, grams: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        layers = grams.shape[0]
        picked = self.matmul(ops.reshape(grams, (layers, -1)), self.pick)
        squares, products = self.halves(picked)
        factors = 1 - products / (squares + TINY)
        matrix = ops.reshape(self.matmul(factors, self.spread), (layers, self.made, self.count))
        matrix = matrix + self.kept
        grams = self.product_with_transposed(self.product(matrix, grams), matrix)
        return grams, self.product(matrix, weights)


def _levels(workers: int) -> list[tuple[int, list[Pair], list[int | list[int]], bool]]:
    """Return the arguments of every ``_Level``; a level that combines three takes two of them."""
    levels: list[tuple[int, list[Pair], list[int | list[int]], bool]] = []
    counts = [1] * workers
    while len(counts) > 1:
        triple = len(counts) % 2
        ends = range(0, len(counts) - 3 * triple, 2)
        pairs = [_pair(i, i + 1, counts[i], counts[i + 1]) for i in ends]
        made: list[int | list[int]] = [[k] for k in range(len(pairs))]
        combined = [counts[i] + counts[i + 1] for i in ends]
        if triple:
            three, last = len(counts) - 3, counts[-3:]
            inner = [_pair(three + i, three + j, last[i], last[j]) for i, j, _ in ORDERS]
            made += [[len(pairs) + order] for order in range(3)]
            made += [three + k for *_, k in ORDERS]
            levels.append((len(counts), pairs + inner, made, bool(levels)))
            first = len(pairs)
            outer = [
                _pair(first + order, first + 3 + order, last[i] + last[j], last[k])
                for order, (i, j, k) in enumerate(ORDERS)
            ]
            levels.append((first + 6, outer, [*range(first), [0, 1, 2]], True))
            combined.append(sum(last))
        else:
            levels.append((len(counts), pairs, made, bool(levels)))
        counts = combined
    return levels


def _pair(i: int, j: int, m: int, n: int) -> Pair:
    return i, j, m / (m + n), n / (m + n)
