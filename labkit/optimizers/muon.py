r"""Muon: momentum made orthogonal, for the matrices between a network's layers.

    m <- mu m + g,   X = g + mu m                               (Nesterov)
    X <- X / |X|,   5 times   X <- a X + (b X X^T + c (X X^T)^2) X
    w <- w - lr (0.2 sqrt(max(rows, columns)) X + decay w)

The five steps (Newton-Schulz) move all singular values of X to between 0.7 and 1.2.

Source: K. Jordan and others, "Muon: An optimizer for hidden layers in neural networks", 2024; the
factor, which gives X the root mean square of AdamW's updates, and the decay: J. Liu and others,
"Muon is Scalable for LLM Training", 2025 (arXiv:2502.16982), equation 4.
"""

from collections.abc import Mapping
from typing import Any

import mindspore as ms
from mindspore import ParameterTuple, Tensor, nn, ops

from labkit.base.arguments import integer, number, wrong
from labkit.optimizers.adamw import check_numbers
from labkit.steps.state import cast_like, zeros_like

_A, _B, _C, _STEPS = 3.4445, -4.7750, 2.0315, 5


class Muon(nn.Optimizer):
    """Muon for matrices (rows, columns); ``Both`` joins it with AdamW for everything else.

    Args:
        params, learning_rate, weight_decay: as of ``AdamW``, whose rates and decays suit it.
        momentum: mu, 0 <= mu < 1.
        parts: name of a Parameter -> how many matrices it holds, one below the other, such as 3 for
            a Dense layer of queries, keys and values: each is made orthogonal by itself.

    Embeddings and the last layer are matrices, too: that they go to AdamW is for you to say.

    Raises:
        InputError: if a Parameter is no matrix, ``parts`` does not divide its rows or has another
            name, or a number is out of its bounds.
    """

    def __init__(
        self,
        params: Any,
        learning_rate: Any = 0.02,
        momentum: float = 0.95,
        weight_decay: Any = 0.1,
        parts: Mapping[str, int] | None = None,
    ):
        check_numbers(learning_rate, weight_decay)
        super().__init__(learning_rate, params, weight_decay)
        self.mu, given = number("momentum", momentum, at_least=0, below=1), dict(parts or {})
        if wide := [p for p in self.parameters if p.ndim != 2]:
            raise wrong(wide[0].name, wide[0].shape, "a matrix: give the rest to AdamW, see Both")
        self.parts = tuple(integer("parts", given.pop(p.name, 1)) for p in self.parameters)
        split = [p for p, n in zip(self.parameters, self.parts, strict=True) if p.shape[0] % n]
        if given or split:
            expected = "names of this optimizer's Parameters, and divisors of their rows"
            raise wrong("parts", parts, expected)
        self.m = ParameterTuple(zeros_like(p, "muon.m", ms.float32) for p in self.parameters)

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
    """Return the ``parts`` blocks of rows of a matrix, float32, each near its polar factor."""
    rows, columns = matrix.shape[0] // parts, matrix.shape[1]
    x = ops.reshape(matrix, (parts, rows, columns))
    x = x / (ops.sqrt(ops.square(x).sum((1, 2), keepdims=True)) + 1e-7)
    if rows > columns:
        x = ops.transpose(x, (0, 2, 1))
    for _ in range(_STEPS):
        a = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        x = _A * x + ops.matmul(_B * a + _C * ops.matmul(a, a), x)
    if rows > columns:
        x = ops.transpose(x, (0, 2, 1))
    return 0.2 * max(rows, columns) ** 0.5 * ops.reshape(x, matrix.shape)
