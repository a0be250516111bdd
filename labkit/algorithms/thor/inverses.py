"""Inverses of the layers: retries with more damping, and distribution over ranks."""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from labkit.algorithms.thor.curvature import RESIDUAL, LayerCurvature
from labkit.ranks.cluster import rank_and_size
from labkit.steps.fusion import summed_in_order

# A failed inversion is retried with 10, 100, ... 10^6 times the damping.
TRIES = 7


class Inverses:
    """The inversions of layers: all at once, or one by one, in compiled graphs.

    On several ranks each layer is inverted by one of them: in order of decreasing cost, a layer
    goes to the rank with the least cost so far. The other ranks receive its inverses.

    Args:
        layers: curvature of each layer.
        damping_split: ``equal`` or ``pi``.
    """

    def __init__(self, layers: Sequence[LayerCurvature], damping_split: str) -> None:
        rank, ranks = rank_and_size()
        self.layers, self.damping_split = list(layers), damping_split
        self.owners = share_out([layer.cost for layer in layers], ranks)
        self.own = [number for number, owner in enumerate(self.owners) if owner == rank]
        self.exchange = _Exchange(self.layers, self.own) if ranks > 1 else None
        self.inversions: dict[tuple[int, ...], Inversion] = {}

    def make(self, due: Sequence[int], damping: float) -> dict[int, int]:
        """Compute the inverses of the layers numbered ``due``; return layer -> number of retries.

        Raises:
            FloatingPointError: on all ranks, if no damping makes a layer's factors invertible.
        """
        retries = np.zeros(len(self.layers), np.float32)
        left, tried = [number for number in due if number in self.own], damping
        while left and retries.max() < TRIES:
            # One graph for all of a rank's layers, and one for each that is inverted alone.
            groups = [tuple(left)] if left == self.own else [(number,) for number in left]
            residuals = [x for group in groups for x in self._invert(group, tried)]
            left = [n for n, x in zip(left, residuals, strict=True) if not x <= RESIDUAL]
            retries[left] += 1
            tried *= 10
        if self.exchange is not None and due:
            retries = self.exchange(Tensor(retries)).asnumpy()
        for number in due:
            if retries[number] >= TRIES:
                raise FloatingPointError(
                    f"the factors of layer {self.layers[number].layer_name!r} have no inverse in "
                    f"float32, not even with damping {damping * 10 ** (TRIES - 1):.3g}, "
                    f"{10 ** (TRIES - 1):g} times what was asked for"
                )
        return {number: int(retries[number]) for number in due}

    def _invert(self, group: tuple[int, ...], damping: float) -> np.ndarray:
        if group not in self.inversions:
            layers = [self.layers[number] for number in group]
            self.inversions[group] = Inversion(layers, self.damping_split)
        return self.inversions[group](Tensor(damping, ms.float32)).asnumpy()


def share_out(costs: Sequence[float], ranks: int) -> list[int]:
    """Return the rank of each layer: costliest first, to the rank with the least cost so far."""
    owners, load = [0] * len(costs), [0.0] * ranks
    for number in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        owners[number] = min(range(ranks), key=lambda rank: load[rank])
        load[owners[number]] += costs[number]
    return owners


class Inversion(nn.Cell):
    """Recompute layers' inverses: scalar damping -> sums of A's and G's residuals, (layers,).

    A's residual is max |(A + damping I) A_inverse - I|; a layer's inverses are stored only if the
    sum is at most ``RESIDUAL``. ops.MatrixInverse silently returns zeros for a singular or NaN
    matrix; Cholesky raises, but leaves MindSpore's runtime unusable.

    Args:
        layers: curvature of each layer.
        damping_split: ``equal`` or ``pi``.
    """

    def __init__(self, layers: Sequence[LayerCurvature], damping_split: str) -> None:
        super().__init__(auto_prefix=False)
        self.layers = nn.CellList(layers, auto_prefix=False)
        self.balanced = damping_split == "pi"

    def construct(self, damping: Tensor) -> Tensor:
        residuals: tuple = ()
        for layer in self.layers:
            residuals += (layer.invert(damping, self.balanced),)
        return ops.stack(residuals)


class _Exchange(nn.Cell):
    """Send each layer's inverses to all ranks; retries (layers,) -> their sums over ranks."""

    def __init__(self, layers: list[LayerCurvature], own: list[int]) -> None:
        super().__init__(auto_prefix=False)
        self.layers = nn.CellList(layers, auto_prefix=False)
        self.mine = tuple(1.0 if number in own else 0.0 for number in range(len(layers)))
        self.all_reduce = ops.AllReduce()

    def construct(self, retries: Tensor) -> Tensor:
        inverses: tuple = ()
        values: tuple = (retries,)
        for i in range(len(self.layers)):
            layer, mine = self.layers[i], self.mine[i]
            # x + 0 + 0 is x: the ranks' copies are bitwise equal.
            inverses += (layer.a_inverse, layer.g_inverse)
            values += (layer.a_inverse * mine, layer.g_inverse * mine)
        sums = summed_in_order(self.all_reduce, values)
        done: tuple = ()
        for i in range(len(inverses)):
            done += (ops.assign(inverses[i], sums[i + 1]),)
        return ops.depend(sums[0], done)
