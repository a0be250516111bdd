"""The step and its update stage: gradients as usual, then a search on the update's own rows."""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

from labkit.algorithms.subspace.basis import Basis
from labkit.algorithms.subspace.graphs import Descend, Finish, Prepare, Project, Shard, Trial
from labkit.algorithms.subspace.search import (
    CONSTANT_NAMES,
    Constants,
    LastSearch,
    Memory,
    after_search,
    descent,
    line_search,
    updated_inverse,
)
from labkit.base.arguments import choice
from labkit.errors import InputError, refuse_unknown
from labkit.ranks import cluster
from labkit.steps.accumulation import AccumulatedStep, MicroSteps
from labkit.steps.options import gradient_options
from labkit.steps.state import integer_of, set_state, state
from labkit.steps.update import Summary, UpdateStage

NO_SEARCH = "method='sgd' searches nothing; expected method='bfgs' for"


class SubspaceStep(AccumulatedStep):
    """One update from a search in a subspace: an ``AccumulatedStep`` with a ``SubspaceUpdate``.

    Args:
        loss_net: see ``GradientStage``.
        optimizer: any ``nn.Optimizer``; applies alpha r once per update, with its own groups and
            rates. ``nn.SGD(parameters, 1.0)`` gives the source's rule. Adam and similar optimizers
            divide by the gradient's size, so that alpha has no effect except through their epsilon.
        basis: ``Basis`` of the optimizer's parameters.
        method: ``bfgs`` searches; ``sgd`` passes P^T P g to the optimizer without a search.
        micro_steps: micro-batches that an update averages, as in ``AccumulatedStep``; a trial's
            loss is then their weighted mean, and the step keeps them until the update is made.
        tail: what ``end_epoch`` does with a partly filled group: ``flush`` or ``drop``.
        **options: ``Constants`` of the search and ``GradientOptions``. g is clipped first of all: B
            learns from clipped gradients, and a trial must show only the decrease that they
            predict.

    Raises:
        InputError: as in ``SubspaceUpdate``.

    Dropout draws a new mask for each trial: the search cannot tell its noise from a decrease.

    A checkpoint holds no rows: with ``bfgs`` and several micro-batches per update, ``fit`` writes
    checkpoints only between groups, and a step loaded in the middle of a group refuses to continue.
    With several ranks, every rank builds the same step and holds K / ranks of the components.

    >>> step = SubspaceStep(LossNet(network, loss_fn), optimizer, basis)
    >>> loss = step(images, labels)
    >>> step.last_search
    LastSearch(trials=1, accepted=True, step_size=1.0, failures=0)
    """

    def __init__(
        self,
        loss_net: nn.Cell,
        optimizer: nn.Optimizer,
        basis: Basis,
        *,
        method: str = "bfgs",
        micro_steps: MicroSteps = 1,
        tail: str = "flush",
        **options: Any,
    ):
        constants = {name: options.pop(name) for name in CONSTANT_NAMES if name in options}
        gradient_options(options, "method", "micro_steps", "tail", *CONSTANT_NAMES)
        update = SubspaceUpdate(optimizer, basis, method=method, **constants)
        super().__init__(loss_net, optimizer, micro_steps, update=update, tail=tail, **options)

    @property
    def last_search(self) -> LastSearch:
        """The search of the most recent update, read from the device."""
        return self.update.last_search


class SubspaceUpdate(UpdateStage):
    """State and settings of the searches.

    Args:
        optimizer, basis, method: as in ``SubspaceStep``.
        **constants: see ``Constants``.

    Raises:
        InputError: if an argument has an invalid value, constants are given for ``sgd``, which has
            none, the basis is of other weights, or ranks differ in their weights or in the basis.
    """

    needs_buffer = True
    tails = ("flush", "drop")

    def __init__(
        self, optimizer: nn.Optimizer, basis: Basis, *, method: str = "bfgs", **constants: Any
    ):
        super().__init__(optimizer)
        choice("method", method, ("bfgs", "sgd"))
        self.searches = method == "bfgs"
        if constants and not self.searches:
            raise InputError(f"{NO_SEARCH} {', '.join(constants)}")
        for name in constants:
            refuse_unknown("constant", name, CONSTANT_NAMES)
        self.constants = Constants(**constants)
        self.basis_shard = Shard(basis, optimizer.parameters)
        self.settings = {"method": method, "basis": basis.checksum}
        # pending: 1 between the graph that averages an update's gradient and the one that updates.
        # loss: of the update's rows at w, with which trials are compared.
        self.pending = state("subspace.held", 0)
        self.loss = state("subspace.loss", 0.0)
        if self.searches:
            self.settings |= {name: repr(value) for name, value in vars(self.constants).items()}
            # All of this changes only with an update. residual: r (M,). inverse_hessian: B.
            # last_gradient, last_step: P g and s of the last update, valid if has_pair is 1.
            # trials, step_size: of the last search. failures: searches so far without a step.
            memory = Memory.empty(self.basis_shard.components)
            self.residual = state(
                "subspace.residual", np.zeros(self.basis_shard.numbers, np.float32)
            )
            self.inverse_hessian = state("subspace.inverse_hessian", memory.inverse)
            self.last_gradient = state("subspace.last_gradient", memory.gradient)
            self.last_step = state("subspace.last_step", memory.step)
            self.has_pair = state("subspace.has_pair", 0)
            self.trials = state("subspace.trials", 0)
            self.step_size = state("subspace.rate", 0.0)
            self.failures = state("subspace.failures", 0)
            pair = (self.inverse_hessian, self.last_gradient, self.last_step, self.has_pair)
            # Parameters that Finish assigns, in this order.
            self.remembered = ParameterTuple((*pair, self.trials, self.step_size, self.failures))
        # The group's finite micro-batches, and (updates, micro_step) after the last of them.
        self._rows: list[tuple] = []
        self._mark, self._dropped_before = (0, 0), 0

    def attach(self, step: nn.Cell) -> None:
        super().attach(step)
        self.gradient = step.gradient
        self.buffer = ParameterTuple(step.gradient_sum[: self.gradient.count])
        self.micro_step = step.micro_step
        self.project, self.prepare = Project(step), Prepare(step)
        self.trial: nn.Cell = Trial(step) if self.searches else None
        self.finish: nn.Cell = Finish(step) if self.searches else Descend(step)
        if self.gradient.ranks > 1:
            cluster.agree(basis=self.settings["basis"])
            cluster.agree(**{"state of weights and optimizer": cluster.digest(self.optimizer)})

    # --- in the step's graph -------------------------------------------------------------------

    def take(self, gradients: tuple, extras: tuple, summary: Summary) -> object:
        """Store the update's gradient in the buffer in which it was summed, and mark it pending."""
        loss_sum, weight, norm, images = summary
        noted = self.record.note(loss_sum / weight, norm, images)
        # The loss of the objective whose gradient is g.
        divisor = weight
        if not self.gradient.mean:
            divisor = ops.cast(self.gradient.ranks, ms.float32)
        loss = ops.assign(self.loss, loss_sum / divisor)
        averaged = self.map(ops.assign, self.buffer, gradients)
        stored = ops.assign(self.pending, ops.depend(1, (noted, loss, averaged)))
        return ops.depend(True, stored)

    # --- between graphs ------------------------------------------------------------------------

    def before(self, step: nn.Cell, batch: tuple) -> None:
        if integer_of(self.pending):
            # Discard the pending update of an interrupted call.
            set_state(self.pending, 0)
        if self.searches:
            mark = (integer_of(self.record.updates), integer_of(self.micro_step))
            if mark[1] == 0:
                self._rows = []
            elif mark != self._mark:
                raise InputError(
                    f"the step holds the sums of {mark[1]} micro-batches and not their rows, which "
                    "the search needs: it was loaded in the middle of a group; expected a "
                    "checkpoint between groups, as fit writes them"
                )
            self._dropped_before = integer_of(step.dropped)

    def between(self, step: nn.Cell, batch: tuple, loss: Tensor | None) -> None:
        if self.searches and batch and integer_of(step.dropped) == self._dropped_before:
            self._rows.append(batch)
        if integer_of(self.pending):
            self._search() if self.searches else self._descend()
        self._mark = (integer_of(self.record.updates), integer_of(self.micro_step))
        if self._mark[1] == 0:
            self._rows = []

    def _search(self) -> None:
        """Make the update that is pending."""
        gradient, flat = self._projected()
        memory = self._memory()
        inverse = updated_inverse(memory, gradient, self.constants)
        direction, slope = self._of_first_rank(*descent(inverse, gradient))
        coefficients = self.basis_shard.of(np.stack([direction, gradient]))
        (move, inside), start = self.prepare(self.basis_shard.tensor, coefficients)

        def loss_at(size: float) -> float:
            return self._loss(Tensor(size, ms.float32), move, start)

        loss = float(self.loss.asnumpy())
        trials, size = line_search(loss_at, loss, slope, self.constants)
        failure = self.constants.failure
        memory = after_search(memory, inverse, gradient, direction, size, failure)
        values = self._values(memory, trials, size)
        self.finish(Tensor(size, ms.float32), move, inside, start, flat, *values)

    def _descend(self) -> None:
        gradient, _ = self._projected()
        (inside,), _ = self.prepare(self.basis_shard.tensor, self.basis_shard.of(gradient[None]))
        self.finish(inside)

    def _projected(self) -> tuple[np.ndarray, Tensor]:
        """Return (P g (K,) float64, g (M,)) of the update's gradient."""
        gradient, flat = self.project(self.basis_shard.tensor)
        return gradient.asnumpy()[: self.basis_shard.components].astype(np.float64), flat

    def _of_first_rank(self, direction: np.ndarray, slope: float) -> tuple[np.ndarray, float]:
        """Return the first rank's values, so that all ranks decide from the same bits.

        B is computed on the host, and different kinds of hosts round differently: ranks that
        disagree on a trial would wait for each other forever.
        """
        if self.gradient.ranks == 1:
            return direction, slope
        values = cluster.gather([slope, *direction])[0]
        return values[1:].astype(np.float32), float(values[0])

    def _loss(self, size: Tensor, move: Tensor, start: Tensor) -> float:
        """Return the loss of the update's rows, over all ranks, at w + size P^T d."""
        sums = np.zeros((2, self.gradient.pairs))
        for batch in self._rows:
            made = self.trial(size, move, start, *batch)
            loss, weight = (np.atleast_1d(x.asnumpy()).astype(np.float64) for x in made)
            sums += (loss * weight, weight)
        if self.gradient.ranks > 1:
            sums = self.gradient.all_reduce(Tensor(sums, ms.float32)).asnumpy().astype(np.float64)
        weights = np.maximum(sums[1], 1e-30)
        return float((sums[0] / (weights if self.gradient.mean else self.gradient.ranks)).sum())

    def _memory(self) -> Memory:
        """Return the memory that the last update stored."""
        inverse, gradient, step, has_pair = (p.asnumpy() for p in self.remembered[:4])
        return Memory(inverse.copy(), gradient.copy(), step.copy(), bool(has_pair))

    def _values(self, memory: Memory, trials: int, size: float) -> list[Tensor]:
        """Return the new values of ``remembered``."""
        values = (*vars(memory).values(), trials, size, integer_of(self.failures) + (size == 0))
        return [Tensor(v, p.dtype) for v, p in zip(values, self.remembered, strict=True)]

    # --- what is reported ----------------------------------------------------------------------

    @property
    def last_search(self) -> LastSearch:
        """The search of the most recent update, read from the device."""
        if not self.searches:
            raise InputError(f"{NO_SEARCH} a search")
        size = float(self.step_size.asnumpy())
        return LastSearch(integer_of(self.trials), size > 0, size, integer_of(self.failures))

    @property
    def more_to_record(self) -> dict[str, float]:
        """The search of the most recent update: trials, step size, failed searches so far."""
        if not self.searches:
            return {}
        trials, _, size, failures = vars(self.last_search).values()
        return {"trials": trials, "step_size": size, "failed_searches": failures}

    @property
    def can_be_saved(self) -> bool:
        """Whether no search still needs the rows of a group, which a checkpoint does not hold."""
        return not self.searches or integer_of(self.micro_step) == 0
