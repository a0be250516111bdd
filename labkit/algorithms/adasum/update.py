"""The update stage: each worker's vector goes into a bank; a full bank moves the weights.

    on="updates"     d_i = optimizer_i(w, g_i) - w,    w <- w + Adasum(d_1 .. d_N)
    on="gradients"   w <- optimizer(w, Adasum(g_1 .. g_N))

With ``updates``, every worker starts at the same w and has its own optimizer state.
"""

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.algorithms.adasum.combination import combination
from labkit.algorithms.adasum.team import Team
from labkit.algorithms.adasum.workers import (
    IMAGES,
    LOSS_SUM,
    NORM,
    NOTES,
    PRESENT,
    WEIGHT,
    bank_of,
    difference,
    load,
    states_of,
    store,
)
from labkit.algorithms.grad_freeze import GradFreezeUpdate
from labkit.algorithms.words import ADASUM_ON, ADASUM_ON_HOST, ADASUM_SCOPES, WHOLE_TAILS
from labkit.base.arguments import choice, wrong
from labkit.errors import InputError
from labkit.steps.state import (
    bounds,
    cast_like,
    copied,
    flat,
    integer_of,
    part_of,
    set_state,
    state,
)
from labkit.steps.update import Summary, UpdateStage


class AdasumUpdate(UpdateStage):
    """The update stage of Adasum: collects the workers' vectors in a bank and combines them.

    Args:
        optimizer: any ``nn.Optimizer``.
        workers: as in ``AdasumStep``, like the arguments below.
        on: ``updates`` or ``gradients``.
        reduction: ``adasum``, ``mean`` or ``sum``.
        scope: ``layer`` or ``network``.
        node_size: ranks per node.
        freeze: a ``GradFreezeUpdate``; no worker moves the parameters that it freezes.

    Raises:
        InputError: if an argument has an invalid value, there is only one worker, or replicas
            differ.
    """

    needs_buffer = True
    chooses_ranks = True
    tails = WHOLE_TAILS

    def __init__(
        self,
        optimizer: nn.Optimizer,
        *,
        workers: int = 1,
        on: str = "updates",
        reduction: str = "adasum",
        scope: str = "layer",
        node_size: int = 1,
        freeze: GradFreezeUpdate | None = None,
    ):
        super().__init__(optimizer)
        if not isinstance(freeze, GradFreezeUpdate | None):
            raise wrong("freeze", freeze, "a GradFreezeUpdate or None")
        if freeze is not None and freeze.optimizer is not optimizer:
            raise InputError("freeze: expected a stage of the same optimizer, got one of another")
        self.freeze, self.optimized = freeze, freeze or optimizer
        choice("on", on, ADASUM_ON)
        choice("scope", scope, ADASUM_SCOPES)
        self.team = team = Team(workers, node_size)
        self.rank_group = team.rank_group
        self.group_factor = 1 if team.ranks > 1 else node_size
        self.sizes = tuple(parameter.size for parameter in self.parameters)
        self.starts, self.ends = zip(*bounds(self.sizes), strict=True)
        self.numbers = sum(self.sizes)
        layers = self.sizes if scope == "layer" else (self.numbers,)
        self.combination = combination(reduction, layers, team.total)
        self.may_need_fallback = reduction == "adasum"
        self.on_updates = on == "updates"
        self.workers = self.turns = team.workers
        # rows: the workers' vectors, each followed by its notes. worker: whose turn it is.
        rows = Tensor(np.zeros((self.workers, self.numbers + NOTES), np.float32))
        self.rows = Parameter(rows, name="adasum.rows", requires_grad=False)
        self.worker = state("adasum_worker", 0)
        # needs_fallback: 1 while the full bank waits for ``_Whole`` to combine it.
        self.needs_fallback = state("adasum_unsure", 0)
        self.whole = _Whole(self)
        settings: dict[str, object] = {"on": on, "reduction": reduction, "scope": scope}
        settings["team"] = team.sizes.text()
        self.settings = settings | dict(freeze.settings if freeze else {})
        if self.on_updates:
            self._keep_states()
            if team.ranks > 1:
                self.settings["rank"] = team.rank

    def attach(self, step: nn.Cell) -> None:
        super().attach(step)
        if self.freeze:
            self.freeze.attach(step)
        self.team.check_replicas(self.parameters)

    def description(self) -> str:
        words = self.settings
        text = f"{words['reduction']} over {words['team']}, on {words['on']}, by {words['scope']}"
        return f"{text}; {self.freeze.description()}" if self.freeze else text

    def _keep_states(self) -> None:
        # start, start_step: the weights and the step count from which every worker starts.
        self.start = ParameterTuple(copied(p, "adasum.start") for p in self.parameters)
        self.start_step = copied(self.optimizer.global_step, "adasum.start")
        # banks: each optimizer state twice for each worker. Half ``side`` holds the state before
        # the current update, the other half receives the state after it, so that a dropped update
        # leaves no trace.
        self.states = ParameterTuple(states_of(self.optimizer) if self.workers > 1 else ())
        self.banks = ParameterTuple(bank_of(s, 2 * self.workers) for s in self.states)
        self.side = state("adasum_side", 0)

    # --- in compiled graphs --------------------------------------------------------------------

    def take(self, gradients: tuple, extras: tuple, summary: Summary) -> object:
        """Put a worker's vector, made from its averaged gradients, and its notes into the bank."""
        loss_sum, weight, norm, images = summary
        gradients = self.map(cast_like, gradients, self.parameters)
        if self.freeze is not None:
            gradients = self.freeze.masked(gradients)
        present = ops.cast(1.0, ms.float32)
        # Times 1.0: in PyNative mode Stack takes a Parameter among Tensors for another type.
        notes = (1.0 * loss_sum, 1.0 * weight, ops.cast(images, ms.float32), norm, present)
        if self.on_updates:
            vector = self.moved_by(gradients)
        else:
            vector = ops.concat(self.map(flat, gradients))
        return self._put(ops.concat((vector, ops.stack(notes))))

    def take_nothing(self) -> object:
        """Put zeros into the bank for a worker without a gradient; its state is unchanged."""
        if self.on_updates and self.workers > 1:
            self.load_states()
            self.store_states()
        return self._put(ops.zeros((self.numbers + NOTES,), ms.float32))

    def close(self, done: object) -> object:
        """Give the next worker its turn, or combine a full bank."""
        if self.workers == 1:
            return self.combine(done)
        turn = ops.assign_add(self.worker, ops.depend(1, done))
        combined: object = False
        if turn >= self.workers:
            combined = self.combine(turn)
        return ops.depend(True, combined)

    def combine(self, done: object) -> object:
        """Combine the full bank and move the weights, after all workers have had their turn."""
        rows, notes = self.gathered()
        vector, sure = self.combination.attempt(ops.depend(rows, done), notes[PRESENT])
        # All ranks hold the same rows, but one that rounds differently and alone takes the second
        # graph would wait there for the others forever.
        sure = self.team.all_of(sure)
        some = ops.reduce_sum(notes[WEIGHT]) > 0
        uncertain = ops.logical_and(some, ops.logical_not(sure))
        moved = ops.assign(self.needs_fallback, ops.cast(uncertain, ms.int32))
        if ops.logical_and(some, sure):
            moved = self._move(ops.depend(vector, moved), notes)
        return ops.depend(self.start_anew(), moved)

    def _move(self, vector: Tensor, notes: tuple) -> object:
        """Record an update from its five ``notes`` and apply its combined vector (D,)."""
        weight = ops.reduce_sum(notes[WEIGHT])
        loss = ops.reduce_sum(notes[LOSS_SUM]) / weight
        norm = ops.reduce_sum(notes[NORM]) / ops.reduce_sum(notes[PRESENT])
        images = ops.cast(ops.reduce_sum(notes[IMAGES]), ms.int32)
        noted = self.record.note(loss, norm, images)
        moved = self.construct(ops.depend(vector, noted))
        return ops.depend(ops.assign_add(self.record.updates, 1), moved)

    def _put(self, row: Tensor) -> object:
        if self.workers == 1:
            done = ops.assign(self.rows, ops.expand_dims(row, 0))
        else:
            index = ops.reshape(self.worker, (1,))
            done = ops.scatter_update(self.rows, index, ops.expand_dims(row, 0))
        return ops.depend(True, done)

    def moved_by(self, gradients: tuple) -> Tensor:
        """Return what the worker's own optimizer would add to the weights; they are unchanged."""
        self.map(ops.assign, self.start, self.parameters)
        ops.assign(self.start_step, self.optimizer.global_step)
        if self.workers > 1:
            self.load_states()
        done = self.optimized(gradients)
        if self.workers > 1:
            done = (done, self.store_states())
        moves = self.map(difference, self.parameters, self.start)
        vector = ops.depend(ops.concat(moves), done)
        restored = self.map(ops.assign, self.parameters, self.start)
        counted = ops.assign(self.optimizer.global_step, self.start_step)
        return ops.depend(vector, (restored, counted))

    def load_states(self) -> bool:
        index = ops.reshape(self.side * self.workers + self.worker, (1,))
        self.map(ops.partial(load, index), self.states, self.banks)
        return True

    def store_states(self) -> bool:
        index = ops.reshape((1 - self.side) * self.workers + self.worker, (1,))
        self.map(ops.partial(store, index), self.states, self.banks)
        return True

    def gathered(self) -> tuple[Tensor, tuple]:
        """Return the whole team's vectors (total, D) and their five notes, (total,) each."""
        # No indexing: it adds 27 ms to the compilation of a graph, and 9 ms for each index.
        rows = self.team(self.rows)
        notes = ops.slice(rows, (0, self.numbers), (rows.shape[0], NOTES))
        return ops.slice(rows, (0, 0), (rows.shape[0], self.numbers)), ops.unstack(notes, 1)

    def construct(self, vector: Tensor) -> object:
        """Move the weights by the combined vector."""
        parts = self.map(ops.partial(part_of, vector), self.starts, self.ends, self.parameters)
        if self.on_updates:
            done = self.map(ops.assign_add, self.parameters, parts)
            ops.assign_add(self.optimizer.global_step, 1)
        else:
            done = self.optimized(parts)
        return ops.depend(True, done)

    def start_anew(self) -> bool:
        """Give the first worker its turn again; keep the workers' new optimizer states."""
        ops.assign(self.worker, 0)
        if self.on_updates:
            ops.assign(self.side, 1 - self.side)
        return True

    # --- on the host ---------------------------------------------------------------------------

    def host_work(self) -> str:
        return ADASUM_ON_HOST if self.may_need_fallback else ""

    def before(self, step: nn.Cell, batch: tuple) -> None:
        """Finish an update that was interrupted between its graphs; its bank is still full."""
        self._combine_whole()

    def between(self, step: nn.Cell, batch: tuple, loss: Tensor | None) -> None:
        self._combine_whole()

    def _combine_whole(self) -> None:
        if self.may_need_fallback and integer_of(self.needs_fallback):
            self.whole()

    def turns_taken(self) -> int:
        return integer_of(self.worker)

    def reset(self) -> None:
        set_state(self.worker, 0)

    def end_epoch(self, step: nn.Cell) -> None:
        self.team.check_replicas(self.parameters)

    def vectors(self) -> dict[str, np.ndarray]:
        """Return each parameter's vectors (workers, size) that this process last contributed."""
        ends = np.cumsum(self.sizes)[:-1]
        # A copy: on CPU asnumpy is the bank itself, which the next call overwrites.
        rows = self.rows.asnumpy()[:, : self.numbers].copy()
        names = [parameter.name for parameter in self.parameters]
        return dict(zip(names, np.split(rows, ends, axis=1), strict=True))


class _Whole(nn.Cell):
    """The compiled graph that combines a bank with ``ByTree`` if the first attempt is not sure.

    It is a separate graph because nested conditions are costly: with it inside the step's graph, a
    step on two ranks took 30 to 35 ms instead of 16 to 21.
    """

    def __init__(self, update: AdasumUpdate):
        super().__init__(auto_prefix=False)
        self.gathered, self._move = update.gathered, update._move
        self.needs_fallback = update.needs_fallback
        # Mean and sum are always sure.
        self.by_tree = getattr(update.combination, "by_tree", update.combination)

    def construct(self) -> Tensor:
        rows, notes = self.gathered()
        # All ranks use the tree, even those that were sure: the bits are the same everywhere.
        moved = self._move(self.by_tree(rows), notes)
        return ops.assign(self.needs_fallback, ops.depend(0, moved))
