"""LeNet by hand: PyTorch in float64, finite differences, and what its layers report."""

import numpy as np
import pytest

from labkit import reference
from labkit.errors import InputError

RANDOM = np.random.default_rng(0)
IMAGES, LABELS = RANDOM.normal(size=(6, 1, 32, 32)), RANDOM.integers(0, 10, 6)


def in_torch(torch, parameters, images, labels):
    """Loss and gradients of the same network written with torch.nn.functional."""
    f = torch.nn.functional
    p = {n: torch.from_numpy(v.copy()).requires_grad_() for n, v in parameters.items()}
    x = torch.from_numpy(images)
    for name in ("conv1", "conv2"):
        x = f.conv2d(x, p[f"{name}.weight"], p.get(f"{name}.bias"))
        x = f.max_pool2d(f.relu(x), 2)
    x = x.flatten(1)
    for name in ("fc1", "fc2"):
        x = f.relu(f.linear(x, p[f"{name}.weight"], p[f"{name}.bias"]))
    x = f.linear(x, p["fc3.weight"], p["fc3.bias"])
    loss = f.cross_entropy(x, torch.from_numpy(labels))
    loss.backward()
    return loss.item(), {n: v.grad.numpy() for n, v in p.items()}


@pytest.mark.parametrize("conv_bias", [False, True])
def test_loss_and_gradients_are_those_of_pytorch(conv_bias):
    torch = pytest.importorskip("torch")
    parameters = reference.lenet_parameters(1, conv_bias=conv_bias)
    loss, gradients, _ = reference.lenet_gradients(parameters, IMAGES, LABELS)
    expected_loss, expected = in_torch(torch, parameters, IMAGES, LABELS)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert list(gradients) == list(parameters) and len(gradients) == (10 if conv_bias else 8)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-9, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("conv_bias", [False, True])
def test_the_layers_inputs_and_derivatives_make_the_gradients(conv_bias):
    parameters = reference.lenet_parameters(3, conv_bias=conv_bias)
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


def test_other_images_are_refused():
    with pytest.raises(InputError, match=r"expected shape \(N, C, 32, 32\), got \(6, 1, 28, 28\)"):
        reference.lenet_gradients(reference.lenet_parameters(0), IMAGES[:, :, 2:-2, 2:-2], LABELS)
