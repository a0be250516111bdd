r"""What a worker's own optimizer would add to the weights: d = optimizer(w, g) - w, (D,).

An optimizer that treats each number by itself gives the same d if all weights are one vector, with
as many operators in the graph as one weight needs. (The CPU kernel of ``nn.Adam`` rounds the last
numbers of a tensor unlike the others: 20 of 78 000 were off by 1.5e-8.) Any other optimizer runs on
the weights themselves, which are then put back.
"""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.algorithms.adasum.workers import SETTINGS, WorkerStates, states_of
from labkit.base.arguments import wrong
from labkit.optimizers import AdamW
from labkit.steps.state import at, bounds, copied, flat, set_state

ELEMENTWISE = (nn.SGD, nn.Momentum, nn.Adam, AdamW)
_STATES = (
    *("accum", "stat", "moments", "moment1", "moment2", "vhat", "m", "v"),
    *("beta1_power", "beta2_power", "made"),
)
# What an ``nn.Optimizer`` knows of its groups; the tuples have an element for each weight.
_BY_WEIGHT = (
    *("is_group", "is_group_lr", "dynamic_lr", "dynamic_weight_decay", "exec_weight_decay"),
    *("decay_flags", "dynamic_decay_flags", "grad_centralization_flags"),
)


def moves_of(optimizer: nn.Optimizer, workers: int, halves: int) -> nn.Cell:
    """Return the cell for an optimizer; ``halves`` as in ``WorkerStates``."""
    return (MovesOfVectors if elementwise(optimizer) else Moves)(optimizer, workers, halves)


def refuse_others(expected: Sequence[tuple[Parameter, Parameter | np.ndarray]]) -> None:
    """Refuse a state in the optimizer that is none of the rows beside it: it was set from outside.

    They are those of the workers, or what the optimizer had before, if it is not used.
    """
    for own, rows in expected:
        # Bits: a NaN is not equal to itself. On CPU asnumpy copies nothing.
        bits = np.dtype(f"u{own.itemsize}")
        value = own.asnumpy().reshape(-1).view(bits)
        rows = rows.asnumpy() if isinstance(rows, Parameter) else rows
        rows = rows.reshape(len(rows), -1).view(bits)
        for i in np.flatnonzero(rows[:, 0] == value[0]):
            if (rows[i] == value).all():
                break
        else:
            text = "the state of a worker, which each has for itself, in adasum.bank"
            raise wrong(own.name, "values set from outside", text)


def elementwise(optimizer: nn.Optimizer) -> bool:
    """Return whether the optimizer treats each number by itself, all of them float32."""
    others = [getattr(optimizer, name, False) for name in ("use_lazy", "use_offload")]
    others += getattr(optimizer, "grad_centralization_flags", ())
    others += [weight.dtype != ms.float32 for weight in optimizer.parameters]
    return type(optimizer) in ELEMENTWISE and not any(others)


class Moves(nn.Cell):
    """(gradients, worker) -> d, made by the optimizer itself, with the states of a worker."""

    def __init__(self, optimizer: nn.Optimizer, workers: int, halves: int):
        super().__init__(auto_prefix=False)
        self.optimizer, self.parameters, self.map = optimizer, optimizer.parameters, ops.HyperMap()
        # start, start_step: the weights and the step count from which every worker starts.
        self.start = ParameterTuple(copied(p, "adasum.start") for p in self.parameters)
        self.start_step = copied(optimizer.global_step, "adasum.start")
        self.held = [*self.start, self.start_step]
        self.states = WorkerStates(states_of(optimizer), workers, halves)
        self.expected = list(zip(self.states.states, self.states.banks, strict=True))

    def construct(self, gradients: tuple, worker: Tensor) -> Tensor:
        self.map(ops.assign, self.start, self.parameters)
        ops.assign(self.start_step, self.optimizer.global_step)
        self.states.load(worker)
        done = (self.optimizer(gradients), self.states.store(worker))
        moves = self.map(_difference, self.parameters, self.start)
        vector = ops.depend(ops.concat(moves), done)
        restored = self.map(ops.assign, self.parameters, self.start)
        counted = ops.assign(self.optimizer.global_step, self.start_step)
        return ops.depend(vector, (restored, counted))


class MovesOfVectors(nn.Cell):
    """The same, made by a twin of the optimizer over one vector a group of weights.

    A group has one rate and one decay. The optimizer's own states are not used.
    """

    def __init__(self, optimizer: nn.Optimizer, workers: int, halves: int):
        super().__init__(auto_prefix=False)
        self.parameters, self.map = optimizer.parameters, ops.HyperMap()
        groups = _groups(optimizer)
        # order: of the weights, group by group; starts, ends: of each weight in that order.
        self.order: tuple = sum(groups, ())
        found = bounds([self.parameters[i].size for i in self.order])
        self.starts, self.ends = zip(*(found[i] for i in np.argsort(self.order)), strict=True)
        self.sorted = self.order == tuple(range(len(self.order)))
        sizes = [sum(self.parameters[i].size for i in group) for group in groups]
        self.group_starts, self.group_ends = zip(*bounds(sizes), strict=True)
        self.twin = _twin(optimizer, groups)
        self.held = [*self.twin.parameters, *states_of(self.twin)]
        self.states = WorkerStates(states_of(self.twin), workers, halves)
        own = states_of(optimizer)
        kept = [(p, p.asnumpy().reshape(1, -1).view(f"u{p.itemsize}")) for p in own]
        # One number stands for a state of equal ones.
        self.expected = [(p, v[:, : 1 if (v == v[0, 0]).all() else None].copy()) for p, v in kept]

    def construct(self, gradients: tuple, worker: Tensor) -> Tensor:
        start = self.joined(self.parameters)
        self.map(ops.assign, self.twin.parameters, start)
        self.states.load(worker)
        done = (self.twin(self.joined(gradients)), self.states.store(worker))
        moves = self.map(ops.sub, ops.depend(self.twin.parameters, done), start)
        vector = moves[0] if len(moves) == 1 else ops.concat(moves)
        if self.sorted:
            return vector
        return ops.concat(self.map(ops.partial(_cut, vector), self.starts, self.ends))

    def joined(self, tensors: tuple) -> tuple:
        """Return the vectors of the groups."""
        if not self.sorted:
            tensors = self.map(ops.partial(at, tensors), self.order)
        vector = ops.concat(self.map(_flat, tensors))
        if len(self.group_ends) == 1:
            return (vector,)
        return self.map(ops.partial(_cut, vector), self.group_starts, self.group_ends)


def _groups(optimizer: nn.Optimizer) -> list[tuple[int, ...]]:
    """Return the places of the weights by rate and by the decay that each really has."""
    groups: dict[tuple, list[int]] = {}
    for i in range(len(optimizer.parameters)):
        rate = id(optimizer.learning_rate[i]) if optimizer.is_group_lr else None
        decay = optimizer.group_weight_decay[i] if optimizer.is_group else None
        decays = optimizer.exec_weight_decay and optimizer.decay_flags[i]
        groups.setdefault((rate, decay, decays), []).append(i)
    return list(map(tuple, groups.values()))


def _twin(optimizer: nn.Optimizer, groups: list[tuple[int, ...]]) -> nn.Optimizer:
    """Return an optimizer of vectors, with the rates, decays, momentum and count of ``optimizer``.

    It leaves the count as it is, and starts with the states that ``optimizer`` has.
    """
    vectors = [
        Parameter(Tensor(_values(optimizer.parameters, group)), name=f"vector.{number}")
        for number, group in enumerate(groups)
    ]
    given = dict(getattr(optimizer, "init_args", ()))
    given.pop("kwargs", None)
    if isinstance(optimizer, AdamW):
        given = {name: getattr(optimizer, name) for name in ("beta1", "beta2", "eps")}
    twin = type(optimizer)(vectors, 0.0, **given)
    for name in (n for n in (*SETTINGS, *_BY_WEIGHT) if hasattr(optimizer, n)):
        value = getattr(optimizer, name)
        if isinstance(value, tuple | nn.CellList):
            firsts = [value[group[0]] for group in groups]
            cells = isinstance(value, nn.CellList)
            value = nn.CellList(firsts, auto_prefix=False) if cells else type(value)(firsts)
        if hasattr(twin, name):
            delattr(twin, name)  # a Parameter, in whose place a Cell may come
        setattr(twin, name, value)
    for name in (n for n in _STATES if hasattr(optimizer, n)):
        values = getattr(optimizer, name)
        if isinstance(values, Parameter):
            set_state(getattr(twin, name), values.asnumpy())
        else:
            for own, group in zip(getattr(twin, name), groups, strict=True):
                set_state(own, _values(values, group))
    twin.global_step_increase_tensor = Tensor([0], ms.int32)
    for own in (*vectors, *states_of(twin)):
        own.name, own.requires_grad = f"adasum.{own.name}", False
    return twin


def _values(tensors: Sequence[Parameter], group: tuple[int, ...]) -> np.ndarray:
    return np.concatenate([tensors[i].asnumpy().ravel() for i in group])


def _difference(a: Tensor, b: Tensor) -> Tensor:
    return flat(a) - flat(b)


_reshape = ops.Reshape()  # a function of ``ops`` is compiled for each weight


def _flat(tensor: Tensor) -> Tensor:
    return _reshape(tensor, (-1,))


def _cut(vector: Tensor, start: int, end: int) -> Tensor:
    return ops.slice(vector, (start,), (end - start,))
