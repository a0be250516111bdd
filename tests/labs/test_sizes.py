"""Sizes that lab 03 speaks of and does not print: weights, factors, what an optimizer keeps."""

import pytest

from labkit import LeNet5


def test_lab_03s_sizes():
    weights = {p.name: p for p in LeNet5().trainable_params()}
    inner = weights["fc1.weight"].size + weights["fc2.weight"].size
    assert inner / sum(p.size for p in weights.values()) == pytest.approx(0.94, abs=0.005)
    outputs, inputs = weights["fc1.weight"].shape
    with_bias = inputs + 1
    assert outputs**2 + with_bias**2 == 175_201
    assert (outputs * with_bias) ** 2 == pytest.approx(2.3e9, rel=0.02)
    assert 2 * (4 * 101**2 + outputs**2) == 110_408  # THOR's: factors and inverses, in blocks
    assert 2 * (inputs**2 + outputs**2) == 348_800  # Shampoo's: both sums and their roots
    assert 348_800 + outputs * inputs == 396_800  # SOAP's: and Adam's second moment
    resnet_50 = 25.5e6
    assert 4 * resnet_50**2 / 1e12 == pytest.approx(2600, abs=10)  # terabytes of float32
