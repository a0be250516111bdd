"""Learning rates against loops in float64, PyTorch, MindSpore and the sources' numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import nn

from labkit.errors import InputError
from labkit.steps import schedules
from labkit.steps.schedules import (
    check_length,
    cosine,
    cosine_as_in_the_blog,
    get_lr,
    get_thor_damping,
    get_thor_lr,
)
from tests import twins
from tests.support.tolerances import TOLERANCE

RATES = st.floats(1e-4, 10.0)
EPOCHS = st.integers(1, 12)
STEPS = st.integers(1, 9)
# The documents' settings: ImageNet on eight devices, batch 256.
STAGE_1 = dict(lr_init=0, lr_end=0.0, lr_max=0.8, warmup_epochs=5, total_epochs=90)


def assert_rates(rates, expected):
    """Assert the same length and rates, in float32; an empty schedule fails."""
    assert rates.dtype == np.float32 and rates.shape == (len(expected),) and len(expected)
    np.testing.assert_allclose(rates, expected, **TOLERANCE["a rate in float32"])


@given(lr=RATES, part=st.floats(0, 1), epochs=EPOCHS, steps=STEPS, data=st.data())
def test_cosine_is_the_reference(lr, part, epochs, steps, data):
    arguments = (lr, part * lr, epochs, steps, data.draw(st.integers(0, epochs)))
    assert_rates(cosine(*arguments), twins.cosine_schedule(*arguments))


@pytest.mark.parametrize(
    ("epochs", "steps", "warmup"), [(6, 5, 0), (6, 5, 2), (3, 4, 1), (9, 7, 8)]
)
def test_cosine_is_pytorch_s_linear_warmup_and_cosine(epochs, steps, warmup):
    torch = pytest.importorskip("torch")
    scheduler = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    total, rising = epochs * steps, warmup * steps
    schedule = scheduler.CosineAnnealingLR(optimizer, T_max=total - rising, eta_min=0.01)
    if rising:
        warmed = scheduler.LinearLR(optimizer, start_factor=1 / rising, total_iters=rising - 1)
        schedule = scheduler.SequentialLR(optimizer, [warmed, schedule], milestones=[rising])
    rates = []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert_rates(cosine(0.4, 0.01, epochs, steps, warmup), rates)


@given(lr=RATES, part=st.floats(0, 0.99), epochs=EPOCHS, steps=STEPS, data=st.data())
def test_the_blog_s_call_is_reproduced(lr, part, epochs, steps, data):
    warmup = data.draw(st.integers(1, epochs))
    rates = cosine_as_in_the_blog(lr, part * lr, epochs, steps, warmup)
    called = nn.dynamic_lr.cosine_decay_lr(part * lr, lr, epochs * steps, steps, warmup)
    assert_rates(rates, called)


def test_the_blog_has_no_warmup_a_floor_too_early_and_stairs():
    blog, meant = cosine_as_in_the_blog(0.4, 0.01, 90, 7, 5), cosine(0.4, 0.01, 90, 7, 5)
    assert blog[0] == blog[:35].max() == np.float32(0.4)
    assert (blog[35:] == np.float32(0.01)).all() and (blog[:35] > 0.01).all()
    assert len(blog[35:]) / len(blog) == pytest.approx(0.944, abs=1e-3)
    assert (blog.reshape(90, 7) == blog.reshape(90, 7)[:, :1]).all()
    assert meant[0] < 0.012 and meant[34] == np.float32(0.4) and len(set(meant[35:])) == 595


@given(
    rates=st.tuples(RATES, RATES, RATES),
    epochs=EPOCHS,
    steps=STEPS,
    mode=st.sampled_from(schedules.LR_DECAY_MODES),
    data=st.data(),
)
def test_get_lr_is_the_reference(rates, epochs, steps, mode, data):
    arguments = (*rates, data.draw(st.integers(0, epochs)), epochs, steps, mode)
    assert_rates(get_lr(*arguments), twins.resnet_schedule(*arguments))


def test_lr_generator_s_cosine_drops_at_the_end_of_its_warmup():
    for warmup, after in [(5, 0.794), (20, 0.666)]:
        setting = STAGE_1 | dict(warmup_epochs=warmup)
        rates = get_lr(**setting, steps_per_epoch=50, lr_decay_mode="cosine")
        assert rates[warmup * 50 - 1] == np.float32(0.8)
        assert float(rates[warmup * 50]) == pytest.approx(after, abs=5e-4)


def test_stage_1_stops_where_its_rate_is_still_0_188():
    """The schedule is for 90 epochs; its first update does nothing, its last rate is nearly 0."""
    rates = get_lr(**STAGE_1, steps_per_epoch=625, lr_decay_mode="linear")
    assert len(rates) == 90 * 625 and rates[0] == 0 and 0 < rates[-1] < 2e-5
    assert rates[5 * 625] == rates.max() == np.float32(0.8)
    assert rates[70 * 625] == pytest.approx(0.8 * 20 / 85, rel=1e-6)
    assert round(float(rates[70 * 625]), 3) == round(float(rates[70 * 625 - 1]), 3) == 0.188


@given(lr=RATES, decay=st.floats(0, 6), total=EPOCHS, steps=STEPS, halved=st.integers(1, 14))
def test_thor_s_rate_is_the_reference(lr, decay, total, steps, halved):
    rates = get_thor_lr(0, lr, decay, total, steps, decay_epochs=halved)
    assert_rates(rates, twins.thor_schedule(lr, decay, total, steps, halved))


@given(damping=RATES, rate=st.floats(0.01, 1.5), total=EPOCHS, steps=STEPS)
def test_thor_s_damping_is_the_reference(damping, rate, total, steps):
    rates = get_thor_damping(0, damping, rate, total, steps)
    assert_rates(rates, twins.thor_damping(damping, rate, total, steps))


def test_thor_halves_at_39_and_again_at_40():
    """With the document's numbers; the default for decay_epochs is 39, as in its call."""
    steps = 10
    rates = get_thor_lr(0, 0.05803, 4.0839, 53, steps)
    smooth = 0.05803 * (1 - np.arange(1, 53 * steps + 1) / steps / 53) ** 4.0839
    np.testing.assert_array_equal(rates, get_thor_lr(0, 0.05803, 4.0839, 53, steps, 39))
    # Update 390 ends epoch 39: its rate is the first that is halved.
    np.testing.assert_allclose(rates[:389], smooth[:389], rtol=1e-6)
    np.testing.assert_allclose(rates[389:399], smooth[389:399] / 2, rtol=1e-6)
    np.testing.assert_allclose(rates[399:], smooth[399:] / 4, rtol=1e-6)
    assert rates[-1] == 0


def test_thor_s_damping_falls_by_its_rate_in_ten_epochs():
    damping = get_thor_damping(0, 0.03, 0.50036, 70, 10)
    assert damping[99] == pytest.approx(0.03 * 0.50036) and len(damping) == 700
    assert damping[299] == pytest.approx(0.03 * 0.50036**3)


def test_thor_goes_on_from_an_update():
    for function, rest in ((get_thor_lr, (0.1, 2, 4, 5, 2)), (get_thor_damping, (0.1, 0.5, 4, 5))):
        np.testing.assert_array_equal(function(7, *rest), function(0, *rest)[7:])
        assert len(function(19, *rest)) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cosine(0.1, 0.0, 2.0, 2), "epochs: expected an integer >= 1, got 2.0"),
        (lambda: cosine(0.1, 0.0, 3, 2, 4), "warmup_epochs: expected an integer >= 0 and <= 3"),
        (lambda: cosine(1e39, 0.0, 3, 2), "lr: expected a finite number >= 0 and <="),
        (lambda: cosine_as_in_the_blog(0.1, 0.1, 3, 2, 1), "lr_end: expected less than lr, 0.1"),
        (lambda: get_lr(0, 0, -0.1, 1, 3, 2), "lr_max: expected a finite number >= 0"),
        (lambda: get_lr(0, 0, 0.1, 1, 3, 2, "liner"), "got 'liner'. Did you mean 'linear'"),
        (lambda: get_thor_damping(0, 0.1, 0, 3, 2), "decay_rate: expected a finite number > 0"),
        (lambda: get_thor_damping(0, 0.1, 1e30, 20, 2), "rates grow to"),
        (lambda: get_thor_lr(20, 0.1, 2, 4, 5, 2), "global_step.* an integer >= 0 and <= 19"),
        (lambda: check_length(np.zeros(5), 6), "has 5 values for 6 updates; expected at least as"),
        (lambda: check_length(0.1, 2), r"expected shape \(N,\), one value an update, got"),
    ],
)
def test_what_is_refused(call, words):
    check_length(np.zeros(5), 5)
    with pytest.raises(InputError, match=words):
        call()
