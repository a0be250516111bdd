"""The plain step: one update for every batch.

w <- optimizer(w, g),     g = grad L(w; batch)
"""

from typing import Unpack

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from labkit.steps.options import OptionNames, gradient_options
from labkit.steps.step import Step
from labkit.steps.update import PlainUpdate as PlainUpdate
from labkit.steps.update import UpdateStage


class PlainStep(Step):
    """One update per batch.

    A batch that is non-finite on any rank makes no update (``nonfinite="propagate"`` does not
    check), nor does a batch in which no label counts.

    Args:
        loss_net: see ``GradientStage``.
        optimizer: any ``nn.Optimizer``.
        update: update stage; the optimizer alone by default.
        **options: see ``GradientOptions``.

    Raises:
        InputError: as in ``Step``.

    >>> step = PlainStep(LossNet(network, loss_fn), optimizer)
    >>> loss = step(images, labels)
    """

    def __init__(
        self,
        loss_net: nn.Cell,
        optimizer: nn.Optimizer,
        *,
        update: UpdateStage | None = None,
        **options: Unpack[OptionNames],
    ):
        given = gradient_options(options, "update")
        update = PlainUpdate(optimizer) if update is None else update
        super().__init__(loss_net, optimizer, update, given, has_buffer=False)
        self.always = Parameter(Tensor(True), name="step.always", requires_grad=False)
        self._complete()

    def micro_batch(self, with_extras: bool, *batch: Tensor) -> Tensor:
        """Make an update from one batch; return its loss ()."""
        # Forward and backward; unscaled; a non-finite batch is counted and leaves no trace.
        loss, weight, gradients, finite, squares = self.contribution(with_extras, *batch)
        if not self.gradient.checked:
            # A condition that only the device knows moves the graph to MindSpore's faster
            # executor: 3.7 ms instead of 6.2 for a LeNet step on two cores, bit-equal.
            finite = self.always
        else:
            # All ranks take the same branch: a rank alone in it would wait for the others forever.
            finite = self.gradient.on_all_ranks(finite)
        # Depends on ``finite``: all ranks must sum in the same order.
        weight_sum = self.gradient.over_ranks(ops.depend(weight, finite))
        done: object = False
        if ops.logical_and(finite, self.gradient.counts(weight_sum)):
            # Summed over ranks, averaged, clipped, recorded, and the update made.
            images = ops.cast(batch[-1].shape[0], ms.int32)
            done = self.apply(gradients, loss * weight, weight_sum, images, squares)
        return ops.depend(self.gradient.added(loss), done)
