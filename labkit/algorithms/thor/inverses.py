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
        self.rank, self.ranks = rank_and_size()
        self.layers, self.damping_split = list(layers), damping_split
        self.owners = share_out([layer.cost for layer in layers], self.ranks)
        self.exchange = _Exchange(self.layers, self.owners, self.rank) if self.ranks > 1 else None
        self.inversions: dict[tuple[int, ...], Inversion] = {}

    def make(self, due: Sequence[int], damping: float) -> dict[int, int]:
        """Compute the inverses of the layers numbered ``due``; return layer -> number of retries.

        Raises:
            FloatingPointError: on all ranks, if no damping makes a layer's factors invertible.
        """
        own = tuple(number for number in due if self.owners[number] == self.rank)
        tries = np.zeros(len(self.layers), np.float32)
        for number, count in self._tries(own, damping).items():
            tries[number] = count
        if self.exchange is not None and due:
            tries = self.exchange(Tensor(tries)).asnumpy()
        for number in due:
            if tries[number] > TRIES:
                raise FloatingPointError(
                    f"the factors of layer {self.layers[number].layer_name!r} have no inverse in "
                    f"float32, not even with damping {damping * 10 ** (TRIES - 1):.3g}, "
                    f"{10 ** (TRIES - 1):g} times what was asked for"
                )
        return {number: int(tries[number]) - 1 for number in due}

    def _tries(self, numbers: tuple[int, ...], damping: float) -> dict[int, int]:
        """Invert layers; return the number of tries of each, TRIES + 1 if all failed."""
        tries: dict[int, int] = {}
        left = numbers
        for attempt in range(1, TRIES + 1):
            if not left:
                return tries
            # One graph for all of a rank's layers, and one for each that is inverted alone.
            groups = [left] if left == self._all_of_rank() else [(number,) for number in left]
            sound = [
                number
                for group in groups
                for number, residual in zip(group, self._invert(group, damping), strict=True)
                if residual <= RESIDUAL
            ]
            tries |= dict.fromkeys(sound, attempt)
            left = tuple(number for number in left if number not in sound)
            damping *= 10
        return tries | dict.fromkeys(left, TRIES + 1)

    def _all_of_rank(self) -> tuple[int, ...]:
        return tuple(i for i, owner in enumerate(self.owners) if owner == self.rank)

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
    """Send each layer's inverses to all ranks; tries (layers,) -> their sums over ranks."""

    def __init__(self, layers: list[LayerCurvature], owners: list[int], rank: int) -> None:
        super().__init__(auto_prefix=False)
        self.layers = nn.CellList(layers, auto_prefix=False)
        self.mine = tuple(1.0 if owner == rank else 0.0 for owner in owners)
        self.all_reduce = ops.AllReduce()

    def construct(self, tries: Tensor) -> Tensor:
        inverses: tuple = ()
        values: tuple = (tries,)
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
