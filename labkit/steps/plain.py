"""The plain step: one update for every batch.

w <- optimizer(w, g),     g = grad L(w; batch)
"""

from collections.abc import Sequence

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from labkit.base.arguments import names_checked
from labkit.steps.options import DynamicLossScale, GradientOptions
from labkit.steps.step import Step
from labkit.steps.update import PlainUpdate as PlainUpdate
from labkit.steps.update import UpdateStage


class PlainStep(Step):
    """One update per batch.

    A batch that is non-finite on any rank makes no update (``nonfinite="propagate"`` does not
    check), nor does a batch in which no label counts.

    Args:
        loss_net: Cell: batch, labels last -> scalar mean loss, such as a ``LossNet``.
        optimizer: any ``nn.Optimizer``.
        update: update stage; the optimizer alone by default.
        normalise: weight of a batch's loss; for this and the options below see ``GradientOptions``.
        batch_axis: axis of the batch's first tensor that indexes its rows.
        reduction: ``mean`` or ``sum``.
        precision: ``O0``, ``O2`` or ``O3``.
        loss_scale: number > 0, or ``DynamicLossScale``.
        nonfinite: ``drop_micro``, ``drop_group`` or ``propagate``.
        clip_norm: largest global norm of the gradient, or None.
        rank_group: the ranks over which gradients are averaged.
        all_reduce_fusion_config: index of the last gradient of each message between ranks, or None.

    Raises:
        InputError: as in ``Step``.

    >>> step = PlainStep(LossNet(network, loss_fn), optimizer)
    >>> loss = step(images, labels)
    """

    @names_checked
    def __init__(
        self,
        loss_net: nn.Cell,
        optimizer: nn.Optimizer,
        *,
        update: UpdateStage | None = None,
        normalise: str | None = None,
        batch_axis: int | None = None,
        reduction: str = "mean",
        precision: str = "O0",
        loss_scale: float | DynamicLossScale = 1.0,
        nonfinite: str = "drop_micro",
        clip_norm: float | None = None,
        rank_group: str | None = None,
        all_reduce_fusion_config: Sequence[int] | None = None,
    ):
        options = GradientOptions(
            normalise=normalise,
            batch_axis=batch_axis,
            reduction=reduction,
            precision=precision,
            loss_scale=loss_scale,
            nonfinite=nonfinite,
            clip_norm=clip_norm,
            rank_group=rank_group,
            all_reduce_fusion_config=all_reduce_fusion_config,
        )
        update = PlainUpdate(optimizer) if update is None else update
        super().__init__(loss_net, optimizer, update, options, weighted=False, has_buffer=False)
        self.always = Parameter(Tensor(True), name="step.always", requires_grad=False)
        objective = self.gradient.objective
        counted = objective.over in ("tokens", "labels")
        self.may_count_nothing = counted or objective.may_be_undefined
        self._complete()

    def construct(self, *batch: Tensor) -> Tensor:
        return self.micro_batch(False, *batch)

    def micro_batch(self, with_extras: bool, *batch: Tensor) -> Tensor:
        """Make an update from one batch; arguments as in ``contribution``.

        Returns:
            Its loss ().
        """
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
        if self.may_count_nothing:
            finite = ops.logical_and(finite, weight_sum > 0)
        done: object = False
        if finite:
            loss_sum = loss * weight
            images = ops.cast(self.gradient.objective.rows(batch), ms.int32)
            done = self.apply(gradients, loss_sum, weight_sum, images, squares)
        return ops.depend(loss, done)
