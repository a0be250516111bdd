"""LeNet as a function of one vector has the numbers of named weights and of finite differences."""

import numpy as np
import pytest
from mindspore import Tensor

from labkit import LeNet5
from labkit.labs.compare import parameter_values
from labkit.labs.flat_lenet import FlatLeNet

pytestmark = pytest.mark.usefixtures("runtime")
DRAW = np.random.default_rng(5)
IMAGES = np.float32(DRAW.normal(size=(6, 1, 32, 32)))
LABELS = np.int32(DRAW.integers(0, 10, 6))


@pytest.fixture(scope="module")
def lenet():
    return FlatLeNet()


@pytest.fixture(scope="module")
def vector(lenet):
    return DRAW.normal(size=61_684) * 0.05


def test_a_vector_and_weights_by_name_are_the_same(lenet, vector):
    weights = lenet.by_name(vector)
    shapes = {parameter.name: parameter.shape for parameter in LeNet5().trainable_params()}
    assert {name: value.shape for name, value in weights.items()} == shapes
    np.testing.assert_array_equal(lenet.vector(weights), vector)
    swapped = dict(reversed(weights.items()))  # names decide, not their order
    np.testing.assert_array_equal(lenet.vector(swapped), vector)


def test_it_is_put_into_a_network(lenet, vector):
    network = LeNet5()
    assert lenet.put(vector, network) is network
    np.testing.assert_allclose(lenet.vector(parameter_values(network)), vector, rtol=1e-7)
    # Its own network has already run: new weights must still reach the compiled graph.
    first, second = (lenet.predicted(v, IMAGES) for v in (vector, 2 * vector))
    np.testing.assert_array_equal(lenet.predicted(vector, IMAGES), first)
    assert np.abs(first - second).max() > 0.01
    np.testing.assert_allclose(network(Tensor(IMAGES)).asnumpy(), first, rtol=1e-5, atol=1e-6)


def test_loss_and_gradient_are_those_of_the_network(lenet, vector):
    loss, gradient = lenet.gradient(vector, IMAGES, LABELS)
    assert abs(lenet.loss(vector, IMAGES, LABELS) - loss) < 1e-5
    direction = gradient / np.linalg.norm(gradient)
    ahead, behind = (
        lenet.gradient(vector + x * direction, IMAGES, LABELS)[0] for x in (1e-6, -1e-6)
    )
    assert abs((ahead - behind) / 2e-6 - np.linalg.norm(gradient)) < 1e-4 * np.linalg.norm(gradient)


def test_images_are_judged_in_parts_and_in_order(lenet, vector, monkeypatch):
    outputs = lenet.predicted(vector, IMAGES)
    right, loss = lenet.judge(vector, IMAGES, LABELS)
    monkeypatch.setattr("labkit.labs.flat_lenet._PART", 4)
    np.testing.assert_allclose(lenet.predicted(vector, IMAGES), outputs, rtol=1e-5, atol=1e-6)
    assert right == (outputs.argmax(axis=1) == LABELS).mean()
    assert abs(loss - lenet.gradient(vector, IMAGES, LABELS)[0]) < 1e-5
    assert lenet.judge(vector, IMAGES, outputs.argmax(axis=1))[0] == 1.0
