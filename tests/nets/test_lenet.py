"""LeNet-5 as the tutorials write it."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit import LossNet
from labkit.nets.lenet import LeNet5
from tests import twins
from tests.support.step_cells import digits, restore
from tests.support.tolerances import TOLERANCE
from tests.support.torch_lenet import torch_lenet

pytestmark = pytest.mark.usefixtures("runtime")

SHAPES = {"conv1.weight": (6, 1, 5, 5), "conv2.weight": (16, 6, 5, 5), "fc1.weight": (120, 400),
          "fc1.bias": (120,), "fc2.weight": (84, 120), "fc2.bias": (84,), "fc3.weight": (10, 84),
          "fc3.bias": (10,)}  # fmt: skip


def test_parameters_of_the_tutorial():
    network = LeNet5()
    assert {p.name: p.shape for p in network.trainable_params()} == SHAPES
    others = LeNet5(conv_bias=True), LeNet5(num_class=5, num_channel=3)
    sizes = [sum(p.size for p in each.trainable_params()) for each in (network, *others)]
    assert sizes == [61_684, 61_706, 61_684 + 2 * 150 - 5 * 85]


def parameters(**options):
    drawn = twins.lenet_parameters(2, **options)
    return {name: value.astype(np.float32) for name, value in drawn.items()}


@pytest.mark.parametrize("conv_bias", [False, True])
def test_logits_are_those_of_pytorch(conv_bias):
    torch = pytest.importorskip("torch")
    network, values = LeNet5(conv_bias=conv_bias), parameters(conv_bias=conv_bias)
    restore(network, values)
    images, _ = digits(6)
    logits = network(Tensor(images))
    with torch.no_grad():
        expected = torch_lenet(torch, values)(torch.from_numpy(images)).numpy()
    assert logits.shape == (6, 10) and expected.std() > 0.1
    np.testing.assert_allclose(logits.asnumpy(), expected, **TOLERANCE["logits against PyTorch"])


class ReluFirst(LeNet5):
    """As the tutorials write it: ReLU before the pooling."""

    def construct(self, x):
        x = self.max_pool2d(self.relu(self.conv1(x)))
        x = self.max_pool2d(self.relu(self.conv2(x)))
        x = self.relu(self.fc2(self.relu(self.fc1(self.flatten(x)))))
        return self.fc3(x)


def test_pooling_before_relu_changes_no_bit_of_a_gradient():
    """Also if all values of a window are equal, as in the black frame of a digit, or negative."""
    images, labels = digits(16)
    images[:8, :, ::3] = -1.0
    results = []
    for kind in (LeNet5, ReluFirst):
        network = kind()
        loss_net = LossNet(network, nn.CrossEntropyLoss())
        restore(network, parameters())
        gradients_of = ms.value_and_grad(loss_net, None, network.trainable_params(), has_aux=True)
        (loss, _), gradients = gradients_of(Tensor(images), Tensor(labels))
        results.append([loss.asnumpy(), *(gradient.asnumpy() for gradient in gradients)])
    for ours, theirs in zip(*results, strict=True):
        assert np.abs(ours).max() > 0
        np.testing.assert_array_equal(ours, theirs)
