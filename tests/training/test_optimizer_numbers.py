"""A resumed training needs the optimizer's numbers it began with; those that differ are named."""

import json
import math
from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import Callback

from labkit.algorithms.thor import ThorStep
from labkit.errors import InputError
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import set_state
from labkit.steps.losses import LossNet
from labkit.steps.plain import PlainStep
from labkit.training import checkpoint, number_differences, optimizer_numbers
from labkit.training.fingerprints import fingerprint
from labkit.training.fit import fit
from tests.support.step_cells import assert_bit_equal, snapshot
from tests.support.trainings import comparable, dataset, loss_fn, network

pytestmark = pytest.mark.usefixtures("runtime")


class Own(nn.Momentum):
    """A user's own optimizer, with a number and a Parameter of its own."""

    def __init__(self, parameters, trust=0.5, floor=0.1):
        super().__init__(parameters, 0.1, 0.9)
        self._trust = trust
        self.floor = Parameter(Tensor(floor, ms.float32), name="floor")


class Falling(nn.learning_rate_schedule.LearningRateSchedule):
    def __init__(self, start):
        super().__init__()
        self._start = start

    def construct(self, step):
        return self._start / (1 + step)


class Holding(nn.learning_rate_schedule.LearningRateSchedule):
    """A schedule that holds any value."""

    def __init__(self, value):
        super().__init__()
        self.value = value


class Thing:
    """An object that cannot be compared."""


def high(step):
    return 0.1 + 0 * step


def low(step):
    return 0.001 + 0 * step


def enclosing(rate):
    def constant(step):
        return rate + 0 * step

    return constant


def holding(value):
    return momentum(Holding(value))


def many(value, count=100):
    return Tensor(np.full(count, value, np.float32))


def two_groups(decay=0.01, rate=0.2):
    def groups(parameters):
        first, second = list(parameters)[:2], list(parameters)[2:]
        return [{"params": first, "weight_decay": decay}, {"params": second, "lr": rate}]

    return groups


def by_kind(swapped=False, rates=(0.1, 0.01), decays=(0.0, 0.0), weights=2):
    """Return a function that makes two groups: ``weights`` weights, and the rest, or swapped."""

    def groups(parameters):
        both = [[], []]
        for parameter in parameters:
            kind = "weight" not in parameter.name or len(both[0]) >= weights
            both[kind ^ swapped].append(parameter)
        return [
            {"params": part, "lr": rate, "weight_decay": decay}
            for part, rate, decay in zip(both, rates, decays, strict=True)
        ]

    return groups


def momentum(rate=0.1, value=0.9, groups=list, **options):
    return lambda parameters: nn.Momentum(groups(parameters), rate, value, **options)


def adam(rate=0.1, **options):
    return lambda parameters: nn.Adam(parameters, rate, **options)


def array(*values):
    return Tensor(np.array(values, np.float32))


def stepping(make):
    net = network()
    return PlainStep(LossNet(net, loss_fn()), make(net.trainable_params()))


def checkpointed(step):
    """Return what a checkpoint of ``step`` holds: (the optimizer's note, values by name)."""
    values = {parameter.name: parameter for parameter in step.get_parameters()}
    return json.loads(json.dumps(optimizer_numbers.noted(step))), values


def differences(before, now):
    """Return what differs between two optimizers, the first as a checkpoint has it."""
    return number_differences.differences(*checkpointed(stepping(before)), stepping(now))


EXPONENTIAL, COSINE = nn.ExponentialDecayLR, nn.CosineDecayLR
FALLING = (0.4, 0.3, 0.2, 0.1)
RATES = ("learning_rate_group_0", "learning_rate_group_1")
DIFFERENT = {
    "rate": (momentum(), momentum(0.001), {"learning_rate": ("0.001", "0.1")}),
    "momentum": (momentum(), momentum(value=0.5), {"momentum": ("0.5", "0.9")}),
    "decay": (momentum(), momentum(weight_decay=0.5), {"weight_decay": ("0.5", "0.0")}),
    "nesterov": (momentum(), momentum(use_nesterov=True), {"use_nesterov": (True, False)}),
    "beta": (adam(), adam(beta1=0.8), {"beta1": ("0.8", "0.9")}),
    "betas and eps": (
        adam(),
        adam(beta2=0.99, eps=1e-6),
        {"beta2": ("0.99", "0.999"), "eps": ("1e-06", "1e-08")},
    ),
    "a group's rate": (
        momentum(groups=two_groups()),
        momentum(groups=two_groups(rate=0.3)),
        {"learning_rate_group_1": ("0.3", "0.2")},
    ),
    "a group's decay": (
        momentum(groups=two_groups()),
        momentum(groups=two_groups(decay=0.02)),
        {"weight_decay of 1.weight and 1 more": ("0.02", "0.01")},
    ),
    "the groups' members": (
        momentum(groups=by_kind(decays=(0.01, 0.0))),
        momentum(groups=by_kind(swapped=True, decays=(0.01, 0.0))),
        {
            "weight_decay of 1.bias and 3 more": ("0.01", "0.0"),
            "the learning rate of 1.bias and 3 more": (RATES[0], RATES[1]),
        },
    ),
    "the rates' members": (
        momentum(groups=by_kind()),
        momentum(groups=by_kind(swapped=True)),
        {"the learning rate of 1.bias and 3 more": (RATES[0], RATES[1])},
    ),
    "a Parameter in another group": (
        momentum(groups=by_kind()),
        momentum(groups=by_kind(weights=1)),
        {
            "the learning rate of 3.weight": (RATES[1], RATES[0]),
        },
    ),
    "the members of groups with schedules": (
        momentum(groups=by_kind(rates=(EXPONENTIAL(0.1, 0.5, 2), COSINE(0.0, 0.1, 9)))),
        momentum(groups=by_kind(True, (EXPONENTIAL(0.1, 0.5, 2), COSINE(0.0, 0.1, 9)))),
        {"the learning rate of 1.bias and 3 more": ("learning_rate.0", "learning_rate.2")},
    ),
    "a schedule's number": (
        momentum(EXPONENTIAL(0.02, 0.5, 2)),
        momentum(EXPONENTIAL(0.02, 0.25, 2)),
        {"learning_rate.decay_rate": ("0.25", "0.5")},
    ),
    "one's own schedule": (
        momentum(Falling(0.5)),
        momentum(Falling(0.25)),
        {"learning_rate._start": ("0.25", "0.5")},
    ),
    "one's own number": (Own, lambda p: Own(p, trust=0.25), {"_trust": ("0.25", "0.5")}),
    "one's own Parameter": (Own, lambda p: Own(p, floor=0.2), {"floor": ("0.2", "0.1")}),
    "an array of rates": (
        momentum(array(*FALLING)),
        momentum(array(0.4, 0.3, 0.2, 0.2)),
        {"learning_rate": None},
    ),
    "the last of a longer array": (
        momentum(array(*FALLING)),
        momentum(array(0.4, 0.3, 0.2, 0.0, 0.0)),
        {"learning_rate": "5 values from 0.4 to 0"},
    ),
    "an array for a rate": (momentum(), momentum(array(0.1, 0.1)), {"learning_rate": None}),
    "another optimizer": (momentum(), adam(), {"the optimizer": ("Adam", "Momentum")}),
}
SAME = {
    "the same": (momentum(), momentum()),
    "groups": (momentum(groups=two_groups()), momentum(groups=two_groups())),
    "groups by kind": (
        momentum(groups=by_kind(decays=(0.01, 0.0))),
        momentum(groups=by_kind(decays=(0.01, 0.0))),
    ),
    "LARS of groups": (
        lambda p: nn.LARS(momentum(groups=by_kind())(p)),
        lambda p: nn.LARS(momentum(groups=by_kind())(p)),
    ),
    "Adam": (adam(eps=1e-3), adam(eps=1e-3)),
    "a longer array": (momentum(array(*FALLING)), momentum(array(*FALLING, 0.05))),
    "a shorter array": (momentum(array(*FALLING)), momentum(array(*FALLING[:3]))),
    "schedules": (momentum(COSINE(0.01, 0.1, 9)), momentum(COSINE(0.01, 0.1, 9))),
    "Rprop": (lambda p: nn.Rprop(p, 0.1), lambda p: nn.Rprop(p, 0.1)),
    "AdaFactor": (nn.AdaFactor, nn.AdaFactor),
    "one's own": (Own, Own),
}


# Each is compared by its fingerprint, which test_fingerprints.py tests.
VALUES = {
    "a large Tensor": (many(0.1), many(0.001)),
    "a large array": (many(0.1).asnumpy(), many(0.001).asnumpy()),
    "a function": (high, low),
    "a text for a number": ("0.1", 0.1),
    "an operator": (ops.Sin(), ops.Cos()),
    "NaN for a number": (float("nan"), 1.0),
}


@pytest.mark.parametrize("case", VALUES)
def test_what_a_schedule_holds_is_compared(case):
    before, now = (holding(value) for value in VALUES[case])
    assert list(differences(before, now)) == ["learning_rate.value"]
    assert differences(before, before) == {}
    assert all(len(text) < 300 for text in map(fingerprint, VALUES[case]))


@pytest.mark.parametrize("value", [math.nan, [1.0, math.nan], math.inf, Tensor([math.nan])])
def test_nan_is_the_same_as_nan(value):
    assert differences(holding(value), holding(value)) == {}
    assert differences(momentum(rate=array(0.1, math.nan)), momentum(array(0.1, math.nan))) == {}


def test_what_cannot_be_compared_is_named():
    step = stepping(holding([Thing()]))
    note, _ = checkpointed(step)
    assert number_differences.not_compared(note, step) == ["learning_rate.value"]
    assert differences(holding(Thing()), holding(Thing())) == {}
    assert differences(holding(enclosing(Thing())), holding(Thing())) != {}
    text = stepping(holding("high"))
    assert number_differences.not_compared(note, text) == []
    older = {"constants": note["constants"], "parameters": note["parameters"]}
    assert number_differences.not_compared(older, text) == ["learning_rate.value"]
    assert number_differences.differences(older, checkpointed(text)[1], text) == {}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_is_named_with_both_values(case):
    before, now, expected = DIFFERENT[case]
    differ = differences(before, now)
    assert list(differ) == list(expected)
    for name, values in expected.items():
        own = differ[name][0] if isinstance(values, str) else differ[name]
        assert values is None or own == values


@pytest.mark.parametrize("case", SAME)
def test_what_is_the_same_is_no_difference(case):
    assert differences(*SAME[case]) == {}


def test_a_note_of_an_older_labkit_has_no_names():
    """It held the numbers of each Parameter as a list, and the groups' members not at all."""
    make = momentum(groups=by_kind(decays=(0.01, 0.0)))
    step = stepping(make)
    then, values = checkpointed(step)
    del then["rates"]
    constants = then["constants"]
    constants |= {k: list(v.values()) for k, v in constants.items() if isinstance(v, dict)}
    assert isinstance(constants["weight_decay"], list)
    assert number_differences.differences(then, values, stepping(make)) == {}
    other = stepping(momentum(groups=by_kind(decays=(0.02, 0.0))))
    differ = number_differences.differences(then, values, other)
    assert differ["weight_decay of 1.weight and 1 more"] == ("0.02", "0.01")


def quiet_fit(step, folder, epochs=2, resume=True, **options):
    return fit(step, dataset(), epochs, folder=folder, resume=resume, progress=None, **options)


def rates(*values):
    """Return a rate for each of the 11 updates of each epoch."""
    return Tensor(np.repeat(np.array(values, np.float32), 11))


class TestResumed:
    @pytest.fixture
    def begun(self, tmp_path):
        """The folder of a training of one epoch."""
        quiet_fit(stepping(momentum()), tmp_path, 1)
        return tmp_path

    def test_other_numbers_are_refused_and_nothing_is_changed(self, begun):
        step = stepping(momentum(0.001, weight_decay=0.5))
        before = snapshot(step)
        words = (
            "cannot resume: weight_decay: expected 0.0, as in the checkpoint, got 0.5; "
            "learning_rate: expected 0.1, as in the checkpoint, got 0.001; .*resume='new settings'"
        )
        with pytest.raises(InputError, match=words):
            quiet_fit(step, begun)
        assert_bit_equal(snapshot(step), before)

    def test_new_settings_are_those_of_the_step(self, begun, capsys):
        """It is as if rate and decay had been changed by hand between two calls of ``fit``."""
        step = stepping(momentum(0.001, 0.5, weight_decay=0.5))
        records = quiet_fit(step, begun, resume="new settings")
        assert set(records.column("learning_rate")[11:]) == {np.float32(0.001)}
        assert "labkit: new settings: weight_decay is 0.5, was 0.0; " in capsys.readouterr().out
        assert float(step.optimizer.momentum.asnumpy()) == 0.5
        # From then on they are the training's settings.
        again = stepping(momentum(0.001, 0.5, weight_decay=0.5))
        quiet_fit(again, begun)
        with pytest.raises(
            InputError, match="weight_decay: expected 0.5, as in the checkpoint, got 0.0"
        ):
            quiet_fit(stepping(momentum()), begun)

    @pytest.mark.parametrize("resume", [True, "new settings"])
    def test_names_of_the_file_do_not_reach_the_terminal_raw(self, begun, capsys, resume):
        (path,) = checkpoint.checkpoints(begun / "checkpoint")
        step = stepping(momentum())
        position = checkpoint.load(step, path)
        crafted = json.loads(json.dumps(position.optimizer))
        crafted["constants"] |= {"a\x1b]0;b\x07\nc": "\x1b[2J", "half\ud800": 1}
        checkpoint.save(step, replace(position, optimizer=crafted), path.parent)
        said = ""
        try:
            quiet_fit(stepping(momentum()), begun, resume=resume)
        except InputError as error:
            said = str(error)
            assert "\n" not in said
        said += capsys.readouterr().out
        assert "a\\u001b]0;b\\u0007\\nc" in said and "\x1b" not in said
        said.encode()

    def test_another_schedule_on_purpose(self, begun):
        records = quiet_fit(stepping(momentum(rates(1, 0.5))), begun, resume="new settings")
        assert set(records.column("learning_rate")[11:]) == {0.5}

    def test_a_longer_training_has_a_longer_schedule(self, tmp_path):
        whole = stepping(momentum(rates(0.1, 0.05)))
        expected = quiet_fit(whole, tmp_path / "whole")
        quiet_fit(stepping(momentum(rates(0.1))), tmp_path / "parts", 1)
        step = stepping(momentum(rates(0.1, 0.05)))
        records = quiet_fit(step, tmp_path / "parts")
        assert comparable(records.rows) == comparable(expected.rows)
        assert_bit_equal(snapshot(step), snapshot(whole))

    def test_a_rate_that_a_callback_has_lowered_stays_low(self, tmp_path):
        class Lower(Callback):
            def on_train_epoch_end(self, run_context):
                set_state(step.optimizer.learning_rate, np.float32(0.025))

        step = stepping(momentum())
        # Lowered after the first epoch's checkpoint, and before the second epoch's.
        quiet_fit(step, tmp_path, callbacks=[Lower()], checkpoint_every=5)
        records = quiet_fit(stepping(momentum()), tmp_path, 3)
        assert set(records.column("learning_rate")[11:]) == {np.float32(0.025)}
        with pytest.raises(
            InputError, match="learning_rate: expected 0.025, as in the checkpoint, got 0.5"
        ):
            quiet_fit(stepping(momentum(0.5)), tmp_path, 4)

    def test_a_checkpoint_that_notes_no_numbers_is_resumed_and_it_is_said(self, begun, capsys):
        (path,) = checkpoint.checkpoints(begun / "checkpoint")
        step = stepping(momentum())
        position = checkpoint.load(step, path)
        assert position.optimizer["constants"]["class"] == "Momentum" and position.ranks == 1
        checkpoint.save(step, replace(position, optimizer=None, ranks=None), path.parent)
        quiet_fit(stepping(momentum(weight_decay=0.5)), begun)
        assert "so they could not be compared" in capsys.readouterr().out


def constant(value):
    """Return a constant function of the number of updates."""
    return lambda updates: value


class Constant:
    def __init__(self, value):
        self.value = value

    def at(self, updates):
        return self.value


class TestFunctionsOfTheUpdates:
    def accumulating(self, micro_steps):
        net = network()
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        return AccumulatedStep(LossNet(net, loss_fn()), optimizer, micro_steps)

    def test_another_schedule_of_micro_steps_is_refused_or_taken(self, tmp_path, capsys):
        quiet_fit(self.accumulating(constant(2)), tmp_path, 1)
        with pytest.raises(InputError, match="cannot resume: micro_steps: expected .*SHA-256"):
            quiet_fit(self.accumulating(constant(4)), tmp_path)
        quiet_fit(self.accumulating(constant(2)), tmp_path, 1)
        assert "not compared" not in capsys.readouterr().out
        quiet_fit(self.accumulating(constant(4)), tmp_path, resume="new settings")
        assert "labkit: new settings: micro_steps is " in capsys.readouterr().out
        with pytest.raises(InputError, match="micro_steps"):
            quiet_fit(self.accumulating(constant(2)), tmp_path, 3)

    def test_an_older_checkpoint_says_nothing_of_them(self):
        step = self.accumulating(constant(2))
        note, values = checkpointed(step)
        assert number_differences.not_compared(note, step) == []
        del note["functions"]
        assert number_differences.not_compared(note, step) == ["micro_steps"]
        assert number_differences.differences(note, values, step) == {}

    def test_a_method_by_what_its_object_holds(self):
        step = self.accumulating(Constant(2).at)
        note, values = checkpointed(step)
        for value, differ in ((2, []), (4, ["micro_steps"])):
            other = self.accumulating(Constant(value).at)
            assert list(number_differences.differences(note, values, other)) == differ
        # An older labkit noted only the function.
        note["functions"]["micro_steps"] = fingerprint(Constant.at)
        assert number_differences.differences(note, values, step) == {}

    @pytest.mark.parametrize("name", ["damping", "frequency", "factor_frequency"])
    def test_those_of_thor(self, name):
        def thor(value):
            net = network()
            optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
            given = {"damping": 0.1, name: constant(value)}
            return ThorStep(LossNet(net, loss_fn()), optimizer, **given)

        step = thor(2)
        note, values = checkpointed(step)
        assert number_differences.differences(note, values, thor(2)) == {}
        assert name in number_differences.differences(note, values, thor(3))


def test_an_array_of_damping_may_go_on():
    def thor(*damping):
        net = network()
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        return ThorStep(LossNet(net, loss_fn()), optimizer, np.array(damping))

    old = thor(0.3, 0.2)
    then, values = checkpointed(old)
    assert number_differences.differences(then, values, thor(0.3, 0.2, 0.1)) == {}
    for other in ((0.3, 0.1, 0.1), (0.3,)):
        assert list(number_differences.differences(then, values, thor(*other))) == ["damping"]
