"""The update stage: each worker's vector goes into a bank; a full bank moves the weights.

    on="updates"     d_i = optimizer_i(w, g_i) - w,    w <- w + Adasum(d_1 .. d_N)
    on="gradients"   w <- optimizer(w, Adasum(g_1 .. g_N))

With ``updates``, every worker starts at the same w and has an optimizer state of its own.
"""

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, ops

from labkit.algorithms.adasum.combination import bounds, combination
from labkit.errors import refuse_unknown
from labkit.steps.gradients import state
from labkit.steps.step import cast_like, copied
from labkit.steps.update import UpdateStage

ON = ("updates", "gradients")
SCOPE = ("layer", "network")
# What a worker notes beside its vector.
LOSS_SUM, WEIGHT, IMAGES, NORM, PRESENT = range(5)
NOTES = 5
# An optimizer's attributes that are no state of its own: what a callback may change, what counts.
SETTINGS = ("learning_rate", "weight_decay", "momentum", "global_step")


class AdasumUpdate(UpdateStage):
    """Bank of the workers' vectors, and what is made of them.

    team                  who is combined
    on, reduction, scope  as in ``AdasumStep``

    Raises ``InputError`` for other names.
    """

    def __init__(self, optimizer, team, *, on="updates", reduction="adasum", scope="layer"):
        super().__init__(auto_prefix=False)
        refuse_unknown("on", on, ON)
        refuse_unknown("scope", scope, SCOPE)
        self.optimizer, self.team = optimizer, team
        self.parameters = optimizer.parameters
        self.sizes = tuple(parameter.size for parameter in self.parameters)
        self.starts, self.ends = zip(*bounds(self.sizes), strict=True)
        self.numbers = sum(self.sizes)
        layers = self.sizes if scope == "layer" else (self.numbers,)
        self.combination = combination(reduction, layers, team.total)
        self.may_be_unsure = reduction == "adasum"
        self.on_updates = on == "updates"
        self.workers = team.workers
        # rows: the workers' vectors, and behind each its notes. worker: whose turn it is.
        self.rows = _zeros("adasum.rows", (self.workers, self.numbers + NOTES))
        self.worker = state("adasum_worker", 0)
        # unsure: 1 where the full bank waits for the whole combination.
        self.unsure = state("adasum_unsure", 0)
        self.map = ops.HyperMap()
        self.settings = {"on": on, "reduction": reduction, "scope": scope, "team": team.text()}
        if self.on_updates:
            self._keep_states()

    def _keep_states(self):
        # start, start_step: the weights and the count of steps that every worker starts from.
        self.start = ParameterTuple(copied(one, "adasum.start") for one in self.parameters)
        self.start_step = copied(self.optimizer.global_step, "adasum.start")
        if self.team.ranks > 1:
            self.settings["rank"] = self.team.rank
        # banks: each state of the optimizer twice for each worker. Half ``side`` holds the state
        # before the update that is under way, the other half takes the state after it, so that an
        # update that is dropped leaves no trace.
        self.states = ParameterTuple(states_of(self.optimizer) if self.workers > 1 else ())
        self.banks = ParameterTuple(_bank(one, 2 * self.workers) for one in self.states)
        self.side = state("adasum_side", 0)

    def enter(self, gradients, notes):
        """Put a worker's vector, made from its averaged ``gradients``, into the bank."""
        if self.on_updates:
            vector = self.moved_by(gradients)
        else:
            vector = ops.concat(self.map(_flat, gradients))
        return self.put(ops.concat((vector, ops.stack(notes))))

    def enter_nothing(self):
        """Put zeros into the bank for a worker that has no gradient; its state stays."""
        if self.on_updates and self.workers > 1:
            self.load_states()
            self.store_states()
        return self.put(ops.zeros((self.numbers + NOTES,), ms.float32))

    def put(self, row):
        if self.workers == 1:
            done = ops.assign(self.rows, ops.expand_dims(row, 0))
        else:
            index = ops.reshape(self.worker, (1,))
            done = ops.scatter_update(self.rows, index, ops.expand_dims(row, 0))
        return ops.depend(True, done)

    def moved_by(self, gradients):
        """Return what the worker's own optimizer would add to the weights, which stay."""
        self.map(ops.assign, self.start, self.parameters)
        ops.assign(self.start_step, self.optimizer.global_step)
        if self.workers > 1:
            self.load_states()
        done = self.optimizer(gradients)
        if self.workers > 1:
            done = (done, self.store_states())
        moves = self.map(_difference, self.parameters, self.start)
        vector = ops.depend(ops.concat(moves), done)
        restored = self.map(ops.assign, self.parameters, self.start)
        counted = ops.assign(self.optimizer.global_step, self.start_step)
        return ops.depend(vector, (restored, counted))

    def load_states(self):
        index = ops.reshape(self.side * self.workers + self.worker, (1,))
        self.map(ops.partial(_load, index), self.states, self.banks)
        return True

    def store_states(self):
        index = ops.reshape((1 - self.side) * self.workers + self.worker, (1,))
        self.map(ops.partial(_store, index), self.states, self.banks)
        return True

    def gathered(self):
        """Return the whole team's vectors (total, D) and notes (total, 5)."""
        rows = self.team(self.rows)
        return rows[:, : self.numbers], rows[:, self.numbers :]

    def attempt(self, rows, notes):
        """Return (the team's vectors combined (D,), whether that is surely right)."""
        return self.combination.attempt(rows, notes[:, PRESENT])

    def construct(self, vector):
        """Move the weights by the combined vector."""
        parts = self.map(ops.partial(_part, vector), self.starts, self.ends, self.parameters)
        if self.on_updates:
            done = self.map(ops.assign_add, self.parameters, parts)
            ops.assign_add(self.optimizer.global_step, 1)
        else:
            done = self.optimizer(parts)
        return ops.depend(True, done)

    def start_anew(self):
        """Let the first worker have its turn; what the others have done is kept."""
        ops.assign(self.worker, 0)
        if self.on_updates:
            ops.assign(self.side, 1 - self.side)
        return True


def states_of(optimizer) -> list[Parameter]:
    """Return the Parameters that the optimizer changes for itself: moments and powers of betas."""
    kept_out = {id(parameter) for parameter in optimizer.parameters}
    for name in SETTINGS:
        kept_out |= {id(parameter) for parameter in _parameters(getattr(optimizer, name, None))}
    return [one for one in optimizer.get_parameters() if id(one) not in kept_out]


def _parameters(value):
    """Return the Parameters in a Parameter, a Cell, or a list or tuple of them."""
    if isinstance(value, Parameter):
        return [value]
    if isinstance(value, list | tuple):
        return [one for part in value for one in _parameters(part)]
    return list(value.get_parameters()) if hasattr(value, "get_parameters") else []


def _bank(parameter, count):
    values = np.repeat(parameter.asnumpy()[None], count, 0)
    return Parameter(
        Tensor(values, parameter.dtype), name=f"adasum.bank.{parameter.name}", requires_grad=False
    )


def _zeros(name, shape):
    return Parameter(Tensor(np.zeros(shape, np.float32)), name=name, requires_grad=False)


def _flat(tensor):
    return ops.reshape(ops.cast(tensor, ms.float32), (-1,))


def _load(index, one, bank):
    return ops.assign(one, ops.reshape(ops.gather(bank, index, 0), one.shape))


def _store(index, one, bank):
    return ops.scatter_update(bank, index, ops.expand_dims(one, 0))


def _difference(a, b):
    return _flat(ops.cast(a, ms.float32) - ops.cast(b, ms.float32))


def _part(vector, start, end, parameter):
    return cast_like(ops.reshape(vector[start:end], parameter.shape), parameter)
