"""Small networks and batches for the tests of the step cells: distinct rows, fixed seeds."""

from contextlib import contextmanager
from unittest import mock

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.subspace import SubspaceStep
from labkit.algorithms.thor import ThorStep, ThorUpdate
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.state import set_state
from labkit.steps.step import Graph, PlainStep
from tests import twins
from tests.support.subspace_cells import basis_of

INPUTS, OUTPUTS = 3, 2


def linear(seed=0):
    """Dense network (B, 3) -> (B, 2) with weights of order 1."""
    random = np.random.default_rng(seed)
    network = nn.Dense(INPUTS, OUTPUTS)
    set_state(network.weight, random.normal(size=(OUTPUTS, INPUTS)).astype(np.float32))
    set_state(network.bias, random.normal(size=OUTPUTS).astype(np.float32))
    return network


def exact(network):
    """Return the weight and the bias of a linear network, in float64."""
    return [p.asnumpy().astype(np.float64) for p in (network.weight, network.bias)]


def rows(count, seed=0):
    """Inputs (count, 3) and targets (count, 2), float32 arrays."""
    random = np.random.default_rng(1000 + seed)
    return (
        random.normal(size=(count, INPUTS)).astype(np.float32),
        random.normal(size=(count, OUTPUTS)).astype(np.float32),
    )


def tensors(*arrays):
    """Return arrays, or parts of arrays, as Tensors."""
    return tuple(Tensor(np.ascontiguousarray(array)) for array in arrays)


def split(arrays, sizes):
    """Cut arrays along their rows into tuples of Tensors of the given sizes."""
    ends = np.cumsum(sizes)
    assert ends[-1] == len(arrays[0]), (ends, len(arrays[0]))
    return [
        tensors(*(array[end - size : end] for array in arrays))
        for size, end in zip(sizes, ends, strict=True)
    ]


def digits(count, seed=0):
    """Images (count, 1, 32, 32) and labels (count,) to be learnt: ten noisy patterns."""
    patterns = np.random.default_rng(7).normal(size=(10, 1, 32, 32))
    random = np.random.default_rng(2000 + seed)
    labels = random.integers(0, 10, count)
    noise = 0.5 * random.normal(size=(count, 1, 32, 32))
    return (patterns[labels] + noise).astype(np.float32), labels.astype(np.int32)


def regression(network=None):
    """A linear network with mean squared error: (network, loss_net)."""
    network = network or linear()
    return network, LossNet(network, nn.MSELoss())


def momentum(network, learning_rate=0.05, weight_decay=0.0):
    """Momentum 0.9 over the network's trainable parameters."""
    return nn.Momentum(network.trainable_params(), learning_rate, 0.9, weight_decay)


def to_float16(network):
    """Make a network compute in float16 with float16 weights."""
    network.to_float(ms.float16)
    for parameter in network.trainable_params():
        parameter.set_dtype(ms.float16)


def snapshot(cell):
    """Return a copy of every Parameter of a cell, by name."""
    return {parameter.name: parameter.asnumpy().copy() for parameter in cell.get_parameters()}


def restore(cell, values):
    """Set every Parameter of a cell to its value in a ``snapshot``."""
    for parameter in cell.get_parameters():
        set_state(parameter, values[parameter.name])


def moved(step, *arrays):
    """Call a step; return (its loss, the names of the Parameters that the call changed)."""
    before = snapshot(step)
    loss = float(step(*tensors(*arrays)))
    after = snapshot(step)
    return loss, {name for name in before if not np.array_equal(before[name], after[name])}


class Unadapted(nn.LARS):
    """LARS without its operator, which MindSpore's CPU does not have."""

    def construct(self, gradients):
        return self.opt(gradients)


class Once:
    """Builds each step once and returns it as new every time: compiling its graphs takes long.

    All state of a step is in its Parameters (test_resume.py, test_checkpoint.py), so a step whose
    Parameters have their initial values again is as good as new.
    """

    def __init__(self):
        self._made = {}

    def __call__(self, build, *args, **options):
        """Return what the first ``build(*args, **options)`` made: a tuple that ends with the step.

        A test that trains two steps of the same build side by side must build one of them itself.
        """
        key = build.__qualname__, repr((args, sorted(options.items())))
        if key not in self._made:
            made = build(*args, **options)
            self._made[key] = made, snapshot(made[-1])
        made, values = self._made[key]
        restore(made[-1], values)
        return made


def assert_bit_equal(actual, expected):
    """Assert that two snapshots hold the same names and bits, and are not empty."""
    assert expected and actual.keys() == expected.keys(), (sorted(actual), sorted(expected))
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def assert_close(actual, expected, **tolerance):
    """Assert that two dicts of arrays hold the same names and close values, and are not empty."""
    assert expected and actual.keys() == expected.keys(), (sorted(actual), sorted(expected))
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], err_msg=name, **tolerance)


@contextmanager
def unchanged(cell):
    """Assert that the block leaves every Parameter of a cell unchanged, to the bit."""
    before = snapshot(cell)
    yield
    assert_bit_equal(snapshot(cell), before)


@contextmanager
def before_each_run(graph, act):
    """Call ``act`` before each run of a compiled ``Graph`` in the block."""

    def called(one, *arguments):
        if one is graph:
            act()
        return run(one, *arguments)

    run = Graph.__call__
    with mock.patch.object(Graph, "__call__", called):
        yield


@contextmanager
def interrupted(graph):
    """Expect the block to be interrupted before a ``Graph`` runs."""
    interrupt = mock.Mock(side_effect=KeyboardInterrupt)
    with before_each_run(graph, interrupt), pytest.raises(KeyboardInterrupt):
        yield


class Product(nn.Cell):
    """Loss whose gradient by the outputs is targets / targets.size, whatever the weights."""

    def construct(self, outputs, targets):
        return ops.mean(outputs * targets)


class Own(nn.Cell):
    """A loss net of one's own: a function of the network's outputs and the rest of the batch."""

    def __init__(self, network, function):
        super().__init__(auto_prefix=False)
        self.network, self.function = network, function

    def construct(self, inputs, *rest):
        return self.function(self.network(inputs), *rest)


def of_means(outputs, targets):
    """The mean squared error of a micro-batch, always with the weight 1."""
    return ops.mean(ops.square(outputs - targets)), 1


class TwoMeans(nn.Cell):
    """Two (loss, weight) pairs: the squared error of all rows, and of those with a target > 0."""

    pairs = 2

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, inputs, targets):
        errors = ops.mean(ops.square(self.network(inputs) - targets), 1)
        chosen = ops.cast(targets[:, 0] > 0, ms.float32)
        count = ops.reduce_sum(chosen)
        loss = ops.reduce_sum(errors * chosen) / ops.maximum(count, 1.0)
        return (ops.mean(errors), len(errors)), (loss, count)


def two_means(weights, bias, inputs, targets):
    """Return the loss and gradients of ``TwoMeans`` over all rows at once, in float64."""
    chosen = targets[:, 0] > 0
    parts = [(inputs, targets)] + [(inputs[chosen], targets[chosen])] * bool(chosen.any())
    results = [twins.linear_regression(weights, bias, *part) for part in parts]
    gradients = [sum(leaf) for leaf in zip(*(g for _, g in results), strict=True)]
    return sum(loss for loss, _ in results), gradients


class Normalised(nn.Cell):
    """Dense, normalisation, dense."""

    def __init__(self, norm):
        super().__init__()
        self.first = nn.Dense(INPUTS, 4)
        self.norm = norm
        self.second = nn.Dense(4, OUTPUTS)

    def construct(self, inputs):
        return self.second(self.norm(self.first(inputs)))


class OnMaps(nn.Cell):
    """A normalisation of maps of one position: (B, C) -> (B, C)."""

    def __init__(self, norm, axes):
        super().__init__(auto_prefix=False)
        self.norm, self.ones = norm, (1,) * axes

    def construct(self, inputs):
        return self.norm(inputs.reshape(inputs.shape + self.ones)).reshape(inputs.shape)


class Scalar(nn.Cell):
    """One parameter of shape (): inputs (B, 1) -> inputs * parameter."""

    def __init__(self):
        super().__init__()
        self.slope = Parameter(Tensor(2.0), name="slope")

    def construct(self, inputs):
        return inputs * self.slope


def plain(loss_net, optimizer, **options):
    return PlainStep(loss_net, optimizer, **options)


def accumulated(loss_net, optimizer, **options):
    return AccumulatedStep(loss_net, optimizer, micro_steps=2, **options)


# The second update lies between refreshes; a NaN is left to ``nonfinite``, as in all steps here.
THOR = {"frequency": 2, "nan": "drop"}


def thor(loss_net, optimizer, **options):
    return ThorStep(loss_net, optimizer, 0.1, **THOR, **options)


def accumulated_thor(loss_net, optimizer, **options):
    return accumulated(
        loss_net, optimizer, update=ThorUpdate(loss_net, optimizer, 0.1, **THOR), **options
    )


def adasum(loss_net, optimizer, **options):
    return AdasumStep(loss_net, optimizer, workers=2, **options)


def subspace(loss_net, optimizer, components=3, **options):
    """A step with three components; outside them the optimizer works as in the other steps."""
    parameters = getattr(optimizer, "parameters", loss_net.trainable_params())
    components = min(components, sum(parameter.size for parameter in parameters))
    if options.get("method") != "sgd":
        options = {"alpha": 1.0, "gamma": 0.0} | options
    return SubspaceStep(loss_net, optimizer, basis_of(parameters, components), **options)


def accumulated_subspace(loss_net, optimizer, **options):
    return subspace(loss_net, optimizer, micro_steps=2, **options)


def projected_sgd(loss_net, optimizer, **options):
    """A step with all components: P^T P g is g."""
    return subspace(loss_net, optimizer, components=10**6, method="sgd", **options)


# Every step cell passes the battery of test_step.py; a new one adds a line here.
STEPS = {
    "plain": plain,
    "accumulated": accumulated,
    "thor": thor,
    "accumulated thor": accumulated_thor,
    "adasum": adasum,
    "subspace": subspace,
    "accumulated subspace": accumulated_subspace,
    "projected sgd": projected_sgd,
}

# What a micro-batch that is not finite may change: counts, and which worker's turn it is. Each of
# Adasum's workers has its own moments, and finds them in the optimizer during its turn.
COUNTS = {"step.dropped", "step.micro_step", "step.spoiled", "step.adasum_worker"}


def traces(step, moved):
    """Return the names in ``moved`` that no dropped micro-batch may change."""
    turns = ()
    if isinstance(step, AdasumStep):
        turns = ("adasum.", *(parameter.name for parameter in step.update.moves.states.states))
    return {name for name in moved if name not in COUNTS and not name.startswith(turns)}


class CountingTap(nn.Cell):
    """A minimal tap: the identity of y, with its own sums as "gradients" of its Parameters.

    rows   sum of 1 over the rows, which does not depend on the loss
    size   sum of the squares of dL/dy, which grows with the square of the loss
    scale  factor by which the loss was multiplied
    """

    def construct(self, y, rows, size, scale):
        return y

    def bprop(self, y, rows, size, scale, out, dout):
        squares = ops.square(ops.cast(dout, ms.float32) / scale)
        counted = ops.ones((1,), ms.float32) * dout.shape[0]
        size = ops.reduce_sum(squares.reshape(-1)).reshape(1)
        return dout, counted, size, ops.zeros_like(scale)


class Counted(nn.Cell):
    """A linear network followed by a ``CountingTap``."""

    def __init__(self):
        super().__init__()
        self.layer, self.tap = linear(), CountingTap()
        names = ("rows", "size")
        self.buffers = ParameterTuple(Parameter(Tensor([0.0]), name=name) for name in names)
        self.scale = Tensor(1.0, ms.float32)

    def unscale(self, scale):
        """Make the tap divide by a step's loss scale, a Parameter of another Cell."""
        object.__setattr__(self, "scale", scale)

    def construct(self, inputs):
        return self.tap(self.layer(inputs), self.buffers[0], self.buffers[1], self.scale)

    @property
    def extras(self):
        return (), (self.buffers[0],), (self.buffers[1],)
