"""The workers: who they are, what each of them keeps, and how all ranks come to hold their rows."""

import functools
import hashlib
from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.communication import create_group

from labkit.base.arguments import integer, wrong
from labkit.errors import InputError
from labkit.ranks.cluster import agree, rank_and_size
from labkit.steps.state import optimizers_in, parameters_in, state

# The notes that follow a worker's vector in its row, float32: the sums of w_i L_i, of w_i and of
# rows over its micro-batches; the norm of its averaged gradient before clipping; and 1, or 0 for a
# worker without a finite micro-batch.
NOTES, WEIGHT, PRESENT = 5, 1, 4
# What a callback may change, and the step count: not the state of a worker.
SETTINGS = ("learning_rate", "weight_decay", "momentum", "global_step")


class WorkerStates(nn.Cell):
    """The state of an optimizer, once for each of several workers of this process.

    A bank of two ``halves`` holds each worker's state twice: half ``side`` those before the current
    update, the other one those after it, so that an update dropped halfway leaves no trace.
    """

    def __init__(self, states: list[Parameter], workers: int, halves: int):
        super().__init__(auto_prefix=False)
        self.workers, self.last, self.map = workers, halves - 1, ops.HyperMap()
        self.states = ParameterTuple(states if workers > 1 else ())
        self.banks = ParameterTuple(_bank(each, halves * workers) for each in self.states)
        self.side = state("adasum_side", 0)

    def refuse_others(self) -> None:
        """Refuse a state in the optimizer that is not one of its bank: it was set from outside."""
        for own, bank in zip(self.states, self.banks, strict=True):
            # Bits: a NaN is not equal to itself. On CPU asnumpy copies nothing.
            bits = np.dtype(f"u{own.itemsize}")
            value = own.asnumpy().reshape(-1).view(bits)
            rows = bank.asnumpy().reshape(len(bank), -1).view(bits)
            for i in np.flatnonzero(rows[:, 0] == value[0]):
                if np.array_equal(rows[i], value):
                    break
            else:
                raise changed(own)

    def load(self, worker: Tensor) -> bool:
        """Give the optimizer the state of a worker."""
        if self.workers > 1:
            index = ops.reshape(self.side * self.workers + worker, (1,))
            self.map(ops.partial(_load, index), self.states, self.banks)
        return True

    def store(self, worker: Tensor) -> bool:
        """Keep the optimizer's state as that of a worker after the current update."""
        if self.workers > 1:
            index = ops.reshape((self.last - self.side) * self.workers + worker, (1,))
            self.map(ops.partial(_store, index), self.states, self.banks)
        return True


def changed(own: Parameter) -> InputError:
    """Return the error of a state in the optimizer that was set from outside."""
    expected = "the state of a worker, which each has for itself, in adasum.bank"
    return wrong(own.name, "values set from outside", expected)


def states_of(optimizer: nn.Optimizer) -> list[Parameter]:
    """Return the optimizer's own state: moments and powers of betas, whatever their names."""
    owners = optimizers_in(optimizer)
    settings = [getattr(owner, name, None) for owner in owners for name in SETTINGS]
    kept_out = {id(parameter) for parameter in (*optimizer.parameters, *parameters_in(settings))}
    return [parameter for parameter in optimizer.get_parameters() if id(parameter) not in kept_out]


def _bank(parameter: Parameter, count: int) -> Parameter:
    values = Tensor(np.repeat(parameter.asnumpy()[None], count, 0), parameter.dtype)
    return Parameter(values, name=f"adasum.bank.{parameter.name}", requires_grad=False)


def _load(index: Tensor, value: Parameter, bank: Parameter) -> Tensor:
    return ops.assign(value, ops.reshape(ops.gather(bank, index, 0), value.shape))


def _store(index: Tensor, value: Parameter, bank: Parameter) -> Tensor:
    return ops.scatter_update(bank, index, ops.expand_dims(value, 0))


class Team(nn.Cell):
    """All workers, rank by rank: rows (workers, C) of this process -> those of all, (total, C).

    ``workers`` and ``node_size`` are those of ``AdasumStep``; a node counts as one process.
    """

    def __init__(self, workers: int = 1, node_size: int = 1):
        super().__init__(auto_prefix=False)
        self.workers, self.node_size = integer("workers", workers), integer("node_size", node_size)
        self.rank, self.ranks = rank, ranks = rank_and_size()
        if ranks > 1 and ranks % node_size:
            raise InputError(
                f"node_size is {node_size} and there are {ranks} ranks; expected a divisor"
            )
        self.nodes = ranks // node_size if ranks > 1 else 1
        self.total = self.nodes * workers
        if self.total < 2:
            raise InputError(
                f"nothing to combine: {self.text()}; expected at least two workers (workers=..., "
                "or more ranks, or a smaller node_size)"
            )
        if ranks > 1:
            self.all_gather, self.all_reduce = ops.AllGather(), ops.AllReduce()
        # Which of all rows this rank fills: those of its node, if it is the first rank there.
        node, place = divmod(rank, node_size)
        filled = (np.arange(self.total) // workers == node) & (place == 0)
        self.filled, self.nothing = Tensor(filled[:, None]), Tensor(-0.0, ms.float32)

    def construct(self, rows: Tensor) -> Tensor:
        if self.ranks == 1:
            return rows
        if self.node_size == 1:
            return self.all_gather(rows)
        # All ranks of a node hold the same rows: one of them sends. (AllGather over a subset of the
        # ranks is refused on CPU: "only support mccl_world_group".) The others add -0.0, which
        # changes no bit, not even those of a 0.
        own = ops.select(self.filled, ops.tile(rows, (self.nodes, 1)), self.nothing)
        return self.all_reduce(own)

    def all_of(self, truth: Tensor) -> Tensor:
        """Return whether ``truth`` () holds on every rank; all ranks get the same answer."""
        if self.ranks == 1:
            return truth
        return self.all_reduce(ops.cast(truth, ms.float32)) > self.ranks - 0.5

    def rank_group(self) -> str:
        """Return the group of ranks whose gradients are averaged; "" for this rank alone."""
        if self.ranks == 1 or self.node_size == 1:
            return ""
        return _node_group(self.rank // self.node_size * self.node_size, self.node_size)

    def check_replicas(self, weights: Sequence[Parameter]) -> None:
        """Raise ``InputError`` unless all ranks hold the same bits in every parameter."""
        if self.ranks > 1:
            data = b"".join(weight.asnumpy().tobytes() for weight in weights)
            agree(weights=hashlib.sha256(data).hexdigest())

    def text(self) -> str:
        """Return "2 workers (1 in each process, 4 ranks, 2 nodes of 2, ...)"."""
        parts, several = [f"{self.workers} virtual"], self.node_size > 1
        if self.ranks > 1:
            parts = [f"{self.workers} in each process", f"{self.ranks} ranks"]
            parts += [f"{self.nodes} nodes of {self.node_size}, averaged inside"] * several
        elif several:
            parts.append(f"each the mean of {self.node_size}")
        return f"{self.total} worker{'s' * (self.total > 1)} ({', '.join(parts)})"


@functools.cache
def _node_group(first: int, size: int) -> str:
    name = f"labkit_node_{first}_{size}"
    create_group(name, list(range(first, first + size)))
    return name
