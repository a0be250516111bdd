"""The tree of combinations, for any vectors that have a scalar product.

On each level neighbours are combined in pairs; if their number is odd, the last three are combined
in each of three orders and the results averaged.
"""

from collections.abc import Sequence

import mindspore as ms
from mindspore import Tensor, nn, ops

# Orders of combining three: the first two are combined, then the result with the third.
ORDERS = ((0, 1, 2), (1, 2, 0), (2, 0, 1))


class Tree(nn.Cell):
    """Rows (..., N, d) -> their Adasum (..., 1, d), float32; N >= 1 is ``count``."""

    def __init__(self, count: int):
        super().__init__(auto_prefix=False)
        levels: list[_Level] = []
        counts: tuple[int, ...] = (1,) * count
        while len(counts) > 1:
            levels.append(_Level(counts))
            counts = levels[-1].combined
        self.levels = nn.CellList(levels, auto_prefix=False)

    def construct(self, rows: Tensor) -> Tensor:
        for level in self.levels:
            rows = level(rows)
        return rows


class _Level(nn.Cell):
    """One level of the tree; ``counts`` says how many workers made each row."""

    def __init__(self, counts: tuple[int, ...]):
        super().__init__(auto_prefix=False)
        self.triple = len(counts) % 2 == 1
        self.pairs = len(counts) // 2 - self.triple
        first, second = counts[: 2 * self.pairs : 2], counts[1 : 2 * self.pairs : 2]
        self.combined = tuple(m + n for m, n in zip(first, second, strict=True))
        if self.pairs:
            self.pair = _Pair(first, second)
        if self.triple:
            last = counts[-3:]
            first, second, third = zip(*[[last[i] for i in order] for order in ORDERS], strict=True)
            both = [m + n for m, n in zip(first, second, strict=True)]
            self.inner, self.outer = _Pair(first, second), _Pair(both, third)
            self.mean = ops.ReduceMean(keep_dims=True)
            self.combined += (sum(last),)

    def construct(self, rows: Tensor) -> Tensor:
        made: tuple = ()
        if self.pairs:
            shape = rows.shape[:-2] + (self.pairs, 2, rows.shape[-1])
            sides = ops.reshape(rows[..., : 2 * self.pairs, :], shape)
            made = (self.pair(sides[..., 0, :], sides[..., 1, :]),)
        if self.triple:
            a, b, c = rows[..., -3:-2, :], rows[..., -2:-1, :], rows[..., -1:, :]
            both = self.inner(ops.concat((a, b, c), -2), ops.concat((b, c, a), -2))
            orders = self.outer(both, ops.concat((c, a, b), -2))
            made += (self.mean(orders, (-2,)),)
        return ops.concat(made, -2)


class _Pair(nn.Cell):
    """Adasum of rows a and b, (..., p, d) each, made by ``first`` and ``second`` workers.

    With unit vectors u = a / |a| and v = b / |b| it is
    (|a| - m/(m+n) |b| u.v) u + (|b| - n/(m+n) |a| u.v) v, which squares no length and computes
    nothing larger than the rows themselves.
    """

    def __init__(self, first: Sequence[int], second: Sequence[int]):
        super().__init__(auto_prefix=False)
        counts = list(zip(first, second, strict=True))
        self.of_first = Tensor([[m / (m + n)] for m, n in counts], ms.float32)
        self.of_second = Tensor([[n / (m + n)] for m, n in counts], ms.float32)
        self.sum, self.max = ops.ReduceSum(keep_dims=True), ops.ReduceMax(keep_dims=True)

    def construct(self, a: Tensor, b: Tensor) -> Tensor:
        unit_a, length_a = self.unit(a)
        unit_b, length_b = self.unit(b)
        cosine = self.sum(unit_a * unit_b, (-1,))
        combined = (length_a - self.of_first * cosine * length_b) * unit_a
        return combined + (length_b - self.of_second * cosine * length_a) * unit_b

    def unit(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return (rows scaled to length 1, with zero rows left at 0; their lengths)."""
        largest = self.max(ops.abs(rows), (-1,))
        scaled = rows * _inverse(largest)
        length = ops.sqrt(self.sum(scaled * scaled, (-1,)))
        return scaled * _inverse(length), largest * length


def _inverse(value: Tensor) -> Tensor:
    # Tested with == 0, not > 0: a NaN must stay NaN.
    zero = value == 0
    return ops.select(
        zero, ops.zeros_like(value), 1.0 / ops.select(zero, ops.ones_like(value), value)
    )
