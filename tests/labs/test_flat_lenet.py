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
VECTOR = DRAW.normal(size=61_684) * 0.05


@pytest.fixture(scope="module")
def lenet():
    return FlatLeNet()


def test_a_vector_and_weights_by_name_are_the_same_in_any_network(lenet):
    network, weights = LeNet5(), lenet.by_name(VECTOR)
    shapes = {parameter.name: parameter.shape for parameter in network.trainable_params()}
    assert {name: value.shape for name, value in weights.items()} == shapes
    # Names decide, not their order.
    np.testing.assert_array_equal(lenet.vector(dict(reversed(weights.items()))), VECTOR)
    assert lenet.put(VECTOR, network) is network
    np.testing.assert_allclose(lenet.vector(parameter_values(network)), VECTOR, rtol=1e-7)
    # Its own network has already run: new weights must still reach the compiled graph.
    first, second = (lenet.predicted(v, IMAGES) for v in (VECTOR, 2 * VECTOR))
    np.testing.assert_array_equal(lenet.predicted(VECTOR, IMAGES), first)
    assert np.abs(first - second).max() > 0.01
    np.testing.assert_allclose(network(Tensor(IMAGES)).asnumpy(), first, rtol=1e-5, atol=1e-6)


def test_loss_and_gradient_are_those_of_the_network(lenet):
    loss, gradient = lenet.gradient(VECTOR, IMAGES, LABELS)
    assert abs(lenet.loss(VECTOR, IMAGES, LABELS) - loss) < 1e-5
    direction = gradient / np.linalg.norm(gradient)
    moved = (VECTOR + x * direction for x in (1e-6, -1e-6))
    ahead, behind = (lenet.gradient(place, IMAGES, LABELS)[0] for place in moved)
    assert (ahead - behind) / 2e-6 == pytest.approx(np.linalg.norm(gradient), rel=1e-4)


def test_images_are_judged_in_parts_and_in_order(lenet, monkeypatch):
    outputs = lenet.predicted(VECTOR, IMAGES)
    right, loss = lenet.judge(VECTOR, IMAGES, LABELS)
    monkeypatch.setattr("labkit.labs.flat_lenet._PART", 4)
    np.testing.assert_allclose(lenet.predicted(VECTOR, IMAGES), outputs, rtol=1e-5, atol=1e-6)
    assert right == (outputs.argmax(axis=1) == LABELS).mean()
    assert abs(loss - lenet.gradient(VECTOR, IMAGES, LABELS)[0]) < 1e-5
    assert lenet.judge(VECTOR, IMAGES, outputs.argmax(axis=1))[0] == 1.0
