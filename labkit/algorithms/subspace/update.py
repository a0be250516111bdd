"""The step and its update stage: gradients as usual, then a search on the update's own rows."""

from typing import Any, Literal

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

from labkit.algorithms.subspace.basis import Basis, Shard
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
from labkit.steps.state import (
    bounds,
    copied,
    flat,
    integer_of,
    part_of,
    running_statistics,
    set_state,
    state,
)
from labkit.steps.step import Graph
from labkit.steps.update import Summary, UpdateStage

NO_SEARCH = "method='sgd' searches nothing; expected method='bfgs' for"


class SubspaceStep(AccumulatedStep):
    """One update from a search in a subspace: an ``AccumulatedStep`` with a ``SubspaceUpdate``.

    Args:
        loss_net, micro_steps, tail: as in ``AccumulatedStep``, but no ``carry``. The step keeps an
            update's micro-batches, for the losses of its trials.
        optimizer: any ``nn.Optimizer``; applies alpha r once per update. Adam and similar ones
            divide by the gradient's size, so that alpha has no effect except through their epsilon.
        basis: ``Basis`` of the optimizer's parameters.
        method: ``bfgs`` searches; ``sgd`` passes P^T P g to the optimizer without a search.
        **options: ``Constants`` of the search and ``GradientOptions``. g is clipped first of all: B
            learns from clipped gradients, and a trial must show the decrease that they predict.

    Raises:
        InputError: if an argument has an invalid value, constants are given for ``sgd``, which has
            none, the basis is of other weights, or ranks differ in their weights or in the basis.

    Dropout draws a new mask for each trial: the search cannot tell its noise from a decrease.

    A checkpoint holds no rows: with several micro-batches per update ``fit`` writes them between
    groups, and a step loaded in the middle of one refuses to continue. With several ranks, every
    rank builds the same step and holds K / ranks of the components.

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
        method: Literal["bfgs", "sgd"] = "bfgs",
        micro_steps: MicroSteps = 1,
        tail: Literal["flush", "drop"] = "flush",
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
    """The update stage of ``SubspaceStep``: arguments and errors as there."""

    needs_buffer = True
    tails = ("flush", "drop")

    def __init__(
        self,
        optimizer: nn.Optimizer,
        basis: Basis,
        *,
        method: Literal["bfgs", "sgd"] = "bfgs",
        **constants: Any,
    ):
        super().__init__(optimizer)
        choice("method", method, ("bfgs", "sgd"))
        self.searches = method == "bfgs"
        if constants and not self.searches:
            raise InputError(f"{NO_SEARCH} {', '.join(constants)}")
        for name in constants:
            refuse_unknown("constant", name, CONSTANT_NAMES)
        self.constants = Constants(**constants)
        # An argument of the graphs, not a Parameter: a checkpoint holds only its checksum.
        self.basis_shard = Shard(basis, self.parameters)
        self.tensors = {"basis": [self.basis_shard.tensor]}
        sizes = [parameter.size for parameter in self.parameters]
        self.starts, self.ends = zip(*bounds(sizes), strict=True)
        self.settings = {"method": method, "basis": basis.checksum}
        # pending: 1 between the graph that averages an update's gradient and the one that updates.
        # loss: that of the update's rows at w.
        self.pending = state("subspace.held", 0)
        self.loss = state("subspace.loss", 0.0)
        if self.searches:
            self.settings |= {name: repr(value) for name, value in vars(self.constants).items()}
            self.gamma, self.alpha = float(self.constants.gamma), float(self.constants.alpha)
            # r (M,), and what else changes only with an update: the search's Memory, the trials and
            # the step size of the last search, and how many searches took no step.
            zeros = np.zeros(self.basis_shard.numbers, np.float32)
            self.residual = state("subspace.residual", zeros)
            memory = vars(Memory.empty(self.basis_shard.components)).values()
            names = "inverse_hessian last_gradient last_step has_pair trials rate failures".split()
            values = zip(names, (*memory, 0, 0.0, 0), strict=True)
            self.remembered = ParameterTuple(state(f"subspace.{n}", value) for n, value in values)
            self.trials, self.step_size, self.failures = self.remembered[4:]
            self.tensors |= {"search": (self.residual, *self.remembered)}
        # The group's finite micro-batches, and (updates, micro_step) after the last of them.
        self._rows: list[tuple] = []
        self._mark, self._dropped_before = (0, 0), 0

    def attach(self, step: nn.Cell) -> None:
        super().attach(step)
        self.gradient = step.gradient
        self.buffer = ParameterTuple(step.gradient_sum[: self.gradient.count])
        self.micro_step = step.micro_step
        self.project, self.prepare = Graph(self.project_graph), Graph(self.prepare_graph)
        self.trial = Graph(self.trial_graph)
        self.finish = Graph(self.finish_graph if self.searches else self.descend_graph)
        self.statistics = running_statistics(self.gradient.loss_net) if self.searches else ()
        if self.statistics:
            self.kept = ParameterTuple(copied(each, "kept.trial") for each in self.statistics)
        if self.gradient.ranks > 1:
            self.all_gather = ops.AllGather()
            weights = {"state of weights and optimizer": cluster.digest(self.optimizer)}
            cluster.agree(basis=self.settings["basis"], **weights)

    def take(self, gradients: tuple, extras: tuple, summary: Summary) -> object:
        """Store the update's gradient in the buffer in which it was summed, and mark it pending."""
        loss_sum, weight, norm, images = summary
        noted = self.record.note(loss_sum / weight, norm, images)
        # The loss of the objective whose gradient is g.
        divisor = weight if self.gradient.mean else 1.0 * self.gradient.ranks
        loss = ops.assign(self.loss, loss_sum / divisor)
        averaged = self.map(ops.assign, self.buffer, gradients)
        return ops.depend(True, ops.assign(self.pending, ops.depend(1, (noted, loss, averaged))))

    # --- in compiled graphs of its own ---------------------------------------------------------

    def project_graph(self, basis: Tensor) -> tuple:
        """Return P g (padded K,) of all ranks, from P's shard (L, M), and g (M,)."""
        gradient = ops.concat(self.map(flat, self.buffer))
        own = ops.reshape(ops.matmul(basis, ops.reshape(gradient, (-1, 1))), (-1,))
        return own if self.gradient.ranks == 1 else self.all_gather(own), gradient

    def prepare_graph(self, basis: Tensor, coefficients: Tensor) -> tuple:
        """Return the N products (M,) of P's shard with coefficients (N, L), of all ranks, and w."""
        moves = ops.matmul(coefficients, basis)
        if self.gradient.ranks > 1:
            moves = self.gradient.all_reduce(moves)
        # Not moves[0]: the CPU's StridedSlice takes 2.1 ms for a row of 61 684, Unstack 0.1.
        return ops.unstack(moves), ops.concat(self.map(flat, self.parameters))

    def trial_graph(self, size: Tensor, move: Tensor, start: Tensor, *batch: Tensor) -> tuple:
        """Return the mean loss of rows at w + size P^T d, and its weight; restore what changes."""
        if self.statistics:
            self.map(ops.assign, self.kept, self.statistics)
        moved: object = False
        # A condition known only on the device moves the graph to MindSpore's faster executor: 9 ms
        # instead of 13 for 250 images through LeNet on two cores, with the same bits.
        if size != 0:
            moved = ops.depend(True, self.put(start + size * move))
        loss, weight = self.gradient.objective(*batch)
        loss = ops.depend(loss, moved)
        restored = self.put(ops.depend(start, loss))
        if self.statistics:
            kept = ops.depend(self.kept, loss)
            restored = (restored, self.map(ops.assign, self.statistics, kept))
        return ops.depend(loss, restored), weight

    def finish_graph(
        self,
        size: Tensor,
        move: Tensor,
        inside: Tensor,
        start: Tensor,
        gradient: Tensor,
        *memory: Tensor,
    ) -> object:
        """Make the update, from the step size, P^T d, P^T P g, w, g and the new ``remembered``."""
        residual = self.gamma * self.residual + (gradient - inside)
        slope = self.alpha * residual
        kept = ops.assign(self.residual, residual)
        moved = self.put(start + size * move)
        done = self.optimizer(self.parts(ops.depend(slope, (kept, moved))))
        return self.counted((done, self.map(ops.assign, self.remembered, memory)))

    def descend_graph(self, inside: Tensor) -> object:
        """Make the update of ``method="sgd"``, from P^T P g (M,)."""
        return self.counted(self.optimizer(self.parts(inside)))

    def counted(self, done: object) -> object:
        """Count the update and clear ``pending``, after ``done``."""
        released = ops.assign(self.pending, ops.depend(ops.cast(0, ms.int32), done))
        return ops.depend(True, (released, ops.assign_add(self.record.updates, 1)))

    def put(self, vector: Tensor) -> tuple:
        """Set the weights to those of a vector (M,)."""
        return self.map(ops.assign, self.parameters, self.parts(vector))

    def parts(self, vector: Tensor) -> tuple:
        """Return a vector (M,) split into one tensor for each Parameter."""
        return self.map(ops.partial(part_of, vector), self.starts, self.ends, self.parameters)

    # --- on the host, between graphs -----------------------------------------------------------

    def set_inputs(self, *inputs: Any) -> None:
        vector = Tensor(shape=(self.ends[-1],), dtype=ms.float32)
        self.trial.set_inputs(Tensor(shape=(), dtype=ms.float32), vector, vector, *inputs)

    def before(self, step: nn.Cell, batch: tuple) -> None:
        if integer_of(self.pending):
            set_state(self.pending, 0)  # the update of an interrupted call is discarded
        if self.searches:
            mark = (integer_of(self.record.updates), integer_of(self.micro_step))
            if mark[1] == 0:
                self._rows = []
            elif mark != self._mark:
                raise InputError(
                    f"the step holds the sums of {mark[1]} micro-batches and not their rows, which "
                    "a search needs; expected a checkpoint between groups, as fit writes them"
                )
            self._dropped_before = integer_of(step.dropped)

    def between(self, step: nn.Cell, batch: tuple, loss: Tensor | None) -> None:
        if self.searches and batch and integer_of(step.dropped) == self._dropped_before:
            self._rows.append(batch)
        if integer_of(self.pending):
            self._search() if self.searches else self._descend()
        self._mark = (integer_of(self.record.updates), integer_of(self.micro_step))
        if self._mark[1] == 0:
            self._rows = []  # not kept until the next call

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
        """Return P g (K,) float64 and g (M,)."""
        gradient, flat = self.project(self.basis_shard.tensor)
        return gradient.asnumpy()[: self.basis_shard.components].astype(np.float64), flat

    def _of_first_rank(self, direction: np.ndarray, slope: float) -> tuple[np.ndarray, float]:
        """Return the first rank's values."""
        if self.gradient.ranks == 1:
            return direction, slope
        # Hosts round differently: ranks that disagree on a trial would wait for each other forever.
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

    @property
    def last_search(self) -> LastSearch:
        """The search of the most recent update, read from the device."""
        if not self.searches:
            raise InputError(f"{NO_SEARCH} a search")
        size = float(self.step_size.asnumpy())
        return LastSearch(integer_of(self.trials), size > 0, size, integer_of(self.failures))

    @property
    def more_to_record(self) -> dict[str, float]:
        """Trials, step size and failed searches so far, after the most recent update."""
        if not self.searches:
            return {}
        trials, _, size, failures = vars(self.last_search).values()
        return {"trials": trials, "step_size": size, "failed_searches": failures}

    @property
    def can_be_saved(self) -> bool:
        """Whether no search still needs the rows of a group, which a checkpoint does not hold."""
        return not self.searches or integer_of(self.micro_step) == 0
