"""Curvature of each layer: factors, their damped inverses, and the preconditioned gradient.

    A = A_sum / T,   G = G_sum / T,   F ~ T A (x) G
    A_inverse = (A + pi sqrt(damping / T) I)^-1
    G_inverse = (1 / T) (G + (1 / pi) sqrt(damping / T) I)^-1
    U = G_inverse grad A_inverse

A_sum, G_sum and T come from the layer's tap. (A + ..) (x) (G + ..) T equals F + damping I plus two
mixed terms. pi is 1 ("equal", as in MindSpore's THOR) or the square root of the ratio of A's mean
eigenvalue to G's ("pi": Martens and Grosse, "Optimizing Neural Networks with Kronecker-factored
Approximate Curvature", 2015, section 6.3).
"""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

from labkit.algorithms.thor.layers import Geometry

# Inverses are accepted up to this sum of A's residual, max |(A + damping I) A_inverse - I|, and
# G's. Measured on matrices of 16 to 512 rows, by condition number: 1e5 at most 1.1e-3; 1e6 6e-3 to
# 2e-2, the inverse being accurate to 5e-3 of its largest entry; from 1e7 on usually 1, because
# ops.MatrixInverse returns zeros.
RESIDUAL = 1e-2


class LayerCurvature(nn.Cell):
    """The state of one layer, and the product of its gradient with the inverses.

    Called with the gradients of the weight and the bias, it returns U in their shapes. If the layer
    is not homogeneous, the second argument is returned unchanged.

    Args:
        name: name of the layer in the network.
        geometry: sizes of the factors, and their blocks.

    Attributes:
        a_factor: running average of A, (groups * blocks, b, b), float32. The layer's tap is
            differentiated with respect to it, ``g_factor`` and ``positions``.
        g_factor: running average of G, (groups * blocks', b', b'), float32.
        positions: T of A and of G, (2,), float32.
        a_inverse: shaped like A; identities before the first refresh.
        g_inverse: shaped like G; likewise.
    """

    def __init__(self, name: str, geometry: Geometry) -> None:
        super().__init__(auto_prefix=False)
        self.layer_name, self.geometry = name, geometry
        self.inputs, self.outputs = geometry.inputs, geometry.outputs
        self.groups, self.homogeneous = geometry.groups, geometry.homogeneous
        self.a_blocks, self.g_blocks = geometry.a_blocks, geometry.g_blocks
        a_shape = (self.groups * self.a_blocks.count, self.a_blocks.size, self.a_blocks.size)
        g_shape = (self.groups * self.g_blocks.count, self.g_blocks.size, self.g_blocks.size)
        # The tap is differentiated with respect to these. Without requires_grad, MindSpore would
        # return zeros for them in PyNative mode.
        self.a_factor = self._parameter("a_factor", a_shape, requires_grad=True)
        self.g_factor = self._parameter("g_factor", g_shape, requires_grad=True)
        self.positions = self._parameter("positions", (2,), requires_grad=True)
        self.a_inverse = self._parameter("a_inverse", a_shape, identity=True)
        self.g_inverse = self._parameter("g_inverse", g_shape, identity=True)
        self.product = ops.BatchMatMul()
        self._set_shapes()

    def _parameter(
        self, name: str, shape: tuple, *, identity: bool = False, requires_grad: bool = False
    ) -> Parameter:
        value = initializer("zeros", shape, ms.float32)
        if identity:
            value = Tensor(np.broadcast_to(np.eye(shape[-1], dtype=np.float32), shape).copy())
        name = f"thor.{self.layer_name}.{name}"
        return Parameter(value, name=name, requires_grad=requires_grad)

    def _set_shapes(self) -> None:
        """Compute the shapes that the graphs reshape to once, not once in each graph."""
        groups, inputs, outputs = self.groups, self.inputs, self.outputs
        rows, columns = self.g_blocks.count, self.a_blocks.count
        height, width = rows * self.g_blocks.size, columns * self.a_blocks.size
        weight_width = inputs - self.homogeneous
        self.weight_shape = (groups, outputs, weight_width)
        self.bias_shape, self.bias_start = (groups, outputs, 1), (0, 0, weight_width)
        # Shapes of the zeros that fill the last block of columns and of rows; () if it is full.
        self.right = (groups, outputs, width - inputs) if width > inputs else ()
        self.below = (groups, height - outputs, width) if height > outputs else ()
        self.padded_shape = (groups, height, width)
        # Shapes for cutting into blocks of rows, and of columns; () for one block. A product needs
        # the axis of the blocks first.
        self.by_rows = (groups * rows, self.g_blocks.size, width) if rows > 1 else ()
        self.by_columns = (groups, height, columns, self.a_blocks.size) if columns > 1 else ()
        self.column_blocks = (groups * columns, height, self.a_blocks.size)
        self.columns_first = (groups, columns, height, self.a_blocks.size)

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
        self, a_sum: Tensor, positions: Tensor, g_sum: Tensor, keep: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the averages updated with a batch's sums, without storing them.

        Args:
            a_sum: in the shape of A.
            positions: number of positions in ``a_sum`` and in ``g_sum``, (2,).
            g_sum: in the shape of G.
            keep: weight of the old average, 0 for the first; a scalar.

        Returns:
            A, G, and [T, tr A (x) G, whether they are finite], (3,).
        """
        a_count, g_count = ops.unstack(ops.maximum(positions, 1e-30))
        a_new = self.a_factor * keep + (a_sum / a_count) * (1.0 - keep)
        g_new = self.g_factor * keep + (g_sum / g_count) * (1.0 - keep)
        # By group: a group's A is paired with the G of the same group.
        a_trace, g_trace = self._traces(a_new), self._traces(g_new)
        # No entry off the diagonal exceeds the largest on it, so that all entries are finite if
        # these two sums are.
        finite = ops.isfinite(ops.reduce_sum(a_trace) + ops.reduce_sum(g_trace))
        together = ops.reduce_sum(a_trace * g_trace)
        count = ops.unstack(positions)[0]
        return a_new, g_new, ops.stack((count, together, ops.cast(finite, ms.float32)))

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
        """Recompute the inverses, in a graph; return the sum of their residuals, a scalar.

        Args:
            damping: damping of F, a scalar.
            balanced: whether A and G share the damping by pi instead of equally.
        """
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

    @property
    def cost(self) -> float:
        """Number of multiplications in its inversions, up to a constant factor."""
        return float(
            self.a_factor.size * self.a_blocks.size + self.g_factor.size * self.g_blocks.size
        )

    def memory(self) -> dict:
        """Return the layer's name, the shapes of A and G, and the bytes of factors and inverses."""
        size = 4 * (self.a_factor.size + self.g_factor.size)
        shapes = {"a_factor": self.a_factor.shape, "g_factor": self.g_factor.shape}
        return {"layer": self.layer_name, **shapes, "factor_bytes": size, "inverse_bytes": size}


def _damped_inverse(factor: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
    """Return ((factor + damping I)^-1, its residual), by blocks."""
    identity = ops.eye(factor.shape[-1], factor.shape[-1], ms.float32)
    damped = factor + damping * identity
    # ops.MatrixInverse refuses matrices of one row: a layer with one output, or one per group.
    inverse = 1.0 / damped if factor.shape[-1] == 1 else ops.MatrixInverse()(damped)
    error = ops.BatchMatMul()(damped, inverse) - identity
    error = error.reshape(-1)
    # The sum propagates a NaN, which is not <= RESIDUAL; a maximum may ignore it.
    return inverse, ops.reduce_max(ops.abs(error)) + 0.0 * ops.reduce_sum(error)
