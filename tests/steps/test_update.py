"""What a step calls in its update stage, in which order; and which stages it refuses."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import ParameterTuple, nn, ops

from labkit.algorithms.adasum.update import AdasumUpdate
from labkit.errors import InputError
from labkit.labs.compare import parameter_values
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.plain import PlainStep
from labkit.steps.state import set_state, state
from labkit.steps.update import PlainUpdate, UpdateStage
from tests import twins
from tests.support.step_cells import (
    Counted,
    assert_bit_equal,
    assert_close,
    linear,
    momentum,
    regression,
    rows,
    tensors,
)
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")


class Descent(UpdateStage):
    """Gradient descent at rate 1, as a user's own update stage."""

    def construct(self, gradients):
        done = True
        for weight, gradient in zip(self.parameters, gradients):  # noqa: B905, none in a graph
            weight -= gradient
        return done


def test_a_stage_is_called_with_the_averaged_gradients():
    """An update stage replaces the optimizer; its gradients are in the parameters' order."""
    network = linear()
    optimizer = nn.SGD(network.trainable_params(), 0.0)
    step = PlainStep(LossNet(network, nn.MSELoss()), optimizer, update=Descent(optimizer))
    before, arrays = parameter_values(network), rows(4)
    step(*tensors(*arrays))
    _, gradients = twins.linear_regression(before["weight"], before["bias"], *arrays)
    moves = {n: before[n] - now for n, now in parameter_values(network).items()}
    expected = dict(zip(("weight", "bias"), gradients, strict=True))
    assert_close(moves, expected, **TOLERANCE["float32, one update"])


class Counting(UpdateStage):
    """Gathers extras at every second update, and records the step's calls in order."""

    def __init__(self, network, optimizer):
        super().__init__(optimizer)
        self.settings, self.extras = {"counting": "yes"}, network.extras
        self.pending = state("counting.held", 0)
        self.rows, self.noted = state("counting.rows", 0.0), state("counting.noted", 0.0)
        self.gradients = ParameterTuple(
            ms.Parameter(p.asnumpy(), name=f"held.{p.name}") for p in optimizer.parameters
        )
        self.make = Applied(self)
        self.calls, self.attached = [], []

    def attach(self, step):
        super().attach(step)
        self.attached.append(id(step))  # the step itself would be a child of its own child

    def wants_extras(self, updates):
        return updates % 2 == 0

    def take(self, gradients, extras, summary):
        gradients = self.recorded(gradients, summary)
        if len(extras) == 0:
            return self.updated(gradients)
        done = (
            self.map(ops.assign, self.gradients, gradients),
            ops.assign(self.rows, extras[0][0]),
            ops.assign(self.pending, 1),
        )
        return ops.depend(True, done)

    def before(self, step, batch):
        self.calls.append(("before", int(step.updates.asnumpy()), len(batch)))
        set_state(self.pending, 0)

    def between(self, step, batch, loss):
        pending = int(self.pending.asnumpy())
        self.calls.append(("between", int(step.updates.asnumpy()), len(batch), pending))
        assert (loss is None) == (not batch)
        if pending:
            self.make(ms.Tensor(7.0))


class Applied(nn.Cell):
    """The graph that makes the pending update of a ``Counting``."""

    def __init__(self, stage):
        super().__init__(auto_prefix=False)
        self.updated, self.gradients = stage.updated, stage.gradients
        self.noted, self.pending = stage.noted, stage.pending

    def construct(self, note):
        done = (ops.assign(self.noted, note), self.updated(self.gradients))
        released = ops.assign(self.pending, ops.depend(ops.cast(0, ms.int32), done))
        return ops.depend(True, released)


def _counting(micro_steps):
    network = Counted()
    sgd = nn.SGD(network.layer.trainable_params(), 0.1)
    stage, loss_net = Counting(network, sgd), LossNet(network, nn.MSELoss())
    if micro_steps is None:
        return network, stage, PlainStep(loss_net, sgd, update=stage)
    return network, stage, AccumulatedStep(loss_net, sgd, micro_steps, update=stage)


class TestExtras:
    @pytest.fixture
    def build(self, once):
        """``build(micro_steps)`` returns a fresh (network, stage, step); None: a plain step."""

        def build(micro_steps=None):
            network, stage, step = once(_counting, micro_steps)
            stage.calls.clear()
            return network, stage, step

        return build

    def test_order_of_calls(self, build):
        _, stage, step = build()
        assert stage.attached == [id(step)] and step.settings["counting"] == "yes"
        for call in range(3):
            step(*tensors(*rows(4, seed=call)))
        assert stage.calls == [
            ("before", 0, 2),
            ("between", 0, 2, 1),
            ("before", 1, 2),
            ("between", 2, 2, 0),
            ("before", 2, 2),
            ("between", 2, 2, 1),
        ]
        assert step.last_update.number == 3
        assert float(stage.noted.asnumpy()) == 7 and float(stage.rows.asnumpy()) == 1

    @pytest.mark.parametrize("micro_steps", [None, 2])
    def test_the_weights_are_those_without(self, build, micro_steps):
        network, _, step = build(micro_steps)
        plain, loss_net = regression()
        sgd = nn.SGD(plain.trainable_params(), 0.1)
        other = PlainStep(loss_net, sgd)
        if micro_steps:
            other = AccumulatedStep(loss_net, sgd, micro_steps)
        for call in range(7):
            batch = tensors(*rows(4, seed=call))
            assert float(step(*batch)) == pytest.approx(float(other(*batch)), rel=1e-5)
        step.end_epoch()
        other.end_epoch()
        assert step.last_update.number == other.last_update.number > 3
        expected = {f"layer.{name}": value for name, value in parameter_values(plain).items()}
        weights = {name: parameter_values(network)[name] for name in expected}
        assert_close(weights, expected, **TOLERANCE["float32, a few updates"])

    def test_a_flushed_group_is_refreshed_without_a_batch(self, build):
        _, stage, step = build(2)
        step(*tensors(*rows(4)))
        step.end_epoch()
        assert stage.calls == [
            ("before", 0, 2),
            ("between", 0, 2, 0),
            ("before", 0, 0),
            ("between", 0, 0, 1),
        ]
        assert step.last_update.number == 1

    def test_what_an_interruption_left_is_forgotten(self, build):
        """The next batch is not finite, so that no new update is held."""
        network, stage, step = build()
        set_state(stage.pending, 1)
        before = parameter_values(network.layer)
        inputs, targets = rows(4)
        step(*tensors(inputs * np.float32(np.nan), targets))
        assert_bit_equal(parameter_values(network.layer), before)
        assert stage.calls == [("before", 0, 2), ("between", 0, 2, 0)]
        assert step.last_update.number == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda net, sgd: PlainStep(net, sgd, update=nn.ReLU()), "expected an UpdateStage"),
        (lambda net, sgd: AccumulatedStep(net, sgd, update="adasum"), "expected an UpdateStage"),
        (  # gradients of one optimizer's parameters would move those of another
            lambda net, sgd: PlainStep(net, sgd, update=PlainUpdate(momentum(linear(seed=1)))),
            "expected the optimizer of the PlainStep, got a different one",
        ),
        (
            lambda net, sgd: AccumulatedStep(net, "sgd", update=PlainUpdate(sgd)),
            "optimizer: expected an nn.Optimizer, got a str",
        ),
        (
            lambda net, sgd: PlainStep(net, sgd, update=PlainStep(net, sgd).update),
            "PlainUpdate belongs to another step",
        ),
        (
            lambda net, sgd: PlainStep(net, sgd, update=AdasumUpdate(sgd, workers=2)),
            "expected an AccumulatedStep",
        ),
        (
            lambda net, sgd: AccumulatedStep(
                net, sgd, update=AdasumUpdate(sgd, workers=2), rank_group=""
            ),
            "rank_group: expected none beside AdasumUpdate",
        ),
        (
            lambda net, sgd: AccumulatedStep(
                net, sgd, update=AdasumUpdate(sgd, workers=2), tail="carry"
            ),
            "tail: expected one of .*, got 'carry'",
        ),
    ],
)
def test_what_is_refused(make, words):
    network, loss_net = regression()
    with pytest.raises(InputError, match=words):
        make(loss_net, momentum(network))
