"""The classes of MindSpore's gradient accumulation tutorial (r1.0), on the cells of ``labkit``.

The default is correct: gradients are averaged over samples and an epoch's tail is flushed. For the
tutorial's exact behaviour, k times the gradient and the tail carried into the next epoch, give
``reduction="sum", tail="carry"``.
"""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.dataset import Dataset

from labkit.base.arguments import choice, integer, local_path, wrong
from labkit.base.files import make_folder
from labkit.errors import warn
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import GradientOptions, GradientStage
from labkit.steps.losses import LossNet, as_loss_net
from labkit.steps.options import REDUCTION, Reduction, Tail
from labkit.steps.state import set_state

_sum_op = ops.MultitypeFuncGraph("grad_sum_op")
_clear_op = ops.MultitypeFuncGraph("clear_op")


@_sum_op.register("Tensor", "Tensor")
def _cumulative_grad(grad_sum: Parameter, grad: Tensor) -> Tensor:
    return ops.assign_add(grad_sum, grad)


@_clear_op.register("Tensor", "Tensor")
def _clear_grad_sum(grad_sum: Parameter, zero: Tensor) -> bool:
    return ops.depend(True, ops.assign(grad_sum, zero))


class _OnSum(nn.Cell):
    """A cell on ``grad_sum`` and the sum of weights beside it, which all cells on it share."""

    def __init__(self, grad_sum: ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        first = grad_sum[0]
        if not hasattr(first, "labkit_weight_sum"):
            name = f"{first.name}.weight_sum"
            first.labkit_weight_sum = Parameter(Tensor(0.0, ms.float32), name, requires_grad=False)
        self.grad_sum, self.weight_sum = grad_sum, first.labkit_weight_sum
        self.hyper_map = ops.HyperMap()

    def agree_on(self, reduction: str) -> None:
        """Refuse another reduction than that of the other cell; the first one's is kept."""
        first = self.grad_sum[0]
        said = getattr(first, "labkit_reduction", choice("reduction", reduction, REDUCTION))
        if reduction != said:
            raise wrong("reduction", reduction, f"{said!r}, the other cell's on this grad_sum")
        first.labkit_reduction = said


class TrainForwardBackward(_OnSum):
    """Add the gradients of a micro-batch (B, ...) to ``grad_sum`` and return its loss ().

    Args:
        network: batch -> (mean loss, weight); ``nn.WithLossCell`` counts as such a loss net.
        grad_sum: made by ``optimizer.parameters.clone(prefix="grad_sum", init="zeros")``.
        sens: loss scale; divided out once with ``mean``, left in with ``sum`` as in the tutorial.
        reduction: ``mean``, or ``sum`` as in the tutorial.
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Optimizer,
        grad_sum: ParameterTuple,
        sens: float = 1.0,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(grad_sum)
        self.network, self.optimizer = network, optimizer
        self.network.set_grad()
        self.network.add_flags(defer_inline=True)
        own = GradientOptions(reduction=reduction, loss_scale=sens, nonfinite="propagate")
        self.gradient = GradientStage(as_loss_net(network), optimizer.parameters, own)
        self.left_in = sens if reduction == "sum" else 1.0
        self.agree_on(reduction)

    def construct(self, *inputs: Tensor) -> Tensor:
        loss, weight, gradients = self.gradient.contribution(False, *inputs)[:3]
        if self.left_in != 1.0:
            gradients = self.hyper_map(ops.partial(ops.mul, self.left_in), gradients)
        ops.assign_add(self.weight_sum, weight)
        return ops.depend(loss, self.hyper_map(_sum_op, self.grad_sum, gradients))


class TrainOptim(_OnSum):
    """Update from ``grad_sum``; ``reduction`` must be that of ``TrainForwardBackward``."""

    def __init__(
        self, optimizer: nn.Optimizer, grad_sum: ParameterTuple, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(grad_sum)
        self.optimizer, self.mean = optimizer, reduction == "mean"
        self.agree_on(reduction)

    def construct(self) -> tuple:
        if not self.mean:
            return self.optimizer(self.grad_sum)
        # Before the first micro-batch the gradient is 0, not NaN.
        scale = 1.0 / ops.select(self.weight_sum > 0, self.weight_sum.value(), 1.0)
        return self.optimizer(self.hyper_map(ops.partial(ops.mul, scale), self.grad_sum))


class TrainClear(_OnSum):
    """Set ``grad_sum`` to ``zeros``, Parameters of the same shapes."""

    def __init__(self, grad_sum: ParameterTuple, zeros: ParameterTuple) -> None:
        super().__init__(grad_sum)
        self.zeros = zeros

    def construct(self) -> tuple:
        ops.assign(self.weight_sum, 0.0)
        return self.hyper_map(_clear_op, self.grad_sum, self.zeros)


class GradientAccumulation:
    """The tutorial's training executor, on ``AccumulatedStep``.

    Args:
        loss_fn: (logits, labels) -> mean loss.
        reduction: ``mean``, or ``sum`` as in the tutorial.
        tail: ``flush``, ``drop``, or ``carry`` as in the tutorial.
    """

    def __init__(
        self,
        network: nn.Cell,
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        optimizer: nn.Optimizer,
        *,
        reduction: Reduction = "mean",
        tail: Tail = "flush",
    ) -> None:
        options: Any = {"reduction": reduction, "tail": tail, "nonfinite": "propagate"}
        # train_process sets the number of micro-batches.
        self._step = AccumulatedStep(LossNet(network, loss_fn), optimizer, 2, **options)
        self._reduction = reduction
        if (reduction, tail) == ("mean", "flush"):
            warn(
                "unlike the tutorial's GradientAccumulation, this one averages gradients over "
                "samples (the tutorial sums: mini_steps times the learning rate), flushes an "
                "epoch's last micro-batches and prints the mean loss of each update; for the "
                "tutorial's exact behaviour give reduction='sum', tail='carry'",
            )

    def train_process(
        self,
        epoch: int,
        train_dataset: Dataset,
        mini_steps: int | None = None,
        *,
        path: str | Path = "gradient_accumulation.ckpt",
    ) -> None:
        """Train for ``epoch`` epochs of (images, labels), ``mini_steps`` micro-batches an update.

        Each update prints a line; at the end a checkpoint is written to ``path``.
        """
        mini_steps = integer("mini_steps", mini_steps)
        path = local_path("path", path)
        make_folder(path.parent)
        step = self._step
        set_state(step.group_size, mini_steps)
        batches = train_dataset.create_tuple_iterator(num_epochs=epoch)
        for number in range(1, epoch + 1):
            before = made = step.last_update.number
            for batch in chain(batches, [None]):
                if batch is None:
                    step.end_epoch()
                else:
                    loss = step(*batch)
                last = step.last_update
                if last.number > made:
                    made = last.number
                    shown = loss if self._reduction == "sum" else np.float32(last.loss)
                    print("epoch:", number, "step:", made - before, "loss is ", shown, flush=True)
        if not float(step.weight_sum.asnumpy()):
            for buffer in step.gradient_sum:  # holds sums already applied; the tutorial's is zero
                set_state(buffer, np.zeros(buffer.shape, np.float32))
        ms.save_checkpoint(step, str(path))
