"""The compiled graphs of one update: Project, Prepare, Trials, then Finish or Descend.

Vectors of all M weights are flat float32, in the order of the optimizer's parameters. P's shard is
an argument of the two graphs that read it, not a Parameter: a checkpoint holds only its checksum,
not its 3.2 GB for 32 components of 25 million weights.
"""

import math
from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.algorithms.subspace.basis import Basis
from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.ranks.cluster import rank_and_size
from labkit.steps.state import bounds, copied, flat, part_of, running_statistics

_COLUMNS = 1 << 18  # read at a time: 64 MB in float64 for 32 rows


class Shard:
    """This rank's components of a basis, in the order of the optimizer's parameters.

    ``tensor`` is (L, M) float32, L = ceil(K / ranks); rows beyond the K components are zero. Among
    the M numbers, parameter i begins at ``starts[i]`` and ends at ``ends[i]``.
    """

    def __init__(self, basis: Basis, parameters: Sequence[Parameter]):
        if not isinstance(basis, Basis):
            raise wrong("basis", basis, "a Basis, as Basis.load and Basis.of return")
        basis.check(parameters)
        check_orthonormal(basis.matrix)
        self.components, self.numbers = basis.matrix.shape
        self.starts, self.ends = zip(*bounds([p.size for p in parameters]), strict=True)
        self.rank, self.ranks = rank_and_size()
        self.rows = math.ceil(self.components / self.ranks)
        self.first = self.rank * self.rows
        own = basis.matrix[self.first : self.first + self.rows]
        if basis.names != tuple(parameter.name for parameter in parameters):
            held = bounds([math.prod(shape) for shape in basis.shapes])
            columns = dict(zip(basis.names, held, strict=True))
            own = np.concatenate([own[:, slice(*columns[p.name])] for p in parameters], axis=1)
        if len(own) < self.rows:
            own = np.pad(own, ((0, self.rows - len(own)), (0, 0)))
        self.tensor = Tensor(np.ascontiguousarray(own))

    def of(self, coefficients: np.ndarray) -> Tensor:
        """Return this rank's columns (N, L) of coefficients (N, K)."""
        padded = np.zeros((len(coefficients), self.ranks * self.rows), np.float32)
        padded[:, : self.components] = coefficients
        return Tensor(np.ascontiguousarray(padded[:, self.first : self.first + self.rows]))


def check_orthonormal(matrix: np.ndarray) -> None:
    """Raise ``InputError`` unless P P^T is I for P (K, M), to 1e-3.

    If it is not, the residual contains a part of the subspace. In float32 it differs by 1e-6.
    """
    # In float64: for a row of 25.6 million numbers (ResNet-50) a float32 sum was off by 0.0012.
    products = np.zeros((len(matrix), len(matrix)))
    for start in range(0, matrix.shape[1], _COLUMNS):
        part = np.asarray(matrix[:, start : start + _COLUMNS], np.float64)
        products += part @ part.T
    off = float(np.abs(products - np.eye(len(matrix))).max())
    if not off <= 1e-3:
        raise InputError(
            f"the rows of the basis are not orthonormal: P P^T differs from I by {off:.2g}; "
            "expected at most 0.001"
        )


class _Graph(nn.Cell):
    """Base of the graphs: the step's weights, as Parameters and in one flat vector (M,)."""

    def __init__(self, step: nn.Cell):
        super().__init__(auto_prefix=False)
        self.optimizer, self.weights = step.optimizer, step.optimizer.parameters
        self.starts, self.ends = step.update.basis_shard.starts, step.update.basis_shard.ends
        self.updates, self.pending = step.updates, step.update.pending
        self.all_reduce, self.map = step.gradient.all_reduce, ops.HyperMap()

    def parts(self, vector: Tensor) -> tuple:
        """Return a flat vector (M,) split into one tensor for each Parameter."""
        return self.map(ops.partial(part_of, vector), self.starts, self.ends, self.weights)

    def applied(self, done: object) -> Tensor:
        """Count an update and clear ``pending``, after ``done``."""
        released = ops.assign(self.pending, ops.depend(ops.cast(0, ms.int32), done))
        counted = ops.assign_add(self.updates, 1)
        return ops.depend(True, (released, counted))


class Project(_Graph):
    """P's shard (L, M) -> (P g (padded K,) of all ranks, g (M,)), g from the step's buffer."""

    def __init__(self, step: nn.Cell):
        super().__init__(step)
        self.gradients = step.update.buffer
        self.all_gather = ops.AllGather() if self.all_reduce is not None else None

    def construct(self, basis: Tensor) -> tuple:
        gradient = ops.concat(self.map(flat, self.gradients))
        own = ops.reshape(ops.matmul(basis, ops.reshape(gradient, (-1, 1))), (-1,))
        return own if self.all_gather is None else self.all_gather(own), gradient


class Prepare(_Graph):
    """P's shard (L, M), coefficients (N, L) -> N products (M,) of all ranks, and w (M,)."""

    def construct(self, basis: Tensor, coefficients: Tensor) -> tuple:
        moves = ops.matmul(coefficients, basis)
        if self.all_reduce is not None:
            moves = self.all_reduce(moves)
        # Not moves[0]: the CPU's StridedSlice takes 2.1 ms for a row of 61 684, Unstack 0.1.
        return ops.unstack(moves), ops.concat(self.map(flat, self.weights))


class Trial(_Graph):
    """step size, P^T d (M,), w (M,), rows -> mean loss at w + step size P^T d, weight.

    It is a forward pass in training mode, because the training loss is what is minimised. The graph
    itself restores what the pass changes, so that no interruption leaves a trial's weights behind.
    """

    def __init__(self, step: nn.Cell):
        super().__init__(step)
        self.objective = step.gradient.objective
        self.statistics = running_statistics(step.gradient.loss_net)
        if self.statistics:
            self.kept = ParameterTuple(copied(each, "kept.trial") for each in self.statistics)

    def construct(self, size: Tensor, move: Tensor, start: Tensor, *batch: Tensor) -> tuple:
        if self.statistics:
            self.map(ops.assign, self.kept, self.statistics)
        moved: object = False
        # A condition known only on the device moves the graph to MindSpore's faster executor: 9 ms
        # instead of 13 for 250 images through LeNet on two cores, with the same bits.
        if size != 0:
            moved = ops.depend(True, self.put(start + size * move))
        loss, weight = self.objective(*batch)
        loss = ops.depend(loss, moved)
        restored = self.put(ops.depend(start, loss))
        if self.statistics:
            kept = ops.depend(self.kept, loss)
            restored = (restored, self.map(ops.assign, self.statistics, kept))
        return ops.depend(loss, restored), weight

    def put(self, vector: Tensor) -> tuple:
        """Set the weights to those of a flat vector (M,)."""
        return self.map(ops.assign, self.weights, self.parts(vector))


class Finish(_Graph):
    """w <- optimizer(w + step size P^T d, alpha r), and store what the next update needs.

    From step size, P^T d, P^T P g, w, g and the memory.
    """

    def __init__(self, step: nn.Cell):
        super().__init__(step)
        update = step.update
        self.gamma, self.alpha = float(update.constants.gamma), float(update.constants.alpha)
        self.residual, self.remembered = update.residual, update.remembered

    def construct(
        self,
        size: Tensor,
        move: Tensor,
        inside: Tensor,
        start: Tensor,
        gradient: Tensor,
        *memory: Tensor,
    ) -> Tensor:
        residual = self.gamma * self.residual + (gradient - inside)
        slope = self.alpha * residual
        kept = ops.assign(self.residual, residual)
        moved = self.map(ops.assign, self.weights, self.parts(start + size * move))
        done = self.optimizer(self.parts(ops.depend(slope, (kept, moved))))
        remembered = self.map(ops.assign, self.remembered, memory)
        return self.applied((done, remembered))


class Descend(_Graph):
    """P^T P g (M,) -> w <- optimizer(w, P^T P g), for ``method="sgd"``."""

    def construct(self, inside: Tensor) -> Tensor:
        return self.applied(self.optimizer(self.parts(inside)))
