"""Levenberg-Marquardt damping: was the update as good as the quadratic model predicted?

    M(s) = <grad, s> + 1/2 (sum over layers T <S, G S A> + damping |s|^2),    rho = dL / M(s)

s is the actual change of the weights, momentum and weight decay included; grad is the gradient of
the loss before ``clip_norm`` shortens it (s is the change after clipping); A and G are the layers'
factors (blocks, without damping); dL is the change of the loss on the update's own batch.
"""

from typing import TYPE_CHECKING

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

from labkit.algorithms.thor.rules import LevenbergMarquardt
from labkit.steps.statistics import unchanged

if TYPE_CHECKING:
    from labkit.algorithms.thor.update import ThorUpdate
    from labkit.steps.step import Step


class Adaptation:
    """Adjusts the damping after each refreshing update.

    Args:
        rule: how the damping follows rho.
        update: the stage that provides the model's optimizer, layers and pending gradients.
        loss_net: network and loss of the step.
    """

    def __init__(self, rule: LevenbergMarquardt, update: "ThorUpdate", loss_net: nn.Cell) -> None:
        self.rule = rule
        self.parameters = update.optimizer.parameters
        self.model = _Model(update)
        self.loss_net = loss_net
        self.before: list[np.ndarray] = []
        self.rho = float("nan")

    def remember(self) -> None:
        """Save the weights before the update."""
        self.before = [parameter.asnumpy().copy() for parameter in self.parameters]

    def adjusted(self, step: "Step", batch: tuple, damping: float) -> float:
        """Set ``rho`` and return the damping that follows from it, for the next refresh."""
        moves = [
            Tensor(parameter.asnumpy().astype(np.float32) - before)
            for parameter, before in zip(self.parameters, self.before, strict=True)
        ]
        scalars = [Tensor(value, ms.float32) for value in (damping, _times_clipped(step))]
        predicted = float(self.model(*scalars, *moves).asnumpy())
        change = self._loss(step, batch) - float(step.record.last_loss.asnumpy())
        self.rho = change / predicted if predicted else float("nan")
        return self.rule.adjust(damping, self.rho)

    def _loss(self, step: "Step", batch: tuple) -> float:
        """Return the mean loss of the batch over all ranks; the forward pass leaves no trace."""
        with unchanged(self.loss_net):
            values = step.gradient.objective.construct(*batch)
            loss, weight = (float(value.asnumpy()) for value in values)
        if step.gradient.all_reduce is None:  # one rank
            return loss
        # Weighted like step.last_loss: by what each rank's loss is a mean over, not by rows.
        sums = step.gradient.all_reduce(Tensor([loss * weight, weight], ms.float32)).asnumpy()
        return float(sums[0] / sums[1])


def _times_clipped(step: "Step") -> float:
    """Return the norm of the last gradient before clipping over that after it, >= 1."""
    if step.gradient.clip_norm is None:
        return 1.0
    return max(float(step.record.last_norm.asnumpy()) / step.gradient.clip_norm, 1.0)


class _Model(nn.Cell):
    """(damping, |grad| over the norm of the pending gradients, s of each parameter) -> M(s)."""

    def __init__(self, update: "ThorUpdate") -> None:
        super().__init__(auto_prefix=False)
        self.gradients = ParameterTuple(update.pending_gradients)
        self.layers = update.layers
        self.sources = update.directions.sources

    def construct(self, damping: Tensor, longer: Tensor, *moves: Tensor) -> Tensor:
        linear, squares = ops.cast(0.0, ms.float32), ops.cast(0.0, ms.float32)
        for i in range(len(moves)):
            gradient = ops.cast(self.gradients[i], ms.float32)
            linear = linear + ops.reduce_sum((gradient * moves[i]).reshape(-1))
            squares = squares + ops.reduce_sum(ops.square(moves[i]).reshape(-1))
        curvature = ops.cast(0.0, ms.float32)
        for i in range(len(self.sources)):
            weight, bias = self.sources[i]
            curvature = curvature + self.layers[i].curvature(moves[weight], moves[bias])
        return longer * linear + 0.5 * (curvature + damping * squares)
