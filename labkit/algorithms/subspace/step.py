"""The step: gradients as always, then a search in the subspace on the update's own rows."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from labkit.algorithms.subspace.search import (
    Constants,
    LastSearch,
    after_search,
    descent,
    line_search,
    updated_inverse,
)
from labkit.algorithms.subspace.update import (
    Descend,
    Finish,
    Prepare,
    Project,
    SubspaceUpdate,
    Trial,
    check_constants,
)
from labkit.errors import InputError, refuse_unknown
from labkit.ranks import cluster
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import set_state
from labkit.steps.step import check_optimizer

METHODS = ("bfgs", "sgd")
TAILS = ("flush", "drop")


class SubspaceStep(AccumulatedStep):
    """One update from a search in a subspace of the weights.

    loss_net     see ``GradientStage``
    optimizer    any ``nn.Optimizer``: takes alpha r, once an update, by its own groups and rates.
                 ``nn.SGD(parameters, 1.0)`` gives the source's rule. Adam and its like divide by
                 the gradient's size: there alpha means nothing, but for their epsilon
    basis        ``Basis`` of the optimizer's parameters: matrix (K, M), names, shapes, checksum
    method       ``bfgs``, the search; or ``sgd``: the optimizer takes P^T P g, nothing is searched
    micro_steps  micro-batches that an update averages, as in ``AccumulatedStep``; a trial's loss is
                 then their weighted mean, and the step keeps them until the update is made
    tail         what ``end_epoch`` does with a partly filled group: ``flush`` or ``drop``
    others       constants of the search, as ``labkit.algorithms.subspace.Constants`` has them, and
                 options of ``GradientStage``

    >>> step = SubspaceStep(LossNet(network, loss_fn), optimizer, basis)
    >>> loss = step(images, labels)
    >>> step.last_search
    LastSearch(trials=1, accepted=True, rate=1.0, failures=0)

    ``clip_norm`` shortens g before all else: B learns from clipped gradients, and a trial is asked
    for the decrease that the clipped one foresees, which is less.

    A trial is a forward pass in training mode. Dropout draws another mask for each one, so that the
    search compares losses of different masks: noise that it cannot tell from a decrease.

    A checkpoint holds no rows: with ``bfgs`` and several micro-batches an update, ``fit`` writes
    checkpoints between groups only, and a step that was loaded in the middle of one refuses to go
    on. Over ranks, every rank builds the same step and holds K / ranks of the components.

    Raises ``InputError`` for values that are none of these, a basis of other weights, and ranks
    that differ in their weights or in the basis.
    """

    def __init__(
        self,
        loss_net,
        optimizer,
        basis,
        *,
        method="bfgs",
        micro_steps=1,
        tail="flush",
        **options,
    ):
        refuse_unknown("tail", tail, TAILS)
        refuse_unknown("method", method, METHODS)
        check_optimizer(optimizer)
        names = set(Constants.__dataclass_fields__)
        given = {name: options.pop(name) for name in names & options.keys()}
        check_constants(method, given)
        update = SubspaceUpdate(optimizer, basis, method, Constants(**given))
        super().__init__(
            loss_net, optimizer, micro_steps, update=update, tail=tail, rank_group=None, **options
        )
        self.searches = method == "bfgs"
        self._project, self._prepare = Project(self), Prepare(self)
        self._trial = Trial(self) if self.searches else None
        self._finish = Finish(self) if self.searches else Descend(self)
        # rows: the group's finite micro-batches. mark: (updates, micro_step) after the last one.
        self._rows, self._mark, self._dropped_before = [], (0, 0), 0
        self._check_ranks(basis)

    def _check_ranks(self, basis):
        if self.gradient.ranks > 1:
            state = cluster.digest(self.optimizer)
            cluster.agree(**{"basis": basis.checksum, "state of weights and optimizer": state})

    def apply(self, total, loss_sum, weight, images):
        """Average the update's gradient into the buffer it was summed in, and hold it there."""
        loss_sum, images, total = self.summed(loss_sum, images, total)
        gradients, norm = self.gradient.finish(total, weight)
        noted = self.note(loss_sum / weight, norm, images)
        # Of the objective whose gradient is g.
        divisor = weight
        if not self.gradient.mean:
            divisor = ops.cast(self.gradient.ranks, ms.float32)
        loss = ops.assign(self.update.loss, loss_sum / divisor)
        averaged = self.map(ops.assign, self.gradient_sum, gradients)
        held = ops.assign(self.update.held, ops.depend(1, (noted, loss, averaged)))
        return ops.depend(True, held)

    def __call__(self, *batch):
        if int(self.update.held.asnumpy()):
            # Of an update that was interrupted: it was not made, and is not to be made now.
            set_state(self.update.held, 0)
        if self.searches:
            self._check_rows()
            self._dropped_before = int(self.dropped.asnumpy())
        return super().__call__(*batch)

    def end_epoch(self) -> None:
        if self.searches:
            self._check_rows()
        super().end_epoch()

    def protect(self, parameters):
        super().protect(parameters)
        if self.searches:
            self._trial.protect(parameters)

    def between_graphs(self, batch):
        if self.searches and batch and int(self.dropped.asnumpy()) == self._dropped_before:
            self._rows.append(batch)
        if int(self.update.held.asnumpy()):
            with self.in_training():
                self._search() if self.searches else self._descend()
        self._mark = (int(self.updates.asnumpy()), int(self.micro_step.asnumpy()))
        if self._mark[1] == 0:
            self._rows = []
        super().between_graphs(batch)

    def _check_rows(self):
        """Refuse to go on in a group whose rows are not these: of a checkpoint in its middle."""
        mark = (int(self.updates.asnumpy()), int(self.micro_step.asnumpy()))
        if mark[1] == 0:
            self._rows = []
        elif mark != self._mark:
            raise InputError(
                f"the step holds the sums of {mark[1]} micro-batches and not their rows, which the "
                "search needs: it was loaded in the middle of a group; expected a checkpoint "
                "between groups, as fit writes them"
            )

    def _search(self):
        """Make the update that the graph of the group's last micro-batch has prepared."""
        update, constants = self.update, self.update.constants
        gradient, flat = self._projected()
        memory = update.memory()
        inverse = updated_inverse(memory, gradient, constants)
        direction, slope = self._of_first_rank(*descent(inverse, gradient))
        coefficients = update.share.of(np.stack([direction, gradient]))
        (move, inside), start = self._prepare(update.share.tensor, coefficients)

        def loss_at(rate):
            return self._loss(Tensor(rate, ms.float32), move, start)

        trials, rate = line_search(loss_at, float(update.loss.asnumpy()), slope, constants)
        memory = after_search(memory, inverse, gradient, direction, rate, constants.failure)
        notes = update.notes(memory, trials, rate)
        self._finish(Tensor(rate, ms.float32), move, inside, start, flat, *notes)

    def _descend(self):
        gradient, _ = self._projected()
        share = self.update.share
        (inside,), _ = self._prepare(share.tensor, share.of(gradient[None]))
        self._finish(inside)

    def _projected(self):
        """Return (P g (K,) float64, g (M,)) of the update's gradient."""
        gradient, flat = self._project(self.update.share.tensor)
        return gradient.asnumpy()[: self.update.share.components].astype(np.float64), flat

    def _of_first_rank(self, direction, slope):
        """Return the first rank's values: what follows is decided from the same bits everywhere.

        B is made by the host, and hosts of other kinds round otherwise: ranks that disagree on a
        trial would wait for each other forever.
        """
        if self.gradient.ranks == 1:
            return direction, slope
        values = np.float32([slope, *direction])
        if self.update.share.rank:
            values = np.zeros_like(values)
        values = self.gradient.all_reduce(Tensor(values)).asnumpy()
        return values[1:], float(values[0])

    def _loss(self, rate, move, start):
        """Return the loss of the update's rows, of all ranks, at w + rate P^T d."""
        found = np.zeros(2)
        for batch in self._rows:
            loss, weight = (float(x.asnumpy()) for x in self._trial(rate, move, start, *batch))
            found += (loss * weight, weight)
        if self.gradient.ranks > 1:
            found = self.gradient.all_reduce(Tensor(found, ms.float32)).asnumpy().astype(np.float64)
        return float(found[0] / (found[1] if self.gradient.mean else self.gradient.ranks))

    @property
    def last_search(self) -> LastSearch:
        """The search of the most recent update, read from the device."""
        if not self.searches:
            raise InputError("method='sgd' searches nothing; expected method='bfgs'")
        rate = float(self.update.rate.asnumpy())
        return LastSearch(
            trials=int(self.update.trials.asnumpy()),
            accepted=rate > 0,
            rate=rate,
            failures=int(self.update.failures.asnumpy()),
        )

    @property
    def more_to_record(self) -> dict[str, float]:
        """The search of the most recent update: its trials, its rate, and failed ones so far."""
        if not self.searches:
            return {}
        last = self.last_search
        return {"trials": last.trials, "rate": last.rate, "failed_searches": last.failures}

    @property
    def can_be_saved(self) -> bool:
        """Whether a checkpoint would be the whole state: no rows are kept for a search."""
        return not self.searches or int(self.micro_step.asnumpy()) == 0
