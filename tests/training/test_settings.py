"""What a resumed training must share: one dict of plain values, compared by ==."""

from functools import partial

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from labkit.algorithms.thor import ThorStep
from labkit.errors import InputError
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.step import PlainStep
from labkit.training import checkpoint
from labkit.training.resume import own_rates, refuse_other, settings_of
from tests.support.step_cells import snapshot
from tests.support.trainings import dataset, loss_fn, network, quiet_fit

pytestmark = pytest.mark.usefixtures("runtime")


class Own(nn.Momentum):
    """An optimizer of the user's own, with a number."""

    def __init__(self, parameters, factor=2.0):
        super().__init__(parameters, 0.1, 0.9)
        self.factor = factor


def stepping(make):
    """A PlainStep whose optimizer is ``make(parameters)``."""
    net = network()
    return PlainStep(LossNet(net, loss_fn()), make(net.trainable_params()))


def momentum(rate=0.1, value=0.9, **options):
    return stepping(lambda parameters: nn.Momentum(parameters, rate, value, **options))


def adam(rate=0.1, **options):
    return stepping(lambda parameters: nn.Adam(parameters, rate, **options))


def grouped(rate=0.2, decay=0.01, swapped=False):
    def make(parameters):
        first, *others = parameters
        groups = [{"params": [first], "lr": rate, "weight_decay": decay}, {"params": others}]
        return nn.Momentum(groups[::-1] if swapped else groups, 0.1, 0.9)

    return stepping(make)


def grouping(micro_steps):
    net = network()
    adam = nn.Adam(net.trainable_params(), 0.1)
    return AccumulatedStep(LossNet(net, loss_fn()), adam, micro_steps)


def thor(damping):
    net = network()
    return ThorStep(LossNet(net, loss_fn()), nn.Momentum(net.trainable_params(), 0.1, 0.9), damping)


def settings(step, updates=4):
    return settings_of(step, dataset(), own_rates(step), updates)


def decaying(rate=nn.ExponentialDecayLR, steps=2):
    return adam(rate(0.1, 0.5, steps))


def lars(rate):
    return stepping(lambda parameters: nn.LARS(nn.Momentum(parameters, rate, 0.9)))


def own():
    return stepping(Own)


# What is said of them -> (functions that make the step that resumes and the checkpoint's).
DIFFERENT = {
    "optimizer.class: expected Adam, .* got Momentum": (momentum, adam),
    "learning_rate: expected 0.1, .* got 0.5": (partial(momentum, 0.5), momentum),
    "learning_rate.* SHA-256": (partial(momentum, [0.1] * 6), partial(momentum, [0.2] * 6)),
    "4 values.* got 3 values": (partial(momentum, [0.1] * 3), partial(momentum, [0.1] * 6)),
    "momentum: expected 0.9, .* got 0.8": (partial(momentum, value=0.8), momentum),
    "weight_decay: expected 0.0, as .*, got 0.1": (partial(momentum, weight_decay=0.1), momentum),
    "use_nesterov: expected False, .* True": (partial(momentum, use_nesterov=True), momentum),
    "beta2: expected 0.999, .* got 0.99": (partial(adam, beta2=0.99), adam),
    "learning_rate.decay_steps: expected 3, .* 2": (decaying, partial(decaying, steps=3)),
    "class: expected NaturalExpDecayLR, .* Exp": (
        decaying,
        partial(decaying, nn.NaturalExpDecayLR),
    ),
    "learning_rate.0: expected 0.2, .* got 0.3": (partial(grouped, rate=0.3), grouped),
    "weight_decay.0.*: expected 0.01, .* 0.5": (partial(grouped, decay=0.5), grouped),
    "optimizer.weights.0: expected 1.weight": (partial(grouped, swapped=True), grouped),
    "opt.learning_rate.*: expected 0.3, .* got 0.1": (partial(lars, 0.1), partial(lars, 0.3)),
    "factor: expected 2.0, .* 3.0": (partial(stepping, partial(Own, factor=3.0)), own),
    "micro_steps": (partial(grouping, lambda n: 2 + n), partial(grouping, lambda n: 3)),
    "micro_steps: expected 3": (partial(grouping, lambda n: 3), partial(grouping, 3)),
    "damping: expected 4 values": (partial(thor, [0.1] * 6), partial(thor, [0.2] * 6)),
}
# name -> two steps that may resume from one another after four updates
SAME = {
    "numbers": (partial(momentum, Tensor(0.1)), partial(momentum, 0.1)),
    "longer rates": (partial(momentum, [0.1] * 4 + [0.7] * 9), partial(momentum, [0.1] * 6)),
    "groups": (grouped, grouped),
    "rates of a group": (partial(grouped, [0.1] * 9), partial(grouped, [0.1] * 4 + [0.5])),
    "damping": (partial(thor, [0.1] * 9), partial(thor, np.array([0.1] * 4 + [0.3]))),
    "functions": (partial(grouping, lambda n: 2), partial(grouping, lambda n: 2 + 6 * (n > 3))),
}


@pytest.mark.parametrize("words", DIFFERENT)
def test_what_differs_is_named_with_both_values(words):
    own, saved = DIFFERENT[words]
    with pytest.raises(InputError, match=f"cannot resume: .*{words}.*resume='anyway' goes on"):
        refuse_other(settings(own()), settings(saved()))


@pytest.mark.parametrize("case", SAME)
def test_what_is_the_same_up_to_the_update_goes_on(case):
    own, saved = SAME[case]
    refuse_other(settings(own()), settings(saved()))


class TestTrained:
    """Settings are those that the training began with; ``anyway`` takes the new ones."""

    @pytest.fixture
    def begun(self, tmp_path):
        quiet_fit(momentum(), dataset(), 1, folder=tmp_path)
        return tmp_path

    def test_another_rate_is_refused_and_taken_anyway(self, begun):
        step = momentum(0.5, 0.8)
        with pytest.raises(InputError, match="learning_rate: expected 0.1, .* got 0.5"):
            quiet_fit(step, dataset(), 2, folder=begun, resume=True)
        records = quiet_fit(step, dataset(), 2, folder=begun, resume="anyway")
        rates = [np.float32(0.1)] * 11 + [0.5] * 11
        assert records.column("learning_rate") == rates
        assert snapshot(step)["momentum"] == np.float32(0.8)
        # From then on the new rate is that of the training.
        quiet_fit(momentum(0.5, 0.8), dataset(), 3, folder=begun, resume=True)

    def test_a_rate_that_a_callback_has_changed_is_the_checkpoints(self, begun):
        (path,) = checkpoint.checkpoints(begun / "checkpoint")
        position, values = checkpoint.load(path)
        step = momentum()
        changed = Parameter(Tensor(np.float32(0.25)), name="learning_rate")
        checkpoint.load_into(step, values | {"learning_rate": changed})
        checkpoint.save(step, position, path.parent)
        records = quiet_fit(momentum(), dataset(), 2, folder=begun, resume=True)
        assert records.column("learning_rate")[11:] == [0.25] * 11

    def test_an_array_of_rates_may_be_longer(self, tmp_path):
        quiet_fit(momentum([0.1] * 11), dataset(), 1, folder=tmp_path)
        longer = momentum([0.1] * 11 + [0.2] * 11)
        records = quiet_fit(longer, dataset(), 2, folder=tmp_path, resume=True)
        assert records.column("learning_rate")[11:] == [np.float32(0.2)] * 11
