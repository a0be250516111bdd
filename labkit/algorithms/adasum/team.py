"""The team whose vectors are combined: virtual workers of a process, ranks, and nodes of ranks."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.communication import create_group

from labkit.base.arguments import integer
from labkit.errors import InputError
from labkit.ranks.cluster import gather_bytes, rank_and_size

_groups: set[str] = set()


@dataclass(frozen=True)
class TeamSize:
    """The size of a team, whether or not its ranks have been started.

    Attributes:
        workers: virtual workers in each process.
        node_size: ranks per node: their gradients are averaged, and the node counts as one process
            (in a single process it multiplies the micro-batches that a worker averages).
        ranks: number of processes.

    Raises:
        InputError: if a count is below 1, ``ranks`` > 1 is not a multiple of ``node_size``, or the
            team has only one worker.
    """

    workers: int
    node_size: int
    ranks: int

    def __post_init__(self) -> None:
        integer("workers", self.workers)
        integer("node_size", self.node_size)
        if self.ranks > 1 and self.ranks % self.node_size:
            raise InputError(
                f"node_size is {self.node_size} and there are {self.ranks} ranks; expected a "
                "divisor"
            )
        if self.total < 2:
            raise InputError(
                f"nothing to combine: {self.text()}; expected at least two workers (workers=..., "
                "or more ranks, or a smaller node_size)"
            )

    @property
    def nodes(self) -> int:
        """The number of nodes; a single process counts as one."""
        return self.ranks // self.node_size if self.ranks > 1 else 1

    @property
    def total(self) -> int:
        """The number of workers whose vectors are combined."""
        return self.nodes * self.workers

    def text(self) -> str:
        """Return a description of the team."""
        parts = [f"{self.workers} in each process" if self.ranks > 1 else f"{self.workers} virtual"]
        if self.ranks > 1:
            parts.append(f"{self.ranks} ranks")
            if self.node_size > 1:
                parts.append(f"{self.nodes} nodes of {self.node_size}, averaged inside")
        elif self.node_size > 1:
            parts.append(f"each the mean of {self.node_size}")
        return f"{self.total} worker{'s' * (self.total > 1)} ({', '.join(parts)})"

    def bytes_received(self, numbers: int) -> int:
        """Return the bytes that one rank receives for ``numbers`` float32 values of each worker."""
        return 4 * (self.ranks - 1) * self.workers * numbers


class Team(nn.Cell):
    """Gather the rows (workers, C) of this process's workers into those of the team (total, C).

    Args:
        workers: as in ``TeamSize``.
        node_size: as in ``TeamSize``.

    Workers are numbered rank by rank, node by node. ``total`` is the number of workers.

    Raises:
        InputError: as in ``TeamSize``.
    """

    def __init__(self, workers: int = 1, node_size: int = 1):
        super().__init__(auto_prefix=False)
        self.rank, self.ranks = rank_and_size()
        self.sizes = sizes = TeamSize(workers, node_size, self.ranks)
        self.workers, self.node_size = workers, node_size
        self.nodes, self.total = sizes.nodes, sizes.total
        self.all_gather = ops.AllGather() if self.ranks > 1 else None
        self.all_reduce = ops.AllReduce() if self.ranks > 1 else None

    @property
    def rank_group(self) -> str:
        """Name of the group of ranks whose gradients are averaged; "" for this rank alone."""
        if self.ranks == 1 or self.node_size == 1:
            return ""
        first = self.rank // self.node_size * self.node_size
        name = f"labkit_node_{first}_{self.node_size}"
        if name not in _groups:
            create_group(name, list(range(first, first + self.node_size)))
            _groups.add(name)
        return name

    def construct(self, rows: Tensor) -> Tensor:
        if self.all_gather is None:
            return rows
        rows = self.all_gather(rows)
        if self.node_size > 1:
            # All ranks of a node hold the same rows; on CPU, AllGather over a subset of the ranks
            # is refused ("only support mccl_world_group").
            shape = (self.nodes, self.node_size, self.workers, rows.shape[-1])
            rows = ops.reshape(rows, shape)[:, 0]
            rows = ops.reshape(rows, (self.total, rows.shape[-1]))
        return rows

    def all_of(self, truth: Tensor) -> Tensor:
        """Return whether ``truth`` () holds on every rank; all ranks get the same answer."""
        if self.all_reduce is None:
            return truth
        return self.all_reduce(ops.cast(truth, ms.float32)) > self.ranks - 0.5

    def check_replicas(self, parameters: Sequence[Parameter]) -> None:
        """Raise ``InputError`` unless all ranks hold the same bits in every parameter."""
        if self.ranks == 1:
            return
        digests = [hashlib.sha256(p.asnumpy().tobytes()).digest() for p in parameters]
        gathered = gather_bytes(b"".join(digests)).reshape(self.ranks, len(parameters), -1)
        differ = np.argwhere((gathered != gathered[0]).any(axis=2).T)
        if differ.size:
            index, rank = differ[0]
            raise InputError(
                f"parameter {parameters[index].name!r} of rank {rank} is not that of rank 0; "
                "expected the same bits on all ranks: the same seed and the same checkpoint"
            )
