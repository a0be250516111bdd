"""The plain update stage: the optimizer alone; and the step that updates at every batch.

w <- optimizer(w, g),     g = grad L(w; batch)
"""

import mindspore as ms
from mindspore import Parameter, Tensor, ops

from labkit.steps.step import Step
from labkit.steps.update import UpdateStage


class PlainUpdate(UpdateStage):
    """Update stage that hands the averaged gradients to any ``nn.Optimizer``."""

    def __init__(self, optimizer):
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer

    def construct(self, gradients):
        return self.optimizer(gradients)


class PlainStep(Step):
    """One update per batch. ``options`` are those of ``Step`` and ``GradientStage``.

    A batch that is not finite, on any rank, updates nothing (``nonfinite="propagate"``: is not
    checked); nor does one without a label that counts. ``update`` is the update stage, the
    optimizer alone by default.

    >>> step = PlainStep(LossNet(network, loss_fn), optimizer)
    >>> loss = step(images, labels)
    """

    def __init__(self, loss_net, optimizer, *, update=None, **options):
        update = update or PlainUpdate(optimizer)
        super().__init__(loss_net, optimizer, update, weighted=False, **options)
        self.always = Parameter(Tensor(True), name="step.always", requires_grad=False)

    def construct(self, *batch):
        return self.micro_batch(False, *batch)

    def micro_batch(self, with_extras, *batch):
        """Update by one batch; ``with_extras`` is constant in a compiled graph."""
        loss, weight, gradients, finite = self.contribution(with_extras, *batch)
        if not self.gradient.checked:
            # A condition that only the device knows moves the graph to MindSpore's faster
            # executor: 3.7 ms instead of 6.2 for a LeNet step on two cores, bit-equal.
            finite = self.always
        else:
            # All ranks take the same branch: a rank alone in it would wait for the others forever.
            finite = self.gradient.on_all_ranks(finite)
        # After it: the ranks' sums must be made in one order.
        weight_sum = self.gradient.over_ranks(ops.depend(weight, finite))
        if self.gradient.over in ("tokens", "labels") or self.gradient.may_be_undefined:
            finite = ops.logical_and(finite, weight_sum > 0)
        done = False
        if finite:
            loss_sum = loss * weight
            images = ops.cast(self.gradient.rows(batch), ms.int32)
            done = self.apply(gradients, loss_sum, weight_sum, images)
        return ops.depend(loss, done)
