"""Numbers set on the optimizer between two calls act as in MindSpore's own training."""

import warnings

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from labkit.errors import InputError
from labkit.labs.compare import parameter_values
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.state import parameters_in, set_state
from labkit.steps.step import PlainStep
from labkit.steps.update import UpdateStage
from tests.support.step_cells import (
    STEPS,
    assert_bit_equal,
    momentum,
    regression,
    restore,
    rows,
    snapshot,
    tensors,
)

pytestmark = pytest.mark.usefixtures("runtime")


def by_set_data(owner, parameter, value):
    parameter.set_data(Tensor(value))


def by_loading(owner, parameter, value):
    kept = {p.name: Parameter(Tensor(p.asnumpy()), p.name) for p in owner.get_parameters()}
    kept[parameter.name] = Parameter(Tensor(value), parameter.name)
    assert ms.load_param_into_net(owner, kept) == ([], [])


def by_assigning(owner, parameter, value):
    set_state(parameter, value)


def train(step, first, calls):
    for call in range(first, first + calls):
        step(*tensors(*rows(8, seed=call)))


class Decay(nn.Cell):
    """A weight decay that is a Parameter."""

    def __init__(self):
        super().__init__()
        self.decay = Parameter(Tensor(0.5), name="decay")

    def construct(self, global_step):
        return self.decay


def optimizer_of(parameters, rate=0.05, **of_first):
    """Momentum; with ``of_first``, the first Parameter is a group with options of its own."""
    if of_first:
        parameters = [{"params": parameters[:1]} | of_first, {"params": parameters[1:]}]
    return nn.Momentum(parameters, rate, 0.9)


RATES = {"rate": [0.1, 0.07, 0.04, 0.02, 0.01, 0.0]}
# name -> (options of the optimizer, the Parameter that is set)
NUMBERS = {
    "rate": ({}, lambda own: own.learning_rate),
    "momentum": ({}, lambda own: own.momentum),
    "moments": ({}, lambda own: own.moments[0]),
    "rate of a group": ({"lr": 0.1}, lambda own: own.learning_rate[0]),
    "decay of a group": ({"weight_decay": Decay()}, lambda own: parameters_in(own.weight_decay)[0]),
    "array of rates": (RATES, lambda own: own.learning_rate.learning_rate),
    "global_step": (RATES, lambda own: own.global_step),
}


def changed(value):
    """A fifth of an array, in its type; 1 more of an integer."""
    return value + 1 if value.dtype.kind == "i" else (value / 5).astype(value.dtype)


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize("nonfinite", ["drop_micro", "propagate"])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_plain_step_is_mindspores_own_to_the_bit(name, nonfinite):
    (options, number_of), ends = NUMBERS[name], []
    for own in (False, True):
        network, loss_net = regression()
        optimizer = optimizer_of(network.trainable_params(), **options)
        if own:
            step = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), optimizer)
            step.set_train()
        else:
            step = PlainStep(loss_net, optimizer, nonfinite=nonfinite)
        train(step, 0, 2)
        number = number_of(optimizer)
        given = number.asnumpy().copy()
        number.set_data(Tensor(changed(given)).squeeze())  # 1 for global_step, of shape (1,), too
        train(step, 2, 3)
        ends.append(parameter_values(network))
        number.set_data(Tensor(given))
    assert_bit_equal(*ends)


def _with_momentum(step_kind):
    network, loss_net = regression()
    return network, STEPS[step_kind](loss_net, momentum(network))


@pytest.mark.parametrize("how", [by_set_data, by_loading])
@pytest.mark.parametrize("step_kind", STEPS)
def test_every_step_takes_it_as_if_it_were_assigned(once, step_kind, how):
    """Moments, too, except of Adasum, whose workers have their own; and the network's weights."""
    network, step = once(_with_momentum, step_kind)
    optimizer, whole = step.optimizer, snapshot(step)
    numbers = [optimizer.learning_rate, optimizer.momentum, network.weight]
    numbers += [] if step_kind == "adasum" else [optimizer.moments[0]]
    calls = 2 * step.micro_batches

    def end(act, number):
        restore(step, whole)
        train(step, 0, calls + 1)  # the next one is in the middle of a group, if there is one
        if act:
            owner = network if number is network.weight else optimizer
            act(owner, number, changed(number.asnumpy()))
        train(step, calls + 1, calls + 1)
        return snapshot(step)

    unset = end(None, None)
    for number in numbers:
        expected = end(by_assigning, number)
        assert (expected["weight"] != unset["weight"]).any(), number.name
        assert_bit_equal(end(how, number), expected)


class Scaled(UpdateStage):
    """Multiplies gradients by a Parameter of its own."""

    def __init__(self, optimizer):
        super().__init__(optimizer)
        self.factor = Parameter(Tensor(1.0), name="factor", requires_grad=False)

    def construct(self, gradients):
        return self.optimizer(self.map(ops.partial(ops.mul, self.factor), gradients))


def test_a_number_of_an_own_stage_and_a_copy_of_one():
    network, loss_net = regression()
    stage = Scaled(nn.SGD(network.trainable_params(), 0.1))
    step = AccumulatedStep(loss_net, stage.optimizer, 2, update=stage)
    train(step, 0, 2)
    copies = stage.factor.clone(), Parameter(stage.factor, name="copy")
    stage.factor.set_data(Tensor(0.0))
    before = parameter_values(network)
    train(step, 2, 2)
    assert_bit_equal(parameter_values(network), before)
    assert [float(copy.asnumpy()) for copy in copies] == [1.0, 1.0]


def test_the_record_shows_the_rate_that_was_used(eager):
    """A rate that is set within a group holds from the end of that group on."""
    network, loss_net = regression()
    step, used = AccumulatedStep(loss_net, nn.SGD(network.trainable_params(), 0.5), 3), []
    for call in range(9):
        set_state(step.optimizer.learning_rate, 0.5 / 2**call)
        train(step, call, 1)
        step.optimizer.learning_rate.set_data(Tensor(7.0))
        used += step.last_update.learning_rate
    assert used[2:] == [0.5 / 2**call for call in (2, 2, 2, 5, 5, 5, 8)]
    set_state(step.optimizer.learning_rate, 0.25)
    train(step, 9, 1)
    assert step.last_update.learning_rate == (0.5 / 2**8,)
    set_state(step.optimizer.learning_rate, 0.125)
    step.end_epoch()
    assert step.last_update.learning_rate == (0.125,)


@pytest.mark.parametrize("set_moments", [by_set_data, by_loading, by_assigning])
def test_adasum_refuses_moments_by_name(once, set_moments):
    """But a rate is taken, and a checkpoint of the whole step."""
    _, step = once(_with_momentum, "adasum")
    optimizer, name = step.optimizer, "moments.weight: .*in adasum.bank, got 'values"
    train(step, 0, 3)
    whole = snapshot(step)
    train(step, 3, 1)
    set_moments(optimizer, optimizer.moments[0], np.ones((2, 3), np.float32))
    before = snapshot(step)
    for act in (lambda: train(step, 6, 1), step.end_epoch):
        with pytest.raises(InputError, match=name):
            act()
    assert_bit_equal(snapshot(step), before)
    kept = {n: Parameter(Tensor(value), n) for n, value in whole.items()}
    assert ms.load_param_into_net(step, kept) == ([], [])
    train(step, 3, 1)


class ByHand(nn.Optimizer):
    """Gradient descent by hand that counts its updates, or does not."""

    def __init__(self, parameters, rate, counts):
        super().__init__(rate, parameters)
        self.counts = counts

    def construct(self, gradients):
        moves = self.hyper_map(ops.partial(ops.mul, self.get_lr()), gradients)
        done = self.hyper_map(ops.assign_sub, self.parameters, moves)
        if self.counts:
            self.assignadd(self.global_step, self.global_step_increase_tensor)
        return done


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("kind", ["plain", "accumulated", "adasum"])
def test_an_optimizer_that_does_not_count_its_updates_is_named_once(eager, kind, counts):
    """AdasumStep itself counts for the optimizers of its workers."""
    for rate in ([0.5, 0.25, 0.125], 0.5):
        network, loss_net = regression()
        step = STEPS[kind](loss_net, ByHand(network.trainable_params(), rate, counts))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(step, 0, 3 * step.micro_batches)
        said = [each for each in caught if "ByHand leaves its global_step" in str(each.message)]
        assert len(said) == (not counts and kind != "adasum")
