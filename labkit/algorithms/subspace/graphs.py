"""The compiled graphs of one update in the subspace.

    Project   P, g -> P g                      P is read once here,
    Prepare   P, (d, P g) -> P^T d, P^T P g    and once here, for both products
    Trial     step size, rows -> loss at w + step size P^T d; restores w and BatchNorm
    Finish    w <- optimizer(w + step size P^T d, alpha r), and stores what the next update needs
    Descend   P, P g -> w <- optimizer(w, P^T P g), for ``method="sgd"``

Vectors of all M weights are flat float32, in the order of the optimizer's parameters. P's shard is
an argument of the graphs that read it, not a Parameter: a checkpoint does not hold it (3.2 GB for
32 components of 25 million weights), only its checksum. The vectors also pass from graph to graph
as arguments, since they belong to one update.
"""

import math
from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.algorithms.subspace.basis import Basis, check_orthonormal
from labkit.errors import InputError
from labkit.ranks.cluster import rank_and_size
from labkit.steps.state import bounds, copied, flat, part_of, running_statistics


class Shard:
    """This rank's components of a basis, in the order of the optimizer's parameters.

    Args:
        basis: with the matrix (K, M).
        parameters: those of the optimizer, with the names and shapes of the basis in any order.

    Attributes:
        tensor: (L, M) float32, L = ceil(K / ranks); rows beyond the K components are zero.
        components: K.
        numbers: M.
        starts: where each parameter starts among the M numbers; ``ends``: where it ends.

    Raises:
        InputError: if ``basis`` is not a basis, is of other weights, or has rows that are not
            orthonormal.
    """

    def __init__(self, basis: Basis, parameters: Sequence[Parameter]):
        if not isinstance(basis, Basis):
            raise InputError(
                f"basis: expected a Basis, got a {type(basis).__name__}; Basis.load reads one from "
                "its file, Basis.of makes one of snapshots"
            )
        columns = _columns(basis, parameters)
        self.components, self.numbers = basis.matrix.shape
        self.starts, self.ends = zip(*bounds([p.size for p in parameters]), strict=True)
        check_orthonormal(basis.matrix, "the rows of the basis")
        self.rank, self.ranks = rank_and_size()
        self.rows = math.ceil(self.components / self.ranks)
        self.first = self.rank * self.rows
        own = basis.matrix[self.first : self.first + self.rows]
        if columns != [(0, self.numbers)] or len(own) < self.rows:
            padded = np.zeros((self.rows, self.numbers), np.float32)
            parts = [own[:, begin:end] for begin, end in columns]
            padded[: len(own)] = np.concatenate(parts, axis=1)
            own = padded
        self.tensor = Tensor(np.ascontiguousarray(own, np.float32))

    def others(self) -> tuple[Tensor | None, Tensor | None]:
        """Return zeros for the components of the ranks before this one and after it, or None."""
        after = (self.ranks - 1 - self.rank) * self.rows
        counts = (self.first, after)
        before, behind = (Tensor(np.zeros(n), ms.float32) if n else None for n in counts)
        return before, behind

    def of(self, coefficients: np.ndarray) -> Tensor:
        """Return this rank's columns (N, L) of coefficients (N, K)."""
        padded = np.zeros((len(coefficients), self.ranks * self.rows), np.float32)
        padded[:, : self.components] = coefficients
        return Tensor(np.ascontiguousarray(padded[:, self.first : self.first + self.rows]))


def _columns(basis: Basis, parameters: Sequence[Parameter]) -> list[tuple[int, int]]:
    """Return the columns (first, end) of each parameter in the basis; of all if in its order."""
    names = list(basis.names)
    shapes = dict(zip(names, map(tuple, basis.shapes), strict=True))
    expected = {parameter.name: tuple(parameter.shape) for parameter in parameters}
    if shapes != expected:
        name = next(n for n in [*expected, *shapes] if shapes.get(n) != expected.get(n))
        raise InputError(
            f"the basis is of other weights: {name!r} is {shapes.get(name, 'not there')} in the "
            f"basis and {expected.get(name, 'not there')} in the optimizer"
        )
    places = dict(zip(names, bounds([math.prod(shape) for shape in shapes.values()]), strict=True))
    numbers, matrix = places[names[-1]][1], basis.matrix
    if matrix.ndim != 2 or not len(matrix) or matrix.shape[1] != numbers:
        raise InputError(
            f"the basis has shape {matrix.shape}; expected (components, {numbers}), a column for "
            "every weight"
        )
    return [(0, numbers)] if names == list(expected) else [places[name] for name in expected]


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
        self.before, self.after = step.update.basis_shard.others()

    def construct(self, basis: Tensor) -> tuple:
        gradient = ops.concat(self.map(flat, self.gradients))
        own = ops.reshape(ops.matmul(basis, ops.reshape(gradient, (-1, 1))), (-1,))
        if self.all_reduce is not None:
            # Each number comes from one rank and the others add 0 to it: nothing is rounded.
            if self.before is not None:
                own = ops.concat((self.before, own))
            if self.after is not None:
                own = ops.concat((own, self.after))
            own = self.all_reduce(own)
        return own, gradient


class Prepare(_Graph):
    """(P's shard (L, M), coefficients (N, L)) -> N products (M,) of all ranks, and w (M,)."""

    def construct(self, basis: Tensor, coefficients: Tensor) -> tuple:
        moves = ops.matmul(coefficients, basis)
        if self.all_reduce is not None:
            moves = self.all_reduce(moves)
        # Not moves[0]: the CPU's StridedSlice takes 2.1 ms for a row of 61 684, Unstack 0.1.
        return ops.unstack(moves), ops.concat(self.map(flat, self.weights))


class Trial(_Graph):
    """(step size, P^T d (M,), w (M,), rows) -> (mean loss at w + step size P^T d, weight).

    It is a forward pass in training mode, because the training loss is what is minimised. The graph
    itself restores what the pass changes, the weights and BatchNorm's running statistics, so that
    no interruption leaves a trial's weights behind.
    """

    def __init__(self, step: nn.Cell):
        super().__init__(step)
        self.objective = step.gradient.objective
        self.statistics = running_statistics(step.gradient.loss_net)
        if self.statistics:
            kept = (copied(statistic, "kept.trial") for statistic in self.statistics)
            self.kept = ParameterTuple(kept)

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
    """(step size, P^T d, P^T P g, w, g, memory): move the weights and store the memory."""

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
    """P^T P g (M,) -> w <- optimizer(w, P^T P g)."""

    def construct(self, inside: Tensor) -> Tensor:
        return self.applied(self.optimizer(self.parts(inside)))
