"""Comparing trainings: differences are found, and a comparison of nothing is refused."""

import numpy as np
import pytest

from labkit.labs.compare import largest_differences, relative_error


def test_differences_are_found_leaf_by_leaf():
    expected = {"a": np.zeros((2, 3)), "b": np.array([3.0, 4.0])}
    other = {"a": np.zeros((2, 3)), "b": np.array([3.0, 4.5])}
    assert largest_differences(other, expected) == {"a": 0.0, "b": 0.5}
    assert relative_error(other, expected) == pytest.approx(0.1)


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
