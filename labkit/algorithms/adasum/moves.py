"""What a worker's own optimizer would add to the weights: d = optimizer(w, g) - w, (D,)."""

import copy

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.algorithms.adasum.workers import SETTINGS, WorkerStates, changed, states_of
from labkit.optimizers import AdamW
from labkit.steps.state import at, bounds, copied, flat, state

ELEMENTWISE = (nn.SGD, nn.Momentum, nn.Adam, AdamW)


def moves_of(optimizer: nn.Optimizer, workers: int, halves: int) -> nn.Cell:
    """Return the cell (gradients, worker) -> d for an optimizer; ``halves`` of ``WorkerStates``."""
    return (MovesOfVectors if elementwise(optimizer) else Moves)(optimizer, workers, halves)


def elementwise(optimizer: nn.Optimizer) -> bool:
    """Return whether the optimizer treats each number by itself, all of them float32."""
    others = [getattr(optimizer, name, False) for name in ("use_lazy", "use_offload")]
    others += getattr(optimizer, "grad_centralization_flags", ())
    others += [weight.dtype != ms.float32 for weight in optimizer.parameters]
    return type(optimizer) in ELEMENTWISE and not any(others)


class Moves(nn.Cell):
    """The optimizer itself runs, with the states of a worker; the weights are then put back."""

    def __init__(self, optimizer: nn.Optimizer, workers: int, halves: int):
        super().__init__(auto_prefix=False)
        object.__setattr__(self, "parameters", optimizer.parameters)  # as in UpdateStage
        self.optimizer, self.map = optimizer, ops.HyperMap()
        # start, start_step: the weights and the step count from which every worker starts.
        self.start = ParameterTuple(copied(p, "adasum.start") for p in optimizer.parameters)
        self.start_step = copied(optimizer.global_step, "adasum.start")
        self.held, self.states = self.start, WorkerStates(states_of(optimizer), workers, halves)

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

    def refuse_others(self) -> None:
        self.states.refuse_others()


class MovesOfVectors(nn.Cell):
    """A twin of the optimizer runs, over one vector for each group of weights of equal settings.

    d is the same, for as many operators as one weight takes a group. (The CPU kernel of ``nn.Adam``
    rounds the last numbers of a tensor unlike others: 20 of 78 000 were off by 1.5e-8.) The
    optimizer's own states are not used.
    """

    def __init__(self, optimizer: nn.Optimizer, workers: int, halves: int):
        super().__init__(auto_prefix=False)
        object.__setattr__(self, "parameters", optimizer.parameters)
        self.map, self.groups = ops.HyperMap(), groups_of(optimizer)
        # starts, ends: of each weight in the groups' vectors, one after the other.
        order = sum(self.groups, ())
        found = bounds([self.parameters[i].size for i in order])
        self.starts, self.ends = zip(*(found[i] for i in np.argsort(order)), strict=True)
        self.twin = twin_of(optimizer, self.groups)
        own, self.unused = states_of(self.twin), states_of(optimizer)
        self.held, self.states = [*self.twin.parameters, *own], WorkerStates(own, workers, halves)
        self.seen = state("adasum_seen", _sums(self.unused))

    def construct(self, gradients: tuple, worker: Tensor) -> Tensor:
        start = self.joined(self.parameters)
        self.map(ops.assign, self.twin.parameters, start)
        self.states.load(worker)
        done = (self.twin(self.joined(gradients)), self.states.store(worker))
        moves = self.map(ops.sub, ops.depend(self.twin.parameters, done), start)
        if len(moves) == 1:
            return moves[0]
        return ops.concat(self.map(ops.partial(_cut, ops.concat(moves)), self.starts, self.ends))

    def joined(self, tensors: tuple) -> tuple:
        """Return the vectors of the groups."""
        vectors: tuple = ()
        for group in self.groups:
            own = self.map(ops.partial(at, tensors), group)
            vectors += (ops.concat(self.map(flat, own)),)
        return vectors

    def refuse_others(self) -> None:
        """Refuse a state that was set in the optimizer, which would have no effect."""
        for i in np.flatnonzero(_sums(self.unused) != self.seen.asnumpy()):
            raise changed(self.unused[i])


def groups_of(optimizer: nn.Optimizer) -> tuple[tuple[int, ...], ...]:
    """Return the places of the weights by rate and by the decay that each really has."""
    groups: dict[tuple, tuple[int, ...]] = {}
    for i in range(len(optimizer.parameters)):
        rate = id(optimizer.learning_rate[i]) if optimizer.is_group_lr else None
        decay = optimizer.group_weight_decay[i] if optimizer.is_group else None
        key = (rate, decay, optimizer.exec_weight_decay and optimizer.decay_flags[i])
        groups[key] = (*groups.get(key, ()), i)
    return tuple(groups.values())


def twin_of(optimizer: nn.Optimizer, groups: tuple[tuple[int, ...], ...]) -> nn.Optimizer:
    """Return an optimizer of vectors with the settings, the count and the states of ``optimizer``.

    It does not advance the count.
    """
    held, twin, count = vars(optimizer), copy.copy(optimizer), len(optimizer.parameters)
    own, cells = held["_params"], held["_cells"]
    # The attributes of a copy are those of the original until it has a dictionary of its own.
    settings = {name: own[name] for name in SETTINGS if name in own}
    twin.__dict__ = held | {"_params": settings, "_cells": dict(cells)}
    twin.global_step_increase_tensor = Tensor([0], ms.int32)
    by_weight = {name: value for name, value in (held | cells).items() if _length(value) == count}
    vectors: dict[int, ParameterTuple] = {}  # one attribute may have several names
    for name, value in by_weight.items():
        if isinstance(value, ParameterTuple) and name not in SETTINGS:
            made = (_vector(value, group) for group in groups)
            new = vectors[id(value)] = vectors.get(id(value)) or ParameterTuple(made)
        elif name in cells:
            new = nn.CellList([value[group[0]] for group in groups], auto_prefix=False)
        else:
            new = type(value)(value[group[0]] for group in groups)
        setattr(twin, name, new)
    inside = {id(each) for value in by_weight.values() for each in value}
    for name, value in own.items():
        if name not in SETTINGS and id(value) not in inside:
            setattr(twin, name, copied(value, "adasum"))
    return twin


def _length(value: object) -> int:
    return len(value) if isinstance(value, tuple | nn.CellList) else -1


def _vector(tensors: ParameterTuple, group: tuple[int, ...]) -> Parameter:
    values = np.concatenate([tensors[i].asnumpy().ravel() for i in group])
    name = f"adasum.vector.{tensors[group[0]].name}"
    return Parameter(Tensor(values), name=name, requires_grad=False)


def _sums(states: list[Parameter]) -> np.ndarray:
    """Return the sum of the bits of each state: values set from outside hardly have the same."""
    bits = [each.asnumpy().reshape(-1).view(f"u{each.itemsize}") for each in states]
    return np.array([each.sum(dtype=np.uint32) for each in bits]).astype(np.int32)


def _difference(a: Tensor, b: Tensor) -> Tensor:
    return flat(a) - flat(b)


def _cut(vector: Tensor, start: int, end: int) -> Tensor:
    return ops.slice(vector, (start,), (end - start,))
