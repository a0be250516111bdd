"""The tree of combinations, for any vectors that have a scalar product.

On each level neighbours are combined in pairs; where their number is odd, the last three are
combined in each of three orders, and the mean is taken.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops

# An order of three: the first two are combined, and the third with their result.
ORDERS = ((0, 1, 2), (1, 2, 0), (2, 0, 1))


class Tree(nn.Cell):
    """Rows (..., N, d) -> (their Adasum (..., 1, d), soundness ()), all float32.

    N       number of rows, >= 1
    metric  True: a second argument (..., d, d) holds the scalar products of the d basis vectors
            that the rows are made of, each of length 1. Lengths are then differences of products,
            and soundness is the smallest length^2 of any combination over the sum of its squared
            coefficients. False: an orthonormal basis, soundness 1
    """

    def __init__(self, count, metric=False):
        super().__init__(auto_prefix=False)
        self.metric = metric
        found, counts = [], (1,) * count
        while len(counts) > 1:
            found.append(_Level(counts, metric))
            counts = found[-1].combined
        self.levels = nn.CellList(found, auto_prefix=False)

    def construct(self, rows, products=None):
        soundness = ops.cast(1.0, ms.float32)
        for level in self.levels:
            rows, worst = level(rows, products)
            soundness = ops.minimum(soundness, worst)
        return rows, soundness


class _Level(nn.Cell):
    """One level over rows that ``counts`` workers have made."""

    def __init__(self, counts, metric):
        super().__init__(auto_prefix=False)
        self.triple = len(counts) % 2 == 1
        self.pairs = len(counts) // 2 - self.triple
        first, second = counts[: 2 * self.pairs : 2], counts[1 : 2 * self.pairs : 2]
        self.combined = tuple(m + n for m, n in zip(first, second, strict=True))
        if self.pairs:
            self.pair = _Pair(first, second, metric)
        if self.triple:
            last = counts[-3:]
            first, second, third = zip(*[[last[i] for i in order] for order in ORDERS], strict=True)
            both = [m + n for m, n in zip(first, second, strict=True)]
            self.inner, self.outer = _Pair(first, second, metric), _Pair(both, third, metric)
            self.mean = ops.ReduceMean(keep_dims=True)
            self.combined += (sum(last),)

    def construct(self, rows, products):
        made, worst = (), ops.cast(1.0, ms.float32)
        if self.pairs:
            shape = rows.shape[:-2] + (self.pairs, 2, rows.shape[-1])
            sides = ops.reshape(rows[..., : 2 * self.pairs, :], shape)
            combined, sound = self.pair(sides[..., 0, :], sides[..., 1, :], products)
            made, worst = (combined,), ops.minimum(worst, sound)
        if self.triple:
            a, b, c = rows[..., -3:-2, :], rows[..., -2:-1, :], rows[..., -1:, :]
            both, sound = self.inner(ops.concat((a, b, c), -2), ops.concat((b, c, a), -2), products)
            worst = ops.minimum(worst, sound)
            orders, sound = self.outer(both, ops.concat((c, a, b), -2), products)
            made += (self.mean(orders, -2),)
            worst = ops.minimum(worst, sound)
        return ops.concat(made, -2), worst


class _Pair(nn.Cell):
    """Adasum of rows a and b, (..., p, d) each, made by ``first`` and ``second`` workers.

    With unit vectors u = a / |a| and v = b / |b| it is
    (|a| - m/(m+n) |b| u.v) u + (|b| - n/(m+n) |a| u.v) v: no square of a length, and nothing
    larger than the rows themselves.
    """

    def __init__(self, first, second, metric):
        super().__init__(auto_prefix=False)
        counts = list(zip(first, second, strict=True))
        self.of_first = Tensor([[m / (m + n)] for m, n in counts], ms.float32)
        self.of_second = Tensor([[n / (m + n)] for m, n in counts], ms.float32)
        self.metric = metric
        self.sum, self.max = ops.ReduceSum(keep_dims=True), ops.ReduceMax(keep_dims=True)
        self.min = ops.ReduceMin()

    def construct(self, a, b, products):
        unit_a, length_a, sound_a = self.unit(a, products)
        unit_b, length_b, sound_b = self.unit(b, products)
        cosine = self.product(unit_a, unit_b, products)
        combined = (length_a - self.of_first * cosine * length_b) * unit_a
        combined = combined + (length_b - self.of_second * cosine * length_a) * unit_b
        return combined, self.min(ops.minimum(sound_a, sound_b), ())

    def unit(self, rows, products):
        """Return (rows of length 1, or 0 where they are 0; their lengths; their soundness)."""
        largest = self.max(ops.abs(rows), -1)
        scaled = rows * _inverse(largest)
        squares = self.product(scaled, scaled, products)
        sound = ops.ones_like(squares)
        if self.metric:
            sound = squares * _inverse(self.sum(scaled * scaled, -1))
            sound = ops.select(largest == 0, ops.ones_like(sound), sound)
        length = ops.sqrt(squares)
        return scaled * _inverse(length), largest * length, sound

    def product(self, a, b, products):
        if self.metric:
            a = ops.matmul(a, products)
        return self.sum(a * b, -1)


def _inverse(value):
    # Compared with 0, not > 0: a NaN must stay one.
    zero = value == 0
    return ops.select(
        zero, ops.zeros_like(value), 1.0 / ops.select(zero, ops.ones_like(value), value)
    )
