"""What a forward pass assigns: running statistics, and a user's own averages."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import ParameterTuple, nn, ops

from labkit.nets.lenet import LeNet5
from labkit.steps.forward_state import may_assign, running_statistics, trainable_batch_norms
from labkit.steps.losses import LossNet
from labkit.steps.plain import PlainStep
from tests.support.step_cells import (
    INPUTS,
    OUTPUTS,
    STEPS,
    Normalised,
    assert_bit_equal,
    linear,
    momentum,
    rows,
    snapshot,
    tensors,
    unchanged,
)

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.mark.parametrize(
    ("norm", "trainable"),
    [
        (lambda: nn.BatchNorm1d(4), True),
        (lambda: nn.SyncBatchNorm(4), True),
        (lambda: nn.BatchNorm1d(4, use_batch_statistics=True), True),
        (lambda: nn.BatchNorm1d(4, use_batch_statistics=False), False),
        (lambda: ms.mint.nn.BatchNorm1d(4), True),
        (lambda: nn.GroupNorm(2, 4), False),
        (lambda: nn.LayerNorm((4,)), False),
    ],
)
def test_which_layers_mix_samples(norm, trainable):
    network = Normalised(norm())
    assert len(trainable_batch_norms(network)) == trainable
    statistics = running_statistics(network)
    assert {p.name for p in statistics} <= {p.name for p in network.get_parameters()}
    assert bool(statistics) == trainable
    assert not any(p.requires_grad for p in statistics)


class Averaging(nn.Cell):
    """Dense layers with running averages between them, assigned in all the ways of MindSpore.

    frozen  a layer whose Parameters are only read
    """

    def __init__(self):
        super().__init__()
        self.frozen, self.head = linear(), nn.Dense(OUTPUTS, OUTPUTS)
        for parameter in self.frozen.get_parameters():
            parameter.requires_grad = False
        zeros = np.zeros(OUTPUTS, np.float32)
        self.mean = ms.Parameter(zeros, name="mean", requires_grad=False)
        self.trained = ms.Parameter(zeros, name="trained")
        pair = (ms.Parameter(zeros, name=name, requires_grad=False) for name in ("low", "high"))
        self.bounds = ParameterTuple(pair)
        self.count = ms.Parameter(ms.Tensor(0, ms.int32), name="count", requires_grad=False)
        self.map = ops.HyperMap()

    def construct(self, inputs):
        hidden = self.frozen(inputs)
        mean = ops.stop_gradient(ops.mean(hidden, 0))
        self.mean = 0.9 * self.mean + 0.1 * mean
        note(self.trained, mean)
        if self.mean.sum() > -1e30:
            ops.assign_add(self.count, 1)
        hidden = hidden - self.mean - self.trained
        self.map(ops.assign, self.bounds, (mean - 1.0, mean + 1.0))
        return self.head(hidden)


def note(parameter, value):
    """Assign to a Parameter, in a function outside of any Cell."""
    ops.assign(parameter, 0.5 * parameter + 0.5 * value)


class Aliased(nn.Cell):
    """Assigns through an alias and by index; one name contains a colon, as names in a graph do."""

    def __init__(self):
        super().__init__()
        self.head = linear()
        self.total, self.slots = (
            ms.Parameter(np.zeros(shape, np.float32), name=name, requires_grad=False)
            for name, shape in (("sum:total", INPUTS), ("slots", (2, INPUTS)))
        )

    def construct(self, inputs):
        total = self.total
        total += ops.mean(inputs, 0)
        self.slots[1] = ops.mean(inputs, 0)
        return self.head(inputs - total)


ASSIGNED = {"mean", "trained", "low", "high", "count"}


def build(name, **options):
    network = Averaging()
    return network, STEPS[name](LossNet(network, nn.MSELoss()), momentum(network), **options)


@pytest.mark.parametrize("name", ["plain", "accumulated", "subspace"])
def test_nan_leaves_no_trace(name, once):
    """A dropped micro-batch leaves no trace in what a forward pass assigns."""
    network, step = once(build, name)
    state = {parameter.name for parameter in step.get_parameters()}
    before = snapshot(network)
    inputs, targets = rows(8)
    step(*tensors(inputs * np.nan, targets))
    assert_bit_equal(snapshot(network), before)
    for call in range(5):  # whole groups, with the call before: the next calls complete none
        step(*tensors(*rows(8, call)))
    changed = {n for n, now in snapshot(network).items() if not np.array_equal(now, before[n])}
    assert changed >= ASSIGNED and not changed & {"frozen.weight", "frozen.bias"}
    before = snapshot(network)
    for broken in ((inputs * np.nan, targets), (inputs, targets * np.inf)):
        step(*tensors(*broken))
        assert_bit_equal(snapshot(network), before)
    assert int(step.dropped.asnumpy()) == 3
    # Only these have copies, which no checkpoint holds: one from before the first batch fits.
    assert {parameter.name for parameter in step.kept} == {f"kept.{name}" for name in ASSIGNED}
    assert {parameter.name for parameter in step.get_parameters()} == state


def test_a_trial_leaves_no_trace(once):
    """A search may try 20 times; the average sees the update's own rows once."""
    averages = []
    for name in ("plain", "subspace"):
        network, step = once(build, name)
        step(*tensors(*rows(8)))
        averages.append({n: snapshot(network)[n] for n in ("mean", "low", "high", "count")})
        if name == "subspace":
            assert step.last_search.trials >= 1
    assert_bit_equal(*averages)


def test_in_pynative_mode(eager):
    network, step = build("plain")
    step(*tensors(*rows(8)))
    with unchanged(network):
        step(*tensors(rows(8)[0] * np.nan, rows(8)[1]))


def test_propagate_keeps_nothing():
    network, step = build("plain", nonfinite="propagate")
    step(*tensors(rows(8)[0] * np.nan, rows(8)[1]))
    assert np.isnan(network.mean.asnumpy()).all() and not step.statistics


def test_a_part_of_an_alias_is_assigned_too():
    """``p = self.mean; p += x`` writes into the Parameter in graph mode."""
    network = Aliased()
    step = PlainStep(LossNet(network, nn.MSELoss()), momentum(network))
    step(*tensors(*rows(8)))
    before = snapshot(network)
    assert before["sum:total"].any() and before["slots"].any()
    step(*tensors(rows(8)[0] * np.nan, rows(8)[1]))
    assert_bit_equal(snapshot(network), before)


def test_whose_code_might_assign():
    for network in (LeNet5(), linear(), Normalised(nn.BatchNorm1d(4)), nn.LayerNorm((4,))):
        assert not may_assign(LossNet(network, nn.MSELoss()))
    for network in (Averaging(), nn.SequentialCell(nn.ReLU(), Averaging())):
        assert may_assign(LossNet(network, nn.MSELoss()))
