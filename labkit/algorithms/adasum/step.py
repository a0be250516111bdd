"""The step: workers take turns, each with its own micro-batches; then all are combined."""

from typing import Any

import numpy as np
from mindspore import nn

from labkit.algorithms.adasum.update import AdasumUpdate
from labkit.steps.accumulation import AccumulatedStep, MicroSteps
from labkit.steps.options import gradient_options

_OWN = ("workers", "micro_steps", "on", "reduction", "scope", "node_size", "tail")


class AdasumStep(AccumulatedStep):
    """One update from N workers' micro-batches: an ``AccumulatedStep`` with an ``AdasumUpdate``.

    Args:
        loss_net: see ``GradientStage``; called once per micro-batch.
        optimizer: any ``nn.Optimizer``; its schedules count updates.
        workers: virtual workers in this process, which take turns, one group of micro-batches each.
        micro_steps: micro-batches that each worker averages, as in ``AccumulatedStep``.
        on: ``updates`` combines the changes that each worker's optimizer, with its own moments,
            makes to the weights; ``gradients`` combines gradients, and one optimizer takes them.
        reduction: ``adasum``; or ``mean`` or ``sum`` of the same vectors, for comparison.
        scope: ``layer`` combines each parameter's vector separately, as MindSpore and Horovod do;
            ``network`` combines all parameters as one vector.
        node_size: ranks per node: averaged within a node, combined across nodes (in one process,
            ``node_size`` times as many micro-batches make up a worker's vector).
        tail: what ``end_epoch`` does if not all workers have had their turn: ``flush`` combines
            those that have, ``drop`` discards them.
        **options: see ``GradientOptions``. ``clip_norm`` limits each worker's averaged gradient;
            ``all_reduce_fusion_config`` is for the messages between the ranks of a node.

    Raises:
        InputError: if an argument has an invalid value, there is only one worker, the ranks are not
            a multiple of ``node_size``, or replicas differ.

    With several ranks, every rank builds the same step and feeds its own rows; ``workers`` then
    counts those of each rank. Two ranks with one worker each give the same result as two virtual
    workers that take the ranks' rows in turn. A worker without a finite micro-batch counts as a
    zero vector. In ``last_update``, loss and images cover all workers, and gradient_norm is the
    mean of the workers' norms. With ``on="updates"`` each rank has its own moments: give each
    rank's ``fit`` its own folder.

    For N workers in this process and an optimizer with S state numbers per weight (Momentum 1, SGD
    and Adam 2), its Parameters hold (1 + 2 S) N + S + 3 copies of the weights with
    ``on="updates"``, N + S + 2 with ``on="gradients"``: three workers with Adam 20, 2 GB for
    ResNet-50.

    >>> step = AdasumStep(LossNet(network, loss_fn), optimizer, workers=16)
    >>> for images, labels in micro_batches:
    ...     loss = step(images, labels)
    >>> step.end_epoch()
    """

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
        tail: str = "flush",
        **options: Any,
    ):
        gradient_options(options, *_OWN)  # before a misspelled "workers" means a team of one
        update = AdasumUpdate(
            optimizer, workers=workers, on=on, reduction=reduction, scope=scope, node_size=node_size
        )
        super().__init__(loss_net, optimizer, micro_steps, update=update, tail=tail, **options)
        self.team, self.workers, self.total_workers = update.team, workers, update.team.total

    def vectors(self) -> dict[str, np.ndarray]:
        """Return each parameter's vectors (workers, size) that this process last contributed."""
        update = self.update
        rows = update.rows.asnumpy().copy()  # on CPU asnumpy is the bank, which the next call fills
        names = [parameter.name for parameter in update.parameters]
        return dict(zip(names, np.split(rows, update.ends, axis=1), strict=False))

    def check_replicas(self) -> None:
        """Raise ``InputError`` unless all ranks, which must all call it, hold the same weights.

        The step calls it when it is built and at the end of every epoch.
        """
        self.team.check_replicas(self.update.parameters)
