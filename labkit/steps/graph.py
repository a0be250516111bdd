"""A step's compiled part: from a micro-batch to its gradients, from a group's sums to an update.

Hazard: every method here that assigns must return a value that its caller uses; README.md in this
folder says what MindSpore does otherwise.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops


class StepGraph(nn.Cell):
    """The part of a step that runs in compiled graphs; ``Step`` owns its state and calls it."""

    def contribution(self, with_extras: bool, *batch: Tensor) -> tuple:
        """Return ``GradientStage.contribution``; a non-finite one is counted and leaves no trace.

        Args:
            with_extras: whether the update stage's extras are gathered; constant in a graph.
            *batch: the micro-batch, tensors (B, ...).
        """
        if self.statistics:
            self.map(ops.assign, self.kept, self.statistics)
        if with_extras:
            parts = self.gradient.contribution_with_extras(*batch)
        else:
            parts = self.gradient.contribution(*batch)
        loss, weight, gradients, finite, squares = parts
        if self.gradient.checked:
            adjusted = self.gradient.adjust_loss_scale(finite)
            # Added unconditionally: a condition would be one more graph, 3 % of a LeNet step.
            dropped = ops.assign_add(self.dropped, ops.cast(ops.logical_not(finite), ms.int32))
            if self.statistics:
                if not finite:
                    self.map(ops.assign, self.statistics, self.kept)
            loss = ops.depend(loss, (adjusted, dropped))
        return loss, weight, gradients, finite, squares

    def apply(
        self,
        total: tuple,
        loss_sum: Tensor,
        weight: Tensor,
        images: Tensor,
        squares: Tensor | None = None,
    ) -> object:
        """Sum over ranks, average and clip, and pass the result to the update stage.

        Args:
            total: sums of w_i grad L_i on this rank, float32, then those of extras, if gathered.
            loss_sum: sum of w_i L_i () on this rank.
            weight: sum of w_i () over ranks, > 0.
            images: rows () on this rank, int32.
            squares: sum of the squares of ``total`` on this rank (), if known.
        """
        if self.gradient.ranks > 1:
            values: tuple = (loss_sum, ops.cast(images, ms.float32))
            gradients: tuple = ()
            for value in total:
                gradients += (value,)
            gradients, extras = gradients[: self.count], gradients[self.count :]
            values = self.gradient.all_over_ranks(values, gradients, extras)
            loss_sum, images, total = values[0], ops.cast(values[1], ms.int32), values[2:]
        gradients, norm = self.gradient.finish(total[: self.count], weight, squares)
        extras = ()
        if len(total) > self.count:
            extras = self.gradient.finish_extras(total[self.count :], weight)
        return self.update.take(gradients, extras, (loss_sum, weight, norm, images))


class WithExtras(nn.Cell):
    """The compiled graph of a micro-batch that gathers the update stage's extras."""

    def __init__(self, step: StepGraph):
        super().__init__(auto_prefix=False)
        self.micro_batch = step.micro_batch

    def construct(self, *batch: Tensor) -> Tensor:
        return self.micro_batch(True, *batch)
