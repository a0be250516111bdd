"""What a step calls in its update stage, in which order; and which stages it refuses."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import ParameterTuple, nn, ops

from labkit.algorithms.adasum.update import AdasumUpdate
from labkit.errors import InputError
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.state import set_state, state
from labkit.steps.step import PlainStep
from labkit.steps.update import UpdateStage
from tests.support.step_cells import (
    Counted,
    exact,
    linear,
    momentum,
    regression,
    rows,
    tensors,
)
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")


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
        self.calls = []

    def attach(self, step):
        super().attach(step)
        self.attached = [id(step)]  # the step itself would be a child of its own child

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


def _step(loss_net, optimizer, micro_steps, update=None):
    if micro_steps is None:
        return PlainStep(loss_net, optimizer, update=update)
    return AccumulatedStep(loss_net, optimizer, micro_steps, update=update)


def _counting(micro_steps):
    network = Counted()
    sgd = nn.SGD(network.layer.trainable_params(), 0.1)
    stage = Counting(network, sgd)
    return network, stage, _step(LossNet(network, nn.MSELoss()), sgd, micro_steps, stage)


def test_order_of_calls(once):
    _, stage, step = once(_counting, None)
    stage.calls.clear()
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
def test_with_extras_the_weights_are_those_without(once, micro_steps):
    network, _, step = once(_counting, micro_steps)
    plain, loss_net = regression()
    other = _step(loss_net, nn.SGD(plain.trainable_params(), 0.1), micro_steps)
    for call in range(7):
        batch = tensors(*rows(4, seed=call))
        assert float(step(*batch)) == pytest.approx(float(other(*batch)), rel=1e-5)
    step.end_epoch()
    other.end_epoch()
    assert step.last_update.number == other.last_update.number > 3
    for weight, expected in zip(exact(network.layer), exact(plain), strict=True):
        np.testing.assert_allclose(weight, expected, **TOLERANCE["float32, a few updates"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda net, sgd: AccumulatedStep(net, sgd, update="adasum"), "expected an UpdateStage"),
        (  # gradients of one optimizer's parameters would move those of another
            lambda net, sgd: PlainStep(net, sgd, update=UpdateStage(momentum(linear(seed=1)))),
            "update: expected an UpdateStage of the step's optimizer, got 'UpdateStage'",
        ),
        (
            lambda net, sgd: PlainStep(net, sgd, update=PlainStep(net, sgd).update),
            "UpdateStage belongs to another step",
        ),
        (
            lambda net, sgd: PlainStep(net, sgd, update=AdasumUpdate(sgd, workers=2)),
            "step of AdasumUpdate: expected an AccumulatedStep, got 'PlainStep'",
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
