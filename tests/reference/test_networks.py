"""Convolutions, LeNet and the losses' twins against PyTorch in float64 and finite differences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import reference
from labkit.reference import Window
from tests import twins
from tests.support.torch_lenet import torch_lenet

RANDOM = np.random.default_rng(0)
IMAGES, LABELS = RANDOM.normal(size=(6, 1, 32, 32)), RANDOM.integers(0, 10, 6)
EXACT = dict(rtol=1e-12, atol=1e-12)
STEPS, AROUND = st.tuples(st.integers(1, 2), st.integers(1, 2)), st.tuples(*[st.integers(0, 2)] * 4)
WINDOWS = st.builds(Window, st.just((3, 2)), STEPS, AROUND, STEPS, st.sampled_from([1, 2, 4]))


@given(WINDOWS, st.booleans(), st.integers(0, 99))
def test_convolution_and_its_slopes_are_those_of_conv2d(window, has_bias, seed):
    torch, random = pytest.importorskip("torch"), np.random.default_rng(seed)
    x, weight = random.normal(size=(2, 4, 6, 7)), random.normal(size=(8, 4 // window.groups, 3, 2))
    bias = random.normal(size=8) if has_bias else None
    arrays = [x, weight, bias] if has_bias else [x, weight]
    leaves = [torch.from_numpy(array.copy()).requires_grad_() for array in arrays]
    top, bottom, left, right = window.padding
    padded = torch.nn.functional.pad(leaves[0], (left, right, top, bottom))
    window_of = dict(stride=window.stride, dilation=window.dilation, groups=window.groups)
    y = torch.nn.functional.conv2d(padded, *leaves[1:], **window_of)
    slope = random.normal(size=y.shape)
    y.backward(torch.from_numpy(slope))
    actual = reference.convolve(x, weight, bias, window)
    np.testing.assert_allclose(actual, y.detach().numpy(), **EXACT)
    slopes = reference.convolution_slopes(x, weight, slope, window)
    for derivative, leaf in zip(slopes, leaves, strict=False):
        np.testing.assert_allclose(derivative, leaf.grad.numpy(), **EXACT)


def test_same_padding_keeps_the_size_and_puts_the_odd_zero_last():
    assert reference.same_padding((6, 6), (3, 3)) == (1, 1, 1, 1)
    assert reference.same_padding((6, 6), (2, 4)) == (0, 1, 1, 2)
    assert reference.same_padding((224, 224), (7, 7), (2, 2)) == (2, 3, 2, 3)
    assert reference.same_padding((4, 4), (1, 1), (2, 2)) == (0, 0, 0, 0)


@pytest.mark.parametrize("conv_bias", [False, True])
def test_loss_and_gradients_are_those_of_pytorch(conv_bias):
    torch = pytest.importorskip("torch")
    parameters = twins.lenet_parameters(1, conv_bias=conv_bias)
    loss, gradients, _ = reference.lenet_gradients(parameters, IMAGES, LABELS)
    network = torch_lenet(torch, parameters)
    outputs = network(torch.from_numpy(IMAGES))
    expected = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(LABELS))
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    assert list(gradients) == list(parameters) and len(gradients) == (10 if conv_bias else 8)
    for name, own in network.named_parameters():
        np.testing.assert_allclose(gradients[name], own.grad.numpy(), rtol=1e-9, atol=1e-13)


def test_the_layers_inputs_and_derivatives_make_the_gradients():
    parameters = twins.lenet_parameters(3, conv_bias=True)
    _, gradients, layers = reference.lenet_gradients(parameters, IMAGES, LABELS)
    assert [layer.name for layer in layers] == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    for layer in layers:
        options = dict(homogeneous=True, layout="patches" if layer.window else "dense")
        seen = reference.patches(layer.inputs, layer.window) if layer.window else layer.inputs
        rows = reference.per_sample_gradients(seen, layer.derivatives, **options)
        both = (gradients[f"{layer.name}.{part}"] for part in ("weight", "bias"))
        expected = reference.gradient_matrix(*both)
        np.testing.assert_allclose(rows.mean(axis=0), expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("model", "targets"),
    [
        (twins.linear_regression, RANDOM.normal(size=(7, 4))),
        (twins.softmax_regression, RANDOM.integers(0, 4, 7)),
    ],
)
def test_gradients_are_the_slopes_of_the_loss(model, targets):
    """Against central differences."""
    inputs, step = RANDOM.normal(size=(7, 3)), 1e-6
    values = [RANDOM.normal(size=(4, 3)), RANDOM.normal(size=4)]
    _, gradients = model(*values, inputs, targets)
    for value, gradient in zip(values, gradients, strict=True):
        for index in np.ndindex(value.shape):
            before, ends = value[index], []
            for sign in (1, -1):
                value[index] = before + sign * step
                ends.append(model(*values, inputs, targets)[0])
            value[index] = before
            assert gradient[index] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-8)


def test_token_cross_entropy_by_hand():
    logits = np.log(np.array([[[1.0, 3.0], [1.0, 1.0], [7.0, 1.0]]]))
    total, count = twins.token_cross_entropy(logits, np.array([[1, 0, -100]]))
    assert count == 2 and total == pytest.approx(-np.log(3 / 4) - np.log(1 / 2))
