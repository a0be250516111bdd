"""One layer's curvature: its factors, their damped inverses, and what they make of a gradient.

    A = A_sum / T,   G = G_sum / T,   F ~ T A (x) G
    A_inverse = (A + pi sqrt(damping / T) I)^-1
    G_inverse = (1 / T) (G + (1 / pi) sqrt(damping / T) I)^-1
    U = G_inverse grad A_inverse

A_sum, G_sum and T come from the layer's tap. (A + ..) (x) (G + ..) T is F + damping I and two mixed
terms, with pi = 1 ("equal", as in MindSpore's THOR) or the ratio of the factors' mean eigenvalues'
square roots ("pi": Martens and Grosse, "Optimizing Neural Networks with Kronecker-factored
Approximate Curvature", 2015, section 6.3).
"""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

DAMPING_SPLITS = ("equal", "pi")
# Largest entry of (A + damping I) A_inverse - I, or of G's, that counts as an inverse. Measured on
# matrices of 16 to 512 rows, by condition: 1e5 at most 1.1e-3; 1e6 6e-3 to 2e-2, the inverse then
# right to 5e-3 of its largest entry; from 1e7 on 1 as a rule, where ops.MatrixInverse returns
# zeros.
RESIDUAL = 1e-2


class LayerCurvature(nn.Cell):
    """The state of one layer, and its gradient's way through the inverses.

    name      the layer's, in the network
    geometry  of ``labkit.algorithms.thor.geometry``
    bias      whether the layer's bias is in the factors: always, where it is homogeneous

    a_factor, g_factor    A and G, (groups blocks, b, b) float32: running averages
    a_inverse, g_inverse  of the same shapes; identities before the first refresh
    a_sum, g_sum, t       placeholders that the tap is differentiated by
    positions             T of A and of G, (2,)

    Called with (weight's gradient, bias' gradient or 0) it returns U in their shapes.
    """

    def __init__(self, name, geometry):
        super().__init__(auto_prefix=False)
        self.layer_name, self.geometry = name, geometry
        self.inputs, self.outputs = geometry.inputs, geometry.outputs
        self.groups, self.homogeneous = geometry.groups, geometry.homogeneous
        self.a_blocks, self.g_blocks = geometry.a_blocks, geometry.g_blocks
        a_shape = (self.groups * self.a_blocks.count, self.a_blocks.size, self.a_blocks.size)
        g_shape = (self.groups * self.g_blocks.count, self.g_blocks.size, self.g_blocks.size)
        # What the tap is differentiated by requires gradients: in PyNative mode MindSpore would
        # return zeros for it.
        self.a_factor = self._parameter("a_factor", a_shape, requires_grad=True)
        self.g_factor = self._parameter("g_factor", g_shape, requires_grad=True)
        self.positions = self._parameter("positions", (2,), requires_grad=True)
        self.a_inverse = self._parameter("a_inverse", a_shape, identity=True)
        self.g_inverse = self._parameter("g_inverse", g_shape, identity=True)

    def _parameter(self, name, shape, *, identity=False, requires_grad=False):
        value = initializer("zeros", shape, ms.float32)
        if identity:
            value = Tensor(np.broadcast_to(np.eye(shape[-1], dtype=np.float32), shape).copy())
        name = f"thor.{self.layer_name}.{name}"
        return Parameter(value, name=name, requires_grad=requires_grad)

    def construct(self, weight, bias):
        direction = self._between(self.g_inverse, self._matrix(weight, bias), self.a_inverse)
        own = self.inputs - self.homogeneous
        if self.homogeneous:
            last = direction[:, : self.outputs, own]
            bias = ops.cast(last.reshape(bias.shape), bias.dtype)
        if own < direction.shape[2] or self.outputs < direction.shape[1]:
            direction = direction[:, : self.outputs, :own]
        return ops.cast(direction.reshape(weight.shape), weight.dtype), bias

    def curvature(self, weight, bias):
        """Return T <S, G S A>, (), for a move S of the weight and the bias."""
        matrix = self._matrix(weight, bias)
        product = matrix * self._between(self.g_factor, matrix, self.a_factor)
        return self.positions[0] * ops.reduce_sum(product.reshape(-1))

    def _matrix(self, weight, bias):
        """Return (groups, outputs, inputs) in float32, the bias in a column, padded to blocks."""
        # Concat, not Pad: 0.17 instead of 1.2 ms for (120, 401) to (120, 404) on CPU.
        parts = (ops.cast(weight, ms.float32).reshape(self.groups, self.outputs, -1),)
        if self.homogeneous:
            column = ops.cast(bias, ms.float32).reshape(self.groups, self.outputs, 1)
            parts += (column,)
        width = self.a_blocks.count * self.a_blocks.size
        if width > self.inputs:
            shape = (self.groups, self.outputs, width - self.inputs)
            parts += (ops.zeros(shape, ms.float32),)
        matrix = ops.concat(parts, 2) if len(parts) > 1 else parts[0]
        height = self.g_blocks.count * self.g_blocks.size
        if height > self.outputs:
            rows = ops.zeros((self.groups, height - self.outputs, width), ms.float32)
            matrix = ops.concat((matrix, rows), 1)
        return matrix

    def _between(self, left, matrix, right):
        """Return left matrix right for blocks like G's and A's and a padded matrix."""
        rows, row = self.g_blocks.count, self.g_blocks.size
        columns, column = self.a_blocks.count, self.a_blocks.size
        matrix = matrix.reshape(self.groups * rows, row, columns * column)
        matrix = ops.BatchMatMul()(left, matrix).reshape(self.groups, rows * row, -1)
        if columns == 1:
            return ops.BatchMatMul()(matrix, right)
        matrix = matrix.reshape(self.groups, rows * row, columns, column)
        matrix = ops.transpose(matrix, (0, 2, 1, 3))
        matrix = matrix.reshape(self.groups * columns, rows * row, column)
        matrix = ops.BatchMatMul()(matrix, right)
        matrix = matrix.reshape(self.groups, columns, rows * row, column)
        matrix = ops.transpose(matrix, (0, 2, 1, 3))
        return matrix.reshape(self.groups, rows * row, columns * column)

    def observe(self, a_sum, positions, g_sum, keep):
        """Take a batch's sums into the running averages; return [T, tr A (x) G, finite], (3,).

        keep  weight of the old average, 0 for the first
        A batch that makes the factors non-finite leaves them as they were.
        """
        counted = ops.maximum(positions, 1e-30)
        a_new = self.a_factor * keep + (a_sum / counted[0]) * (1.0 - keep)
        g_new = self.g_factor * keep + (g_sum / counted[1]) * (1.0 - keep)
        # By group: a group's blocks of A meet those of G of the same group.
        a_trace, g_trace = self._traces(a_new), self._traces(g_new)
        # An entry beside the diagonal is never larger than the diagonal's largest, so that these
        # two sums are finite if everything is.
        finite = ops.isfinite(ops.reduce_sum(a_trace) + ops.reduce_sum(g_trace))
        done = (
            ops.assign(self.a_factor, ops.select(finite, a_new, self.a_factor)),
            ops.assign(self.g_factor, ops.select(finite, g_new, self.g_factor)),
            ops.assign(self.positions, positions),
        )
        together = ops.reduce_sum(a_trace * g_trace)
        seen = ops.stack((positions[0], together, ops.cast(finite, ms.float32)))
        return ops.depend(seen, done)

    def _traces(self, factor):
        """Return the trace of each group's blocks, (groups,)."""
        identity = ops.eye(factor.shape[-1], factor.shape[-1], ms.float32)
        return ops.reduce_sum((factor * identity).reshape(self.groups, -1), 1)

    def trace(self, positions, together, damping) -> float:
        """Return tr(F + damping I) of this layer, from what ``observe`` returned."""
        dimension = self.groups * self.inputs * self.outputs
        return float(positions) * float(together) + damping * dimension

    def invert(self, damping, balanced):
        """Make the inverses anew, in a graph; return the sum of their residuals, ()."""
        a_damping = ops.sqrt(damping / self.positions[0])
        g_damping = ops.sqrt(damping / self.positions[1])
        if balanced:
            a_mean = ops.reduce_sum(self._traces(self.a_factor)) / (self.groups * self.inputs)
            g_mean = ops.reduce_sum(self._traces(self.g_factor)) / (self.groups * self.outputs)
            # Either may be 0 (an input that is always 0), and no damping may vanish.
            ratio = ops.sqrt(ops.maximum(a_mean, 1e-30) / ops.maximum(g_mean, 1e-30))
            pi = ops.minimum(ops.maximum(ratio, 1e-3), 1e3)
            a_damping, g_damping = a_damping * pi, g_damping / pi
        a_inverse, a_residual = _damped_inverse(self.a_factor, a_damping)
        g_inverse, g_residual = _damped_inverse(self.g_factor, g_damping)
        # Not their maximum: on CPU, ops.maximum(NaN, 1) is 1.
        residual = a_residual + g_residual
        sound = residual <= RESIDUAL
        g_inverse = g_inverse / self.positions[0]
        done = (
            ops.assign(self.a_inverse, ops.select(sound, a_inverse, self.a_inverse)),
            ops.assign(self.g_inverse, ops.select(sound, g_inverse, self.g_inverse)),
        )
        return ops.depend(residual, done)

    @property
    def cost(self) -> float:
        """Multiplications of its inversions, up to a factor."""
        return float(
            self.a_factor.size * self.a_blocks.size + self.g_factor.size * self.g_blocks.size
        )

    def memory(self) -> dict:
        """Return its name, the shapes of A and G, and the bytes of factors and inverses."""
        size = 4 * (self.a_factor.size + self.g_factor.size)
        shapes = {"a_factor": self.a_factor.shape, "g_factor": self.g_factor.shape}
        return {"layer": self.layer_name, **shapes, "factor_bytes": size, "inverse_bytes": size}


class Inversion(nn.Cell):
    """Make layers' inverses anew: damping () -> each layer's residual, A's and G's, (layers,).

    The residual is max |(A + damping I) A_inverse - I|; the inverses are stored only where it is at
    most ``RESIDUAL``. ops.MatrixInverse returns zeros for a singular or NaN matrix and says
    nothing; Cholesky, which raises, leaves MindSpore's runtime unusable after it.
    """

    def __init__(self, layers, damping_split):
        super().__init__(auto_prefix=False)
        self.layers = nn.CellList(layers, auto_prefix=False)
        self.balanced = damping_split == "pi"

    def construct(self, damping):
        residuals = ()
        for layer in self.layers:
            residuals += (layer.invert(damping, self.balanced),)
        return ops.stack(residuals)


def _damped_inverse(factor, damping):
    """Return ((factor + damping I)^-1, its residual), by blocks."""
    identity = ops.eye(factor.shape[-1], factor.shape[-1], ms.float32)
    damped = factor + damping * identity
    # ops.MatrixInverse refuses matrices of one row: a layer with one output, or one a group.
    inverse = 1.0 / damped if factor.shape[-1] == 1 else ops.MatrixInverse()(damped)
    error = ops.BatchMatMul()(damped, inverse) - identity
    error = error.reshape(-1)
    # The sum carries a NaN, which is not <= RESIDUAL; a maximum may pass over it.
    return inverse, ops.reduce_max(ops.abs(error)) + 0.0 * ops.reduce_sum(error)
