"""The step: workers take turns, each with a micro-batch of its own; then all are combined."""

import hashlib

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from labkit.algorithms.adasum.team import Team
from labkit.algorithms.adasum.update import (
    IMAGES,
    LOSS_SUM,
    NORM,
    PRESENT,
    WEIGHT,
    AdasumUpdate,
)
from labkit.errors import InputError, refuse_unknown
from labkit.ranks import cluster
from labkit.steps.accumulation import AccumulatedStep, check_micro_steps
from labkit.steps.gradients import set_state
from labkit.steps.step import cast_like, check_optimizer

TAILS = ("flush", "drop")


class AdasumStep(AccumulatedStep):
    """One update from N workers' micro-batches. ``options`` are those of ``GradientStage``.

    loss_net     see ``GradientStage``; called once per micro-batch
    optimizer    any ``nn.Optimizer``; its schedules count updates
    workers      virtual workers in this process: each call is a micro-batch of the next one
    micro_steps  micro-batches that each worker averages, as in ``AccumulatedStep``
    on           ``updates``: each worker's optimizer moves the weights, with moments of its own,
                 and the moves are combined, as in the tutorial; ``gradients``: gradients are
                 combined, and one optimizer takes the result
    reduction    ``adasum``; or ``mean`` or ``sum`` of the same vectors, for comparison
    scope        Adasum of each parameter's vector by itself, ``layer`` (MindSpore's and Horovod's),
                 or of all in one, ``network``
    node_size    ranks to a node: averaged inside it, combined across nodes (in one process:
                 ``node_size`` times as many micro-batches make up a worker's vector)
    tail         what ``end_epoch`` does where not all workers have had their turn: ``flush``
                 combines those that have, ``drop`` forgets them

    >>> step = AdasumStep(LossNet(network, loss_fn), optimizer, workers=16)
    >>> for images, labels in micro_batches:
    ...     loss = step(images, labels)
    >>> step.end_epoch()

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

    Raises ``InputError`` for values that are none of these, a team of one worker, and replicas that
    differ.
    """

    def __init__(
        self,
        loss_net,
        optimizer,
        *,
        workers=1,
        micro_steps=1,
        on="updates",
        reduction="adasum",
        scope="layer",
        node_size=1,
        tail="flush",
        **options,
    ):
        refuse_unknown("tail", tail, TAILS)
        check_optimizer(optimizer)
        team = Team(workers, node_size)
        update = AdasumUpdate(optimizer, team, on=on, reduction=reduction, scope=scope)
        super().__init__(
            loss_net,
            optimizer,
            _times(micro_steps, 1 if team.ranks > 1 else node_size),
            update=update,
            tail=tail,
            rank_group=team.rank_group,
            **options,
        )
        self.team = team
        self.workers = workers
        self._whole = _Whole(self)
        self.check_replicas()
        print(f"labkit: {reduction} over {team.text()}, on {on}, by {scope}", flush=True)

    @property
    def total_workers(self) -> int:
        """How many workers' vectors are combined."""
        return self.team.total

    def apply(self, total, loss_sum, weight, images):
        """Close a worker's group: its vector and its notes go into the bank."""
        loss_sum, images, total = self.summed(loss_sum, images, total)
        gradients, norm = self.gradient.finish(total, weight)
        gradients = self.map(cast_like, gradients, self.optimizer.parameters)
        present = ops.cast(1.0, ms.float32)
        # Times 1.0: in PyNative mode a Parameter beside Tensors is of another type to Stack.
        notes = (1.0 * loss_sum, 1.0 * weight, ops.cast(images, ms.float32), norm, present)
        return self.update.enter(gradients, notes)

    def apply_nothing(self):
        return self.update.enter_nothing()

    def group_closed(self, done):
        if self.workers == 1:
            return self.combine(done)
        turn = ops.assign_add(self.update.worker, ops.depend(1, done))
        combined = False
        if turn >= self.workers:
            combined = self.combine(turn)
        return ops.depend(True, combined)

    def combine(self, done):
        """Combine the full bank and move the weights; all workers have had their turn."""
        rows, notes = self.update.gathered()
        vector, sure = self.update.attempt(ops.depend(rows, done), notes)
        # All hold the same rows, and yet: a rank that rounds otherwise, and alone takes the second
        # graph, would wait there for the others forever.
        sure = self.team.all_of(sure)
        some = ops.reduce_sum(notes[:, WEIGHT]) > 0
        unsure = ops.logical_and(some, ops.logical_not(sure))
        moved = ops.assign(self.update.unsure, ops.cast(unsure, ms.int32))
        if ops.logical_and(some, sure):
            moved = self.move(ops.depend(vector, moved), notes)
        return ops.depend(self.update.start_anew(), moved)

    def move(self, vector, notes):
        """Move the weights by the combined vector, and note what was done."""
        weight = ops.reduce_sum(notes[:, WEIGHT])
        loss = ops.reduce_sum(notes[:, LOSS_SUM]) / weight
        norm = ops.reduce_sum(notes[:, NORM]) / ops.reduce_sum(notes[:, PRESENT])
        images = ops.cast(ops.reduce_sum(notes[:, IMAGES]), ms.int32)
        noted = self.note(loss, norm, images)
        moved = self.update(ops.depend(vector, noted))
        return ops.depend(ops.assign_add(self.updates, 1), moved)

    def __call__(self, *batch):
        # Of an update that was interrupted between its graphs: before its bank is overwritten.
        self._combine_whole()
        return super().__call__(*batch)

    def between_graphs(self, batch):
        self._combine_whole()
        super().between_graphs(batch)

    def _combine_whole(self):
        if self.update.may_be_unsure and int(self.update.unsure.asnumpy()):
            self._whole()

    @property
    def micro_batches(self) -> int:
        return super().micro_batches * self.workers

    def updates_ahead(self, epochs) -> int:
        updates, done = 0, int(self.updates.asnumpy())
        held, worker = int(self.micro_step.asnumpy()), int(self.update.worker.asnumpy())
        size = int(self.group_size.asnumpy())
        for left in epochs:
            while left > 0:
                taken = min(size - held, left)
                left, held = left - taken, held + taken
                worker, held = (worker + 1, 0) if held == size else (worker, held)
                if worker == self.workers or (not left and self.tail == "flush"):
                    updates, worker, held = updates + 1, 0, 0
                    if self.schedule is not None:
                        size = check_micro_steps(self.schedule(done + updates))
            held, worker = 0, 0
        return updates

    def end_epoch(self) -> None:
        """Combine or forget the workers that have had their turn, as ``tail`` says."""
        self._combine_whole()
        if self.tail == "drop":
            for one in (self.loss_sum, self.weight_sum, self.images, self.micro_step):
                set_state(one, 0)
            set_state(self.spoiled, 0)
            set_state(self.update.worker, 0)
        while int(self.micro_step.asnumpy()) or int(self.update.worker.asnumpy()):
            # A worker at a time; those that have had no turn enter zeros.
            self._flush()
        self.between_graphs(())
        self.check_replicas()

    def vectors(self) -> dict[str, np.ndarray]:
        """Return each parameter's vectors (workers, size) that this process entered last."""
        ends = np.cumsum(self.update.sizes)[:-1]
        # A copy: on CPU asnumpy is the bank itself, which the next call overwrites.
        rows = self.update.rows.asnumpy()[:, : self.update.numbers].copy()
        parts = np.split(rows, ends, axis=1)
        names = [parameter.name for parameter in self.optimizer.parameters]
        return dict(zip(names, parts, strict=True))

    def check_replicas(self) -> None:
        """Raise ``InputError`` unless all ranks hold the same bits in every trained parameter.

        Called on every rank alike; when the step is built and at the end of every epoch it is.
        """
        if self.team.ranks == 1:
            return
        parameters = self.optimizer.parameters
        digests = [hashlib.sha256(one.asnumpy().tobytes()).digest()[:8] for one in parameters]
        found = cluster.gather(np.frombuffer(b"".join(digests), np.uint8).astype(np.float64))
        for index, parameter in enumerate(parameters):
            part = found[:, 8 * index : 8 * (index + 1)]
            others = np.flatnonzero((part != part[0]).any(axis=1))
            if others.size:
                raise InputError(
                    f"parameter {parameter.name!r} of rank {others[0]} is not that of rank 0; "
                    "expected the same bits on all ranks: the same seed and the same checkpoint"
                )


class _Whole(nn.Cell):
    """The second compiled graph of an ``AdasumStep``: combine a bank that is no common one.

    A graph of its own because a condition inside a condition is dear: with this one inside the
    first graph, a step on two ranks took 30 to 35 ms instead of 16 to 21.
    """

    def __init__(self, step):
        super().__init__(auto_prefix=False)
        self.update, self.move = step.update, step.move

    def construct(self):
        rows, notes = self.update.gathered()
        # The tree on all ranks, though some may be sure: the same bits everywhere.
        moved = self.move(self.update.combination.by_tree(rows), notes)
        return ops.assign(self.update.unsure, ops.depend(0, moved))


def _times(micro_steps, factor):
    """Return ``micro_steps``, a number or a function of the number of updates, times ``factor``."""
    if not callable(micro_steps):
        return check_micro_steps(micro_steps) * factor
    return lambda updates: check_micro_steps(micro_steps(updates)) * factor
