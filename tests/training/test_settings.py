"""What a resumed training must share: one dict of plain values, compared by ==."""

import numpy as np
import pytest
from mindspore import Tensor, nn

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

    def __init__(self, parameters, rate, factor=2.0):
        super().__init__(parameters, rate, 0.9)
        self.factor = factor


def of(optimizer, rate=0.1, kind=PlainStep, more=(), **options):
    """Return a function that makes a step of ``optimizer(parameters, rate, **options)``."""

    def make():
        net = network()
        made = optimizer(net.trainable_params(), rate, **options)
        return kind(LossNet(net, loss_fn()), made, *more)

    return make


def momentum(rate=0.1, value=0.9, **options):
    return of(nn.Momentum, rate, momentum=value, **options)


def grouped(rate=0.2, decay=0.01, swapped=False):
    def optimizer(parameters, _):
        first, *others = parameters
        groups = [{"params": [first], "lr": rate, "weight_decay": decay}, {"params": others}]
        return nn.Momentum(groups[::-1] if swapped else groups, 0.1, 0.9)

    return of(optimizer)


def accumulated(micro_steps):
    return of(nn.Adam, kind=AccumulatedStep, more=[micro_steps])


def thor(damping):
    return of(nn.SGD, kind=ThorStep, more=[damping])


def lars(rate):
    return of(lambda parameters, rate: nn.LARS(nn.Momentum(parameters, rate, 0.9)), rate)


def decaying(kind=nn.ExponentialDecayLR, steps=2):
    return lambda: of(nn.Adam, kind(0.1, 0.5, steps))()


def settings(step, updates=4):
    return settings_of(step, dataset(), own_rates(step), updates)


# What is said of them -> (functions that make the step that resumes and the checkpoint's).
DIFFERENT = {
    "optimizer.class: expected Adam, .* got Momentum": (momentum(), of(nn.Adam)),
    "learning_rate: expected 0.1, .* got 0.5": (momentum(0.5), momentum()),
    "learning_rate.* SHA-256": (momentum([0.1] * 6), momentum([0.2] * 6)),
    "4 values.* got 3 values": (momentum([0.1] * 3), momentum([0.1] * 6)),
    "momentum: expected 0.9, .* got 0.8": (momentum(value=0.8), momentum()),
    "weight_decay: expected 0.0, as .*, got 0.1": (momentum(weight_decay=0.1), momentum()),
    "use_nesterov: expected False, .* True": (momentum(use_nesterov=True), momentum()),
    "beta2: expected 0.999, .* got 0.99": (of(nn.Adam, beta2=0.99), of(nn.Adam)),
    "learning_rate.decay_steps: expected 3, .* 2": (decaying(), decaying(steps=3)),
    "class: expected NaturalExpDecayLR, .* Exp": (decaying(), decaying(nn.NaturalExpDecayLR)),
    "rates.learning_rate_group_0: expected 0.2, .* got 0.3": (grouped(rate=0.3), grouped()),
    "weight_decay.0.*: expected 0.01, .* 0.5": (grouped(decay=0.5), grouped()),
    "optimizer.weights.0: expected 1.weight": (grouped(swapped=True), grouped()),
    "rates.learning_rate: expected 0.3, .* got 0.1": (lars(0.1), lars(0.3)),
    "factor: expected 2.0, .* 3.0": (of(Own, factor=3.0), of(Own)),
    "micro_steps": (accumulated(lambda n: 2 + n), accumulated(lambda n: 3)),
    "micro_steps: expected 3": (accumulated(lambda n: 3), accumulated(3)),
    "damping: expected 4 values": (thor([0.1] * 6), thor([0.2] * 6)),
}
# name -> two steps that may resume from one another after four updates
SAME = {
    "numbers": (momentum(Tensor(0.1)), momentum(0.1)),
    "longer rates": (momentum([0.1] * 4 + [0.7] * 9), momentum([0.1] * 6)),
    "groups": (grouped(), grouped()),
    "rates of a group": (grouped([0.1] * 9), grouped([0.1] * 4 + [0.5])),
    "damping": (thor([0.1] * 9), thor(np.array([0.1] * 4 + [0.3]))),
    "functions": (accumulated(lambda n: 2), accumulated(lambda n: 2 + 6 * (n > 3))),
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


@pytest.fixture
def begun(tmp_path):
    """The folder of a training of one epoch, of 11 updates."""
    quiet_fit(momentum()(), dataset(), 1, folder=tmp_path)
    return tmp_path


def test_another_rate_is_refused_and_taken_anyway(begun):
    """From then on the new rate is that of the training."""
    step = momentum(0.5, 0.8)()
    with pytest.raises(InputError, match="learning_rate: expected 0.1, .* got 0.5"):
        quiet_fit(step, dataset(), 2, folder=begun, resume=True)
    records = quiet_fit(step, dataset(), 2, folder=begun, resume="anyway")
    assert records.column("learning_rate") == [np.float32(0.1)] * 11 + [0.5] * 11
    assert snapshot(step)["momentum"] == np.float32(0.8)
    quiet_fit(momentum(0.5, 0.8)(), dataset(), 3, folder=begun, resume=True)


def test_a_rate_that_a_callback_has_changed_is_the_checkpoints(begun):
    (path,) = checkpoint.checkpoints(begun / "checkpoint")
    position, values = checkpoint.load(path)
    step = momentum()()
    checkpoint.load_into(step, values | {"learning_rate": np.array(0.25, np.float32)})
    checkpoint.save(step, position, path.parent)
    records = quiet_fit(momentum()(), dataset(), 2, folder=begun, resume=True)
    assert records.column("learning_rate")[11:] == [0.25] * 11


def test_an_array_of_rates_may_be_longer(tmp_path):
    quiet_fit(momentum([0.1] * 11)(), dataset(), 1, folder=tmp_path)
    longer = momentum([0.1] * 11 + [0.2] * 11)()
    records = quiet_fit(longer, dataset(), 2, folder=tmp_path, resume=True)
    assert records.column("learning_rate")[11:] == [np.float32(0.2)] * 11
