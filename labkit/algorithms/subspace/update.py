"""The update stage: what is kept between updates, and the compiled graphs of one update.

    Project   P, g -> P g                      P is read once here,
    Prepare   P, (d, P g) -> P^T d, P^T P g    and once here, for both products
    Trial     rate, rows -> loss at w + rate P^T d; w and BatchNorm are then as before
    Finish    w <- optimizer(w + rate P^T d, alpha r), and what the next update has to know
    Descend   P, P g -> w <- optimizer(w, P^T P g), for ``method="sgd"``

Vectors of all M weights are flat float32, in the order of the optimizer's parameters. P's share is
an argument of the graphs that read it, no Parameter: a checkpoint does not hold it (3.2 GB for 32
components of 25 million weights), but its checksum. The vectors pass from graph to graph as
arguments too: they are of one update.
"""

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.algorithms.subspace.search import Memory
from labkit.algorithms.subspace.shares import Share
from labkit.errors import InputError
from labkit.steps.gradients import state
from labkit.steps.step import cast_like, copied, keep_also, running_statistics
from labkit.steps.update import UpdateStage


class SubspaceUpdate(UpdateStage):
    """State and settings of the searches. ``construct`` is not used: the step calls the graphs.

    optimizer  any ``nn.Optimizer``; takes alpha r at every update
    basis      as in ``SubspaceStep``
    method     ``bfgs`` or ``sgd``; constants  ``Constants``
    """

    def __init__(self, optimizer, basis, method, constants):
        super().__init__(auto_prefix=False)
        self.share = Share(basis, optimizer.parameters)
        self.constants = constants
        self.settings = {"method": method, "basis": str(basis.checksum)}
        # held: 1 between the graph that averages an update's gradient and the one that updates.
        # loss: of the update's rows at w, what trials are compared with.
        self.held = state("subspace.held", 0)
        self.loss = state("subspace.loss", 0.0)
        if method == "sgd":
            return
        self.settings |= {name: repr(value) for name, value in vars(constants).items()}
        # The rest changes only with an update. residual: r (M,). inverse_hessian: B.
        # last_gradient, last_step: P g and s of the last update, where has_pair is 1.
        # trials, rate: of the last search. failures: searches so far that have found no step.
        components = self.share.components
        memory = Memory.empty(components)
        self.residual = _kept("residual", np.zeros(self.share.numbers, np.float32))
        self.inverse_hessian = _kept("inverse_hessian", memory.inverse)
        self.last_gradient = _kept("last_gradient", memory.gradient)
        self.last_step = _kept("last_step", memory.step)
        self.has_pair = state("subspace.has_pair", 0)
        self.trials = state("subspace.trials", 0)
        self.rate = state("subspace.rate", 0.0)
        self.failures = state("subspace.failures", 0)
        # What Finish is given the new values of, in this order.
        self.noted = ParameterTuple(
            (
                self.inverse_hessian,
                self.last_gradient,
                self.last_step,
                self.has_pair,
                self.trials,
                self.rate,
                self.failures,
            )
        )

    def memory(self) -> Memory:
        """Return what the last update has left to the next one."""
        names = (self.inverse_hessian, self.last_gradient, self.last_step, self.has_pair)
        inverse, gradient, step, has_pair = (one.asnumpy() for one in names)
        return Memory(inverse.copy(), gradient.copy(), step.copy(), bool(has_pair))

    def notes(self, memory: Memory, trials: int, rate: float) -> list[Tensor]:
        """Return the new values of ``noted``."""
        failures = int(self.failures.asnumpy()) + (rate == 0)
        return [
            Tensor(memory.inverse),
            Tensor(memory.gradient),
            Tensor(memory.step),
            Tensor(int(memory.has_pair), ms.int32),
            Tensor(trials, ms.int32),
            Tensor(rate, ms.float32),
            Tensor(failures, ms.int32),
        ]


class Project(nn.Cell):
    """P's share (L, M) -> (P g (padded K,) of all ranks, g (M,)), g from the step's buffer."""

    def __init__(self, step):
        super().__init__(auto_prefix=False)
        share = step.update.share
        self.gradients, self.map = step.gradient_sum, ops.HyperMap()
        self.all_reduce = step.gradient.all_reduce
        self.before, self.after = share.others()

    def construct(self, basis):
        gradient = flat_of(self.map, self.gradients)
        own = ops.reshape(ops.matmul(basis, ops.reshape(gradient, (-1, 1))), (-1,))
        if self.all_reduce is not None:
            # Each number is one rank's, the others add 0 to it: nothing is rounded.
            if self.before is not None:
                own = ops.concat((self.before, own))
            if self.after is not None:
                own = ops.concat((own, self.after))
            own = self.all_reduce(own)
        return own, gradient


class Prepare(nn.Cell):
    """(P's share (L, M), coefficients (N, L)) -> N products (M,) of all ranks, and w (M,)."""

    def __init__(self, step):
        super().__init__(auto_prefix=False)
        self.weights, self.map = step.optimizer.parameters, ops.HyperMap()
        self.all_reduce = step.gradient.all_reduce

    def construct(self, basis, coefficients):
        moves = ops.matmul(coefficients, basis)
        if self.all_reduce is not None:
            moves = self.all_reduce(moves)
        # Not moves[0]: the CPU's StridedSlice takes 2.1 ms for a row of 61 684, Unstack 0.1.
        return ops.unstack(moves), flat_of(self.map, self.weights)


class Trial(nn.Cell):
    """(rate, P^T d (M,), w (M,), rows) -> (mean loss of the rows at w + rate P^T d, weight).

    A forward pass in training mode, as the loss is what is trained. It puts back what it changes,
    running averages of any kind, within the graph: no interruption leaves a trial's weights.
    """

    def __init__(self, step):
        super().__init__(auto_prefix=False)
        self.weights, self.map = step.optimizer.parameters, ops.HyperMap()
        self.starts, self.ends = step.update.share.starts, step.update.share.ends
        self.gradient = step.gradient
        self.statistics = running_statistics(step.gradient.loss_net)
        if self.statistics:
            kept = (copied(one, "kept.trial") for one in self.statistics)
            self.kept = ParameterTuple(kept)

    def construct(self, rate, move, start, *batch):
        if self.statistics:
            self.map(ops.assign, self.kept, self.statistics)
        moved = self.put(start + rate * move)
        loss, weight = self.gradient.loss(*batch)
        loss = ops.depend(loss, moved)
        restored = self.put(ops.depend(start, loss))
        if self.statistics:
            kept = ops.depend(self.kept, loss)
            restored = (restored, self.map(ops.assign, self.statistics, kept))
        return ops.depend(loss, restored), weight

    def protect(self, parameters):
        """Put back ``parameters`` too, which a forward pass assigns; the weights it does anyway."""
        weights = {id(weight) for weight in self.weights}
        keep_also(self, [one for one in parameters if id(one) not in weights], "kept.trial")

    def put(self, flat):
        """Set the weights to a flat vector of them."""
        parts = self.map(ops.partial(part_of, flat), self.starts, self.ends, self.weights)
        return self.map(ops.assign, self.weights, parts)


class Finish(nn.Cell):
    """(rate, P^T d, P^T P g, w, g, all (M,), and notes): move the weights and note the search."""

    def __init__(self, step):
        super().__init__(auto_prefix=False)
        update = step.update
        self.optimizer, self.map = step.optimizer, ops.HyperMap()
        self.weights = step.optimizer.parameters
        self.starts, self.ends = update.share.starts, update.share.ends
        self.gamma, self.alpha = float(update.constants.gamma), float(update.constants.alpha)
        self.residual, self.noted, self.held = update.residual, update.noted, update.held
        self.updates = step.updates

    def construct(self, rate, move, inside, start, gradient, *notes):
        residual = self.gamma * self.residual + (gradient - inside)
        slope = self.alpha * residual
        kept = ops.assign(self.residual, residual)
        parts = self.parts(start + rate * move)
        moved = self.map(ops.assign, self.weights, parts)
        done = self.optimizer(self.parts(ops.depend(slope, (kept, moved))))
        noted = self.map(ops.assign, self.noted, notes)
        return _applied(self, (done, noted))

    def parts(self, flat):
        """Return a flat vector as one tensor for each weight."""
        return self.map(ops.partial(part_of, flat), self.starts, self.ends, self.weights)


class Descend(nn.Cell):
    """P^T P g (M,) -> w <- optimizer(w, P^T P g)."""

    def __init__(self, step):
        super().__init__(auto_prefix=False)
        self.optimizer, self.map = step.optimizer, ops.HyperMap()
        self.weights = step.optimizer.parameters
        self.starts, self.ends = step.update.share.starts, step.update.share.ends
        self.updates, self.held = step.updates, step.update.held

    def construct(self, inside):
        parts = self.map(ops.partial(part_of, inside), self.starts, self.ends, self.weights)
        return _applied(self, self.optimizer(parts))


def _applied(graph, done):
    """Count the update that ``done`` stands for: the end of both graphs that make one."""
    released = ops.assign(graph.held, ops.depend(ops.cast(0, ms.int32), done))
    counted = ops.assign_add(graph.updates, 1)
    return ops.depend(True, (released, counted))


def flat_of(hyper_map, values):
    """Return all numbers of many tensors in one vector, float32."""
    return ops.concat(hyper_map(_flat, values))


def _flat(value):
    return ops.reshape(ops.cast(value, ms.float32), (-1,))


def part_of(flat, start, end, parameter):
    """Return the numbers start .. end - 1 shaped and typed as a Parameter."""
    part = ops.slice(flat, (start,), (end - start,))
    return cast_like(ops.reshape(part, parameter.shape), parameter)


def _kept(name, values):
    return Parameter(Tensor(values), name=f"step.subspace.{name}", requires_grad=False)


def check_constants(method, given) -> None:
    """Refuse constants of the search where there is none."""
    if method == "sgd" and given:
        raise InputError(
            f"method='sgd' came with {', '.join(sorted(given))}; it searches nothing and has no "
            "residual: expected method='bfgs', or none of them"
        )
