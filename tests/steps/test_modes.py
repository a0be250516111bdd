"""A part set to evaluation mode by itself stays in it; a network set as a whole is trained."""

import warnings

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.train import Model

from labkit.steps.losses import LossNet
from labkit.steps.modes import modes
from labkit.steps.plain import PlainStep
from tests.support.step_cells import INPUTS, OUTPUTS, STEPS, momentum, rows, tensors

pytestmark = pytest.mark.usefixtures("runtime")

BOTH = {"body", "head"}


class BodyAndHead(nn.Cell):
    """A body and a head, each with a BatchNorm."""

    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(INPUTS, 4), nn.BatchNorm1d(4))
        self.head = nn.SequentialCell(nn.BatchNorm1d(4), nn.Dense(4, OUTPUTS))

    def construct(self, inputs):
        return self.head(self.body(inputs))


class Scaled(nn.Cell):
    """A squared error with a trained Parameter."""

    def __init__(self):
        super().__init__()
        self.scale = ms.Parameter(ms.Tensor(1.0), name="loss.scale")

    def construct(self, outputs, targets):
        return ops.mean(ops.square(self.scale * outputs - targets))


class Wrapper(nn.Cell):
    """A Cell that only calls the network inside."""

    def __init__(self, inner):
        super().__init__(auto_prefix=False)
        self.inner = inner

    def construct(self, inputs):
        return self.inner(inputs)


class Towers(nn.Cell):
    """A user's own loss net whose network is two parts."""

    def __init__(self, network, criterion=None):
        super().__init__(auto_prefix=False)
        self.body, self.head = network.body, network.head
        self.criterion = criterion or nn.MSELoss()

    def construct(self, inputs, targets):
        return self.criterion(self.head(self.body(inputs)), targets)


class Distilled(nn.Cell):
    """Loss net of a student that learns to imitate a teacher."""

    def __init__(self, student, teacher):
        super().__init__(auto_prefix=False)
        self.student, self.teacher = student, teacher

    def construct(self, inputs, targets):
        difference = self.student(inputs) - ops.stop_gradient(self.teacher(inputs))
        return ops.mean(ops.square(difference)) + 0.0 * ops.mean(targets)


def build(network, make=PlainStep):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(LossNet(network, nn.MSELoss()), momentum(network))


def followed(step):
    """Return the context in which a call of ``step`` sets modes, computes and restores them."""
    return step._modes.followed(step._graphs)


def trained(step, network):
    """Return the parts of the network that are in training mode while the step computes.

    ``moved`` shows that the compiled graphs are those of the modes.
    """
    with followed(step):
        norms = {"body": network.body[1], "head": network.head[0]}
        return {name for name, norm in norms.items() if norm.training}


def moved(step, network, seed=0):
    """Return the parts of the network whose running mean a micro-batch moves."""
    norms = {"body": network.body[1], "head": network.head[0]}
    before = {name: cell.moving_mean.asnumpy().copy() for name, cell in norms.items()}
    step(*tensors(*rows(8, seed)))
    return {name for name in norms if (norms[name].moving_mean.asnumpy() != before[name]).any()}


@pytest.fixture
def network():
    return BodyAndHead()


@pytest.mark.parametrize("make", [STEPS["accumulated"], STEPS["subspace"]])
def test_a_frozen_body_stays_frozen(make, network, capsys):
    network.set_train()
    network.body.set_train(False)
    step = build(network, make)
    said = "labkit: in evaluation mode, as it was set: network.body\n"
    assert said in capsys.readouterr().out
    assert moved(step, network) == {"head"}


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (lambda network: None, BOTH),
        # As MindSpore's Model.eval and an evaluation by hand leave a network.
        (lambda network: network.set_train(False), BOTH),
        (lambda network: network.body.set_train(False), {"head"}),
    ],
)
def test_by_what_was_done_before(prepare, expected, network, capsys):
    prepare(network)
    step = build(network)
    said = "in evaluation mode" in capsys.readouterr().out
    assert said == (expected == {"head"})
    assert trained(step, network) == expected
    # As Model.train does, with an evaluation in between.
    for mode in (True, False, True):
        step.set_train(mode)
    assert trained(step, network) == moved(step, network) == expected


def test_by_what_is_done_after(network):
    """By then graphs have been compiled for other modes."""
    step = build(network)
    assert moved(step, network) == BOTH
    network.body.set_train(False)
    assert moved(step, network, 1) == {"head"}
    step.set_train()
    assert moved(step, network, 2) == {"head"}
    network.set_train(False)
    assert moved(step, network, 3) == {"head"}
    assert not any(cell.training for _, cell in network.cells_and_names())
    network.set_train()
    assert moved(step, network, 4) == BOTH
    # All BatchNorms of a network can be held.
    for cell in (network.body[1], network.head[0]):
        cell.set_train(False)
    assert moved(step, network, 5) == set()


def test_in_a_training_by_model(network):
    network.set_train()
    network.body.set_train(False)
    step, mean = build(network), network.body[1].moving_mean.asnumpy().copy()
    data = ms.dataset.NumpySlicesDataset(rows(16), ["x", "y"], shuffle=False).batch(8)
    Model(step).train(2, data, dataset_sink_mode=False)
    np.testing.assert_array_equal(network.body[1].moving_mean.asnumpy(), mean)
    assert (network.head[0].moving_mean.asnumpy() != 0).all()


def test_a_teacher_in_a_loss_net_of_ones_own(capsys):
    student, teacher = BodyAndHead(), BodyAndHead()
    teacher.update_parameters_name("teacher.")
    for part in (student, teacher):
        part.set_train(False)
    step = PlainStep(Distilled(student, teacher), momentum(student))
    assert moved(step, teacher) == set()
    assert moved(step, student, 1) == BOTH
    assert "as it was set: teacher\n" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["loss with a Parameter", "two parts", "wrapped", "loss_net"])
def test_evaluated_as_a_whole_it_is_trained_in_training_mode(form, network, capsys):
    """It is evaluated by hand, between two steps and before a second step is built."""
    loss_net, cells = {
        "loss with a Parameter": lambda: (LossNet(network, Scaled()), [network]),
        "two parts": lambda: (Towers(network), [network.body, network.head]),
        "wrapped": lambda: (LossNet(Wrapper(network), nn.MSELoss()), [network]),
        "loss_net": lambda: (Towers(network, Scaled()), None),
    }[form]()
    step = PlainStep(loss_net, momentum(loss_net))
    for _ in range(2):
        for cell in cells or [loss_net]:
            cell.set_train(False)
        assert trained(step, network) == BOTH
        assert not network.body[1].training and not network.head[0].training
    assert trained(PlainStep(loss_net, momentum(loss_net)), network) == BOTH
    assert "evaluation mode" not in capsys.readouterr().out


def test_evaluated_and_wrapped_afterwards(network, capsys):
    network.set_train(False)
    assert trained(build(Wrapper(network)), network) == BOTH
    assert "evaluation mode" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "part"),
    [
        # One part of two alone, whatever else is trained, or a part of which nothing is trained.
        (lambda net: Towers(net, Scaled()), None),
        (lambda net: Towers(net), "head"),
        (lambda net: LossNet(net, Scaled()), None),
        (lambda net: LossNet(Wrapper(net), nn.MSELoss()), "body"),
    ],
)
def test_a_part_of_a_network_is_no_evaluation(make, part, network):
    loss_net = make(network)
    network.body.set_train(False)
    step = PlainStep(loss_net, momentum(getattr(network, part) if part else loss_net))
    assert trained(step, network) == {"head"}


def test_only_the_loss_is_trained(network):
    """A network without trained Parameters stays in evaluation mode."""
    loss_net = LossNet(network, Scaled())
    network.set_train(False)
    assert trained(PlainStep(loss_net, momentum(loss_net.loss_fn)), network) == set()


def test_what_was_held_before_an_evaluation_still_is(network):
    step = PlainStep(Towers(network), momentum(network))
    network.body[1].set_train(False)
    assert trained(step, network) == {"head"}
    for cell in (network.body, network.head):
        cell.set_train(False)
    assert trained(step, network) == {"head"}


def test_each_change_of_what_is_held_is_said(network, capsys):
    step = build(network)
    for change, expected in (
        (lambda: None, ""),
        (lambda: network.body.set_train(False), "as it was set: network.body\n"),
        (lambda: network.set_train(False), ""),
        (lambda: network.set_train(), "all of the network is in training mode again\n"),
        (lambda: network.set_train(False), ""),
        (lambda: network.head.set_train(), "as it was set: network.body\n"),
        (lambda: network.body.set_train(), "all of the network is in training mode again\n"),
    ):
        change()
        with followed(step):
            said = capsys.readouterr().out
        assert said.endswith(expected) and bool(said) == bool(expected)


def test_after_an_evaluation_a_call_sets_modes_and_searches_no_more(network, monkeypatch):
    step = build(network)
    network.set_train(False)
    for call in range(3):
        with followed(step):
            assert all(cell.training for _, cell in network.cells_and_names())
        assert not any(mode for _, mode in modes(network))
        if call == 0:
            monkeypatch.setattr("labkit.steps.modes.held", None)
    monkeypatch.undo()
    network.body.set_train()
    with followed(step):
        assert network.body[1].training and not network.head[0].training
