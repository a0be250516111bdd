r"""Muon: momentum made orthogonal, for the matrices between a network's layers.

    m <- mu m + g,   X = g + mu m,   X <- X / |X|
    5 times   X <- a X + (b X X^T + c (X X^T)^2) X             (singular values to 0.7 .. 1.2)
    w <- w - lr (0.2 sqrt(max(rows, columns)) X + decay w)

Source: K. Jordan and others, "Muon: An optimizer for hidden layers in neural networks", 2024. The
decay, and the factor that makes X as large as AdamW's updates, so that its rates and decays suit:
J. Liu and others, "Muon is Scalable for LLM Training", 2025 (arXiv:2502.16982), equation 4.
"""

from collections.abc import Mapping
from typing import Any

import mindspore as ms
from mindspore import ParameterTuple, Tensor, nn, ops

from labkit.base.arguments import integer, number, wrong
from labkit.steps.state import cast_like, zeros_like

_BY_TRANSPOSED = ops.BatchMatMul(transpose_b=True)


class Muon(nn.Optimizer):
    """Muon for matrices (rows, columns); ``Both`` joins it with AdamW for everything else.

    Args:
        params, learning_rate, weight_decay: as of ``AdamW``. Embeddings and the last layer are
            matrices, too, but better given to AdamW.
        momentum: mu, 0 <= mu < 1.
        parts: name of a Parameter -> how many matrices it holds, one below the other, such as 3 for
            a Dense layer of queries, keys and values; each is made orthogonal by itself.

    Raises:
        InputError: if a Parameter is no matrix, ``parts`` does not divide its rows or has another
            name, or momentum is out of its bounds.
    """

    def __init__(
        self,
        params: Any,
        learning_rate: Any = 0.02,
        momentum: float = 0.95,
        weight_decay: Any = 0.1,
        parts: Mapping[str, int] | None = None,
    ):
        super().__init__(learning_rate, params, weight_decay)
        self.mu, given = number("momentum", momentum, at_least=0, below=1), dict(parts or {})
        for weight in self.parameters:
            count = integer(f"parts of {weight.name}", given.get(weight.name, 1))
            if weight.ndim != 2 or weight.shape[0] % count:
                expected = f"{count} matrices one below the other; the rest is for AdamW, see Both"
                raise wrong(weight.name, weight.shape, expected)
        self.parts = tuple(given.pop(weight.name, 1) for weight in self.parameters)
        if given:
            raise wrong("parts", sorted(given)[0], "names of this optimizer's Parameters")
        self.m = ParameterTuple(zeros_like(w, "muon.m", ms.float32) for w in self.parameters)

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple:
        """Make an update; the gradients have the shapes of the Parameters."""
        rates, decays = self.get_lr(), self.get_weight_decay()
        done: tuple = ()
        for i in range(len(self.m)):
            rate = rates[i] if self.is_group_lr else rates
            decay = decays[i] if self.is_group else decays
            weight, gradient = self.parameters[i], ops.cast(gradients[i], ms.float32)
            m = self.mu * self.m[i] + gradient
            move = orthogonal(gradient + self.mu * m, self.parts[i])
            moved = (1 - rate * decay) * weight - rate * move
            done += (ops.assign(self.m[i], m), ops.assign(weight, cast_like(moved, weight)))
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        return done


def orthogonal(matrix: Tensor, parts: int) -> Tensor:
    """Return 0.2 sqrt(max side) X of each of the ``parts`` of a matrix, float32."""
    rows, columns = matrix.shape[0] // parts, matrix.shape[1]
    x = ops.reshape(matrix, (parts, rows, columns))
    x = x / (ops.sqrt(ops.square(x).sum((1, 2), keepdims=True)) + 1e-7)
    x = ops.transpose(x, (0, 2, 1)) if rows > columns else x
    for _ in range(5):
        square = _BY_TRANSPOSED(x, x)
        x = 3.4445 * x + ops.bmm(-4.7750 * square + 2.0315 * ops.bmm(square, square), x)
    x = ops.transpose(x, (0, 2, 1)) if rows > columns else x
    return 0.2 * max(rows, columns) ** 0.5 * ops.reshape(x, matrix.shape)
