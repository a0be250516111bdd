"""Comparing trainings: differences are found, and a comparison of nothing is refused."""

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.labs.compare import largest_differences, relative_error


def test_differences_are_found_leaf_by_leaf():
    expected = {"a": np.zeros((2, 3)), "b": np.array([3.0, 4.0])}
    other = {"a": np.zeros((2, 3)), "b": np.array([3.0, 4.5])}
    assert largest_differences(other, expected) == {"a": 0.0, "b": 0.5}
    assert relative_error(other, expected) == pytest.approx(0.1)


@pytest.mark.parametrize("compare", [largest_differences, relative_error])
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (({}, {}), "actual: expected the names .*, at least one, got"),
        (({"a": np.zeros(2)}, {"b": np.zeros(2)}), r"the names \['b'\], at least one, got \['a'\]"),
        (({"a": np.zeros(1)}, {"a": np.zeros(3)}), r"a: expected the shape \(3,\), got \(1,\)"),
    ],
)
def test_what_cannot_be_compared_is_refused(compare, arrays, message):
    with pytest.raises(InputError, match=message):
        compare(*arrays)


def test_a_restarted_step_trains_as_a_new_one():
    """Moments and rate are restarted too: without either the two updates would differ."""
    from mindspore import Tensor, nn

    from labkit import LossNet, PlainStep
    from labkit.labs.compare import parameter_values, restarted

    x, y = Tensor(np.float32([[1, 2], [3, -1]])), Tensor(np.float32([[1], [0]]))

    def trained(step):
        for _ in range(2):
            step(x, y)
        return parameter_values(step.gradient.loss_net)

    def built(rate):
        network = nn.Dense(2, 1, weight_init="ones", bias_init="zeros")
        optimizer = nn.Momentum(network.trainable_params(), rate, 0.9)
        return PlainStep(LossNet(network, nn.MSELoss()), optimizer)

    step = built(0.1)
    start = parameter_values(step.gradient.loss_net)
    first = trained(step)
    again = trained(restarted(step, start))
    other = trained(restarted(step, start, 0.02))
    new = trained(built(0.02))
    for name, value in first.items():
        np.testing.assert_array_equal(again[name], value)
        np.testing.assert_array_equal(other[name], new[name])
        assert (other[name] != value).any()


@pytest.mark.parametrize(
    ("rate", "kind"),
    [([0.1, 0.2, 0.3], "_IteratorLearningRate"), (None, "ExponentialDecayLR")],
)
def test_a_schedule_takes_no_other_rate_and_the_weights_stay(rate, kind):
    from mindspore import nn

    from labkit import LossNet, PlainStep
    from labkit.labs.compare import parameter_values, restarted

    network = nn.Dense(2, 1)
    schedule = rate or nn.ExponentialDecayLR(0.1, 0.9, 4)
    optimizer = nn.Momentum(network.trainable_params(), schedule, 0.9)
    step = PlainStep(LossNet(network, nn.MSELoss()), optimizer)
    before = parameter_values(network)
    with pytest.raises(InputError, match=f"rate: expected .*, got Momentum with {kind}"):
        restarted(step, {name: 0 * value for name, value in before.items()}, 0.02)
    for name, value in parameter_values(network).items():
        np.testing.assert_array_equal(value, before[name])
