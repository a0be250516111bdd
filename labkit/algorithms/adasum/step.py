"""The step: workers take turns, each with a micro-batch of its own; then all are combined."""

from collections.abc import Sequence

import numpy as np
from mindspore import nn

from labkit.algorithms.adasum.update import AdasumUpdate
from labkit.algorithms.grad_freeze import GradFreezeUpdate
from labkit.base.arguments import names_checked
from labkit.steps.accumulation import AccumulatedStep, MicroSteps
from labkit.steps.precision import DynamicLossScale


class AdasumStep(AccumulatedStep):
    """One update from N workers' micro-batches: an ``AccumulatedStep`` with an ``AdasumUpdate``.

    Args:
        loss_net: see ``GradientStage``; called once per micro-batch.
        optimizer: any ``nn.Optimizer``; its schedules count updates.
        workers: virtual workers in this process: each call is a micro-batch of the next one.
        micro_steps: micro-batches that each worker averages, as in ``AccumulatedStep``.
        on: ``updates``: each worker's optimizer moves the weights, with moments of its own, and the
            moves are combined, as in the tutorial; ``gradients``: gradients are combined, and one
            optimizer takes the result.
        reduction: ``adasum``; or ``mean`` or ``sum`` of the same vectors, for comparison.
        scope: Adasum of each parameter's vector by itself, ``layer`` (MindSpore's and Horovod's),
            or of all in one, ``network``.
        node_size: ranks to a node: averaged inside it, combined across nodes (in one process:
            ``node_size`` times as many micro-batches make up a worker's vector).
        freeze: a ``GradFreezeUpdate`` of the same optimizer: what it freezes in an update enters
            as zeros, and stays with its moments in all workers.
        tail: what ``end_epoch`` does where not all workers have had their turn: ``flush`` combines
            those that have, ``drop`` forgets them.
        normalise: see ``GradientOptions``, as for the others.
        batch_axis: axis of the batch's first tensor that counts rows.
        precision: ``O0``, ``O2`` or ``O3``.
        loss_scale: number > 0, or ``DynamicLossScale``.
        nonfinite: ``drop_micro``, ``drop_group`` or ``propagate``.
        clip_norm: largest global norm of a worker's averaged gradient, or None.
        all_reduce_fusion_config: index of the last gradient of each message between the ranks of a
            node, or None.

    Raises:
        InputError: for an argument with another value, a team of one worker, and replicas that
            differ.

    Over ranks, every rank builds the same step and feeds its own rows; ``workers`` are then those
    of each rank. Two ranks with one worker give what two virtual workers give that take the ranks'
    rows in turn. A worker without a finite micro-batch counts as a zero vector. In
    ``last_update``, loss and images are of all workers, gradient_norm is the mean of the workers'.

    Memory of its Parameters, the weights included, in copies of the weights, for N workers in this
    process and an optimizer with S numbers of state a weight (Momentum 1, SGD and Adam 2):
    (1 + 2 S) N + S + 3 with ``on="updates"``, N + S + 2 with ``on="gradients"``. Three workers with
    Adam hold 20 copies, 2 GB for ResNet-50.

    With ``on="updates"`` over ranks, each rank has moments of its own: ``fit`` them into a folder
    each.

    >>> step = AdasumStep(LossNet(network, loss_fn), optimizer, workers=16)
    >>> for images, labels in micro_batches:
    ...     loss = step(images, labels)
    >>> step.end_epoch()
    """

    @names_checked
    def __init__(
        self,
        loss_net: nn.Cell,
        optimizer: nn.Optimizer,
        *,
        workers: int = 1,
        micro_steps: MicroSteps = 1,
        on: str = "updates",
        reduction: str = "adasum",
        scope: str = "layer",
        node_size: int = 1,
        freeze: GradFreezeUpdate | None = None,
        tail: str = "flush",
        normalise: str | None = None,
        batch_axis: int | None = None,
        precision: str = "O0",
        loss_scale: float | DynamicLossScale = 1.0,
        nonfinite: str = "drop_micro",
        clip_norm: float | None = None,
        all_reduce_fusion_config: Sequence[int] | None = None,
    ):
        super().__init__(
            loss_net,
            optimizer,
            micro_steps,
            update=AdasumUpdate(
                optimizer,
                workers=workers,
                on=on,
                reduction=reduction,
                scope=scope,
                node_size=node_size,
                freeze=freeze,
            ),
            tail=tail,
            normalise=normalise,
            batch_axis=batch_axis,
            precision=precision,
            loss_scale=loss_scale,
            nonfinite=nonfinite,
            clip_norm=clip_norm,
            all_reduce_fusion_config=all_reduce_fusion_config,
        )
        self.team, self.workers = self.update.team, workers

    @property
    def total_workers(self) -> int:
        """How many workers' vectors are combined."""
        return self.team.total

    def vectors(self) -> dict[str, np.ndarray]:
        """Return each parameter's vectors (workers, size) that this process entered last."""
        return self.update.vectors()

    def check_replicas(self) -> None:
        """Raise ``InputError`` unless all ranks hold the same bits in every trained parameter.

        Called on every rank alike; when the step is built and at the end of every epoch it is.
        """
        self.update.team.check_replicas(self.update.parameters)
