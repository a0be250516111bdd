"""LeNet by hand against PyTorch in float64, and against what its layers report."""

import numpy as np
import pytest

from labkit import reference
from tests import twins
from tests.support.torch_lenet import torch_lenet

RANDOM = np.random.default_rng(0)
IMAGES, LABELS = RANDOM.normal(size=(6, 1, 32, 32)), RANDOM.integers(0, 10, 6)


def in_torch(torch, parameters, images, labels):
    """Return loss and gradients of the same network in PyTorch."""
    network = torch_lenet(torch, parameters)
    outputs = network(torch.from_numpy(images))
    loss = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(labels))
    loss.backward()
    return loss.item(), {name: p.grad.numpy() for name, p in network.named_parameters()}


@pytest.mark.parametrize("conv_bias", [False, True])
def test_loss_and_gradients_are_those_of_pytorch(conv_bias):
    torch = pytest.importorskip("torch")
    parameters = twins.lenet_parameters(1, conv_bias=conv_bias)
    loss, gradients, _ = reference.lenet_gradients(parameters, IMAGES, LABELS)
    expected_loss, expected = in_torch(torch, parameters, IMAGES, LABELS)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert list(gradients) == list(parameters) and len(gradients) == (10 if conv_bias else 8)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-9, atol=1e-13, err_msg=name)


def test_the_layers_inputs_and_derivatives_make_the_gradients():
    parameters = twins.lenet_parameters(3, conv_bias=True)
    _, gradients, layers = reference.lenet_gradients(parameters, IMAGES, LABELS)
    assert [layer.name for layer in layers] == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    for layer in layers:
        bias = gradients.get(f"{layer.name}.bias")
        options = dict(homogeneous=bias is not None, layout="patches" if layer.window else "dense")
        seen = layer.inputs
        if layer.window:
            seen = reference.patches(layer.inputs, **vars(layer.window))
        rows = reference.per_sample_gradients(seen, layer.derivatives, **options)
        expected = reference.gradient_matrix(gradients[f"{layer.name}.weight"], bias)
        np.testing.assert_allclose(rows.mean(axis=0), expected, rtol=1e-9, atol=1e-14)
