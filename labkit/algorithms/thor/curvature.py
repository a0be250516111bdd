"""Curvature of each layer: factors, their inverses by one rank each, the gradient between them.

    A = A_sum / T,   G = G_sum / T,   F ~ T A (x) G
    A_inverse = (A + pi sqrt(damping / T) I)^-1
    G_inverse = (1 / T) (G + (1 / pi) sqrt(damping / T) I)^-1
    U = G_inverse grad A_inverse

A_sum, G_sum and T come from the layer's tap. (A + ..) (x) (G + ..) T equals F + damping I plus two
mixed terms. pi is 1 ("equal", as in MindSpore's THOR) or the square root of the ratio of A's mean
eigenvalue to G's ("pi": Martens and Grosse, 2015, section 6.3).
"""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.algorithms.thor.layers import Geometry
from labkit.ranks.cluster import rank_and_size
from labkit.steps.gradients import summed_in_order

# Inverses are accepted up to this sum of A's residual, max |(A + damping I) A_inverse - I|, and
# G's. Measured by condition number: 1e5 at most 1.1e-3; 1e6 6e-3 to 2e-2, the inverse being right
# to 5e-3 of its largest entry; from 1e7 on usually 1, because ops.MatrixInverse returns zeros.
RESIDUAL = 1e-2
TRIES = 7  # with 1, 10, 100, ... 10^6 times the damping


class LayerCurvature(nn.Cell):
    """The state of one layer, and the product of its gradient with the inverses.

    Called with the gradients of the weight and the bias, it returns U in their shapes. If the layer
    is not homogeneous, the second argument is returned unchanged.

    Attributes:
        a_factor: running average of A, (groups * blocks, b, b), float32. The layer's tap is
            differentiated with respect to it, ``g_factor`` and ``positions``.
        g_factor: running average of G, (groups * blocks', b', b'), float32.
        positions: T of A and of G, (2,), float32.
        a_inverse, g_inverse: shaped like A and G; identities before the first refresh.
        cost: multiplications in its inversions, up to a constant factor.
    """

    def __init__(self, name: str, geometry: Geometry) -> None:
        super().__init__(auto_prefix=False)
        self.layer_name, self.homogeneous = name, geometry.homogeneous
        self.groups = groups = geometry.groups
        self.inputs, self.outputs = inputs, outputs = geometry.inputs, geometry.outputs
        self.a_blocks, self.g_blocks = a, g = geometry.a_blocks, geometry.g_blocks

        def parameter(kind: str, value: np.ndarray, requires_grad: bool = False) -> Parameter:
            value = Tensor(value.astype(np.float32))
            return Parameter(value, name=f"thor.{name}.{kind}", requires_grad=requires_grad)

        a_shape, g_shape = ((groups * each.count, each.size, each.size) for each in (a, g))
        # Without requires_grad, their gradients, the sums, would be zeros in PyNative mode.
        self.a_factor = parameter("a_factor", np.zeros(a_shape), True)
        self.g_factor = parameter("g_factor", np.zeros(g_shape), True)
        self.positions = parameter("positions", np.zeros(2), True)
        self.a_inverse = parameter("a_inverse", np.zeros(a_shape) + np.eye(a.size))
        self.g_inverse = parameter("g_inverse", np.zeros(g_shape) + np.eye(g.size))
        self.cost = float(self.a_factor.size * a.size + self.g_factor.size * g.size)
        self.product = ops.BatchMatMul()
        height, width = g.count * g.size, a.count * a.size
        weight_width = inputs - self.homogeneous
        self.weight_shape = (groups, outputs, weight_width)
        self.bias_shape, self.bias_start = (groups, outputs, 1), (0, 0, weight_width)
        # Shapes of the zeros that fill the last block of columns and of rows; () if it is full.
        self.right = (groups, outputs, width - inputs) if width > inputs else ()
        self.below = (groups, height - outputs, width) if height > outputs else ()
        self.padded_shape = (groups, height, width)
        # Shapes for cutting into blocks of rows, and of columns, first in a product; () for one.
        self.by_rows = (groups * g.count, g.size, width) if g.count > 1 else ()
        self.by_columns = (groups, height, a.count, a.size) if a.count > 1 else ()
        self.column_blocks = (groups * a.count, height, a.size)
        self.columns_first = (groups, a.count, height, a.size)

    def construct(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        direction = self._between(self.g_inverse, self._matrix(weight, bias), self.a_inverse)
        if self.homogeneous:
            last = ops.slice(direction, self.bias_start, self.bias_shape)
            bias = ops.cast(ops.reshape(last, bias.shape), bias.dtype)
        if self.weight_shape != self.padded_shape:
            direction = ops.slice(direction, (0, 0, 0), self.weight_shape)
        return ops.cast(ops.reshape(direction, weight.shape), weight.dtype), bias

    def _matrix(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Return (groups, outputs, inputs) in float32, the bias as a column, padded to blocks."""
        # Concat, not Pad: 0.17 instead of 1.2 ms for (120, 401) to (120, 404) on CPU.
        parts: tuple = (ops.reshape(ops.cast(weight, ms.float32), self.weight_shape),)
        if self.homogeneous:
            parts += (ops.reshape(ops.cast(bias, ms.float32), self.bias_shape),)
        if self.right:
            parts += (ops.zeros(self.right, ms.float32),)
        matrix = ops.concat(parts, 2) if len(parts) > 1 else parts[0]
        if self.below:
            matrix = ops.concat((matrix, ops.zeros(self.below, ms.float32)), 1)
        return matrix

    def _between(self, left: Tensor, matrix: Tensor, right: Tensor) -> Tensor:
        """Return left @ matrix @ right for a padded matrix between blocks like G's and A's."""
        if self.by_rows:
            matrix = ops.reshape(matrix, self.by_rows)
            matrix = ops.reshape(self.product(left, matrix), self.padded_shape)
        else:
            matrix = self.product(left, matrix)
        if not self.by_columns:
            return self.product(matrix, right)
        matrix = ops.transpose(ops.reshape(matrix, self.by_columns), (0, 2, 1, 3))
        matrix = self.product(ops.reshape(matrix, self.column_blocks), right)
        matrix = ops.transpose(ops.reshape(matrix, self.columns_first), (0, 2, 1, 3))
        return ops.reshape(matrix, self.padded_shape)

    def averaged(
        self, a_sum: Tensor, positions: Tensor, g_sum: Tensor, keep: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return A, G, T of both, (2,), and [T, tr A (x) G, whether all is finite].

        A and G are averages with a batch's sums. ``positions`` (2,) counts those in ``a_sum`` and
        ``g_sum``; 0 in ``g_sum`` says that the loss is a mean over terms: G is the sum, T is 1.
        ``keep`` is the weight of the old average, 0 for the first, or None if it is always 0: THOR
        then compiles 5 % sooner.
        """
        a_count, g_count = ops.unstack(positions)
        called, by_terms = ops.cast(a_count > 0, ms.float32), g_count == 0
        g_count = ops.select(by_terms, called, g_count)
        count = ops.select(by_terms, called, a_count)
        a_new, g_new = a_sum / ops.maximum(a_count, 1e-30), g_sum / ops.maximum(g_count, 1e-30)
        if keep is not None:
            a_new = self.a_factor * keep + a_new * (1.0 - keep)
            g_new = self.g_factor * keep + g_new * (1.0 - keep)
        # By group: a group's A is paired with the G of the same group.
        a_trace, g_trace = self._traces(a_new), self._traces(g_new)
        # No entry off the diagonal exceeds the largest on it: all are finite if the sums are.
        finite = ops.isfinite(ops.reduce_sum(a_trace) + ops.reduce_sum(g_trace))
        together = ops.reduce_sum(a_trace * g_trace)
        numbers = ops.stack((count, together, ops.cast(finite, ms.float32)))
        return a_new, g_new, ops.stack((count, g_count)), numbers

    def observe(self, a_new: Tensor, g_new: Tensor, positions: Tensor, finite: Tensor) -> tuple:
        """Store the new averages if ``finite``, a scalar, says that those of all layers are."""
        return (
            ops.assign(self.a_factor, ops.select(finite, a_new, self.a_factor)),
            ops.assign(self.g_factor, ops.select(finite, g_new, self.g_factor)),
            ops.assign(self.positions, positions),
        )

    def _traces(self, factor: Tensor) -> Tensor:
        """Return the trace of each group's blocks, (groups,)."""
        identity = ops.eye(factor.shape[-1], factor.shape[-1], ms.float32)
        return ops.reduce_sum((factor * identity).reshape(self.groups, -1), (1,))

    def trace(self, positions: float, together: float, damping: float) -> float:
        """Return tr(F + damping I) of this layer, from what ``averaged`` returned."""
        dimension = self.groups * self.inputs * self.outputs
        return float(positions) * float(together) + damping * dimension

    def invert(self, damping: Tensor, balanced: bool) -> Tensor:
        """Recompute the inverses; return the sum of their residuals, (). ``balanced``: by pi."""
        a_count, g_count = ops.unstack(self.positions)
        a_damping = ops.sqrt(damping / a_count)
        g_damping = ops.sqrt(damping / g_count)
        if balanced:
            a_mean = ops.reduce_sum(self._traces(self.a_factor)) / (self.groups * self.inputs)
            g_mean = ops.reduce_sum(self._traces(self.g_factor)) / (self.groups * self.outputs)
            # Either mean may be 0 (an input that is always 0), but neither damping may vanish.
            ratio = ops.sqrt(ops.maximum(a_mean, 1e-30) / ops.maximum(g_mean, 1e-30))
            pi = ops.minimum(ops.maximum(ratio, 1e-3), 1e3)
            a_damping, g_damping = a_damping * pi, g_damping / pi
        a_inverse, a_residual = _damped_inverse(self.a_factor, a_damping)
        g_inverse, g_residual = _damped_inverse(self.g_factor, g_damping)
        # Not their maximum: on CPU, ops.maximum(NaN, 1) is 1.
        residual = a_residual + g_residual
        sound = residual <= RESIDUAL
        g_inverse = g_inverse / a_count
        done = (
            ops.assign(self.a_inverse, ops.select(sound, a_inverse, self.a_inverse)),
            ops.assign(self.g_inverse, ops.select(sound, g_inverse, self.g_inverse)),
        )
        return ops.depend(residual, done)


def _damped_inverse(factor: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
    """Return ((factor + damping I)^-1, its residual), by blocks."""
    identity = ops.eye(factor.shape[-1], factor.shape[-1], ms.float32)
    damped = factor + damping * identity
    # ops.MatrixInverse refuses matrices of one row: a layer with one output, or one per group.
    inverse = 1.0 / damped if factor.shape[-1] == 1 else ops.MatrixInverse()(damped)
    error = (ops.BatchMatMul()(damped, inverse) - identity).reshape(-1)
    # The sum propagates a NaN, which is not <= RESIDUAL; a maximum may ignore it.
    return inverse, ops.reduce_max(ops.abs(error)) + 0.0 * ops.reduce_sum(error)


class Inverses:
    """The inversions of layers: all at once, or one by one, in compiled graphs.

    On several ranks each layer is inverted by one of them; the others receive its inverses.
    """

    def __init__(self, layers: Sequence[LayerCurvature], damping_split: str) -> None:
        rank, ranks = rank_and_size()
        self.layers, self.damping_split = list(layers), damping_split
        self.owners = share_out([layer.cost for layer in layers], ranks)
        self.own = [number for number, owner in enumerate(self.owners) if owner == rank]
        self.exchange = _Exchange(self.layers, self.own) if ranks > 1 else None
        self.inversions: dict[tuple[int, ...], Inversion] = {}

    def make(self, due: Sequence[int], damping: float) -> np.ndarray:
        """Compute the inverses of the layers numbered ``due``; return each layer's retries.

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
        return retries.astype(np.int32)

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

    A layer's are stored only if its sum is at most ``RESIDUAL``: ops.MatrixInverse silently returns
    zeros for a singular or NaN matrix; Cholesky raises, but leaves MindSpore's runtime unusable.
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
        pairs = [(layer.a_inverse, layer.g_inverse) for layer in layers]
        self.inverses = ParameterTuple(inverse for pair in pairs for inverse in pair)
        self.mine = tuple(1.0 if i // 2 in own else 0.0 for i in range(len(self.inverses)))
        self.all_reduce, self.map = ops.AllReduce(), ops.HyperMap()

    def construct(self, retries: Tensor) -> Tensor:
        values: tuple = (retries,)
        for i in range(len(self.inverses)):
            # x + 0 + 0 is x: the ranks' copies are bitwise equal.
            values += (self.inverses[i] * self.mine[i],)
        sums = summed_in_order(self.all_reduce, values)
        return ops.depend(sums[0], self.map(ops.assign, self.inverses, sums[1:]))
