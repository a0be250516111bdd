"""The moving average of an update stage, and weights that are swapped for it."""

import numpy as np
import pytest
from mindspore import nn

from labkit.errors import InputError
from labkit.labs.compare import parameter_values
from labkit.steps.step import PlainStep
from labkit.training.evaluation import swapped
from tests.support.step_cells import assert_bit_equal, regression, rows, tensors
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture
def program(example):
    return example("moving_average")


def build(program):
    network, loss_net = regression()
    update = program.MovingAverage(nn.SGD(network.trainable_params(), 0.1), 0.75)
    return network, update, PlainStep(loss_net, update.optimizer, update=update)


def test_it_is_the_average_of_the_weights_after_each_update(program):
    network, update, step = build(program)
    average = None
    for number in range(4):
        step(*tensors(*rows(4, seed=number)))
        weights = parameter_values(network)
        average = average or weights
        average = {n: 0.75 * average[n].astype(np.float64) + 0.25 * weights[n] for n in weights}
    with swapped(network, update.values()):
        inside = parameter_values(network)
    for name, expected in average.items():
        np.testing.assert_allclose(inside[name], expected, **TOLERANCE["float32, a few updates"])
        assert (inside[name] != weights[name]).any()
    assert_bit_equal(parameter_values(network), weights)


def test_the_average_is_nearer_to_the_minimum(program):
    weights, average = program.main()
    assert average < weights - 0.005


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_swapped_weights_are_used_and_given_back_after_an_exception(mode, request):
    if mode == "eager":
        request.getfixturevalue("eager")
    network, _ = regression()
    inputs = tensors(*rows(4))[0]
    before, own = parameter_values(network), network(inputs).asnumpy()
    with pytest.raises(ZeroDivisionError), swapped(network, {"bias": before["bias"] + 1.0}):
        np.testing.assert_allclose(network(inputs).asnumpy(), own + 1, rtol=1e-6)
        raise ZeroDivisionError
    assert_bit_equal(parameter_values(network), before)
    np.testing.assert_array_equal(network(inputs).asnumpy(), own)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weigth", np.zeros((2, 3)), r"values\['weigth'\]: expected names in the network"),
        (
            "weight",
            np.zeros((3, 2)),
            r"values\['weight'\]: expected the shape \(2, 3\), got \(3, 2",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_swapped(eager, name, value, message):
    network, _ = regression()
    before = parameter_values(network)
    with pytest.raises(InputError, match=message):
        with swapped(network, {"bias": np.ones(2), name: value}):
            raise AssertionError
    assert_bit_equal(parameter_values(network), before)
