"""The rule: the same numbers everywhere, with the distributions that it states."""

import hashlib

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.migration import rule

SHAPES = {
    "conv.weight": (64, 32, 3, 3),
    "bn.weight": (4000,),
    "bn.bias": (4000,),
    "bn.running_mean": (4000,),
    "bn.running_var": (4000,),
    "bn.num_batches_tracked": (),
    "norm.weight": (4000,),
    "fc.weight": (100, 50),
    "fc.bias": (4000,),
    "scale": (),
}
# Frozen: the recorded steps were made from these numbers. SHA-256 of the float32 bytes.
FROZEN = {
    "conv.weight": "20f78f2d5142b55af546273298ad38b92c48c0673f59ef8f98e1fafe4065a48a",
    "bn.weight": "df9e0f48e0a010ce5c066cde80227631ea7c02d9d9127f3ccdf6fb30ec51ac1a",
    "bn.bias": "9838aa6a1f9f64de385f0e34fa40d0d8df761a36a87995eaa85b0c773af95caa",
    "bn.running_var": "edd70c5203a3c8fd2f31d7840cb343d879400ca9c50cd5bb009049ba5f24e51b",
    "fc.bias": "824f8578c8b21f4245510a764f10cbc79022cf56fb263a71d39a14b8420ba850",
    "images": "83a8f77c8383408a95afd672774905583106798056193f84e665f198c400c7f5",
    "labels": "2aa25a7f6aca33f94af86ab860124e7d69e432319c23b334037799ef6d0716f2",
}


def tensors():
    images, labels = rule.batch(4, 16, 10)
    return rule.state(SHAPES) | {"images": images, "labels": labels}


def checksums(found):
    return {n: hashlib.sha256(found[n].tobytes()).hexdigest() for n in FROZEN}


@pytest.fixture(scope="module")
def state():
    return rule.state(SHAPES)


def test_the_numbers_are_frozen():
    assert checksums(tensors()) == FROZEN


def test_uniform_fills_its_interval_evenly():
    drawn = rule.uniform("u", (200_000,)).astype(np.float64)
    assert 0 <= drawn.min() < 1e-4 and 1 - 1e-4 < drawn.max() < 1
    # Standard errors: 6.5e-4 of the mean, 6e-4 of a tenth's count.
    assert abs(drawn.mean() - 0.5) < 3e-3 and abs(drawn.std() - 12**-0.5) < 2e-3
    assert np.abs(np.histogram(drawn, 10, (0, 1))[0] / drawn.size - 0.1).max() < 3e-3
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.01
    # 24 bits: exact in float32.
    assert (drawn * 2**24 == np.rint(drawn * 2**24)).all()


@pytest.mark.parametrize(
    ("name", "low", "high", "deviation"),
    [
        ("conv.weight", -((6 / 288) ** 0.5), (6 / 288) ** 0.5, (2 / 288) ** 0.5),
        ("fc.weight", -((6 / 50) ** 0.5), (6 / 50) ** 0.5, (2 / 50) ** 0.5),
        ("bn.weight", 0.9, 1.1, 0.2 / 12**0.5),
        ("bn.running_mean", -0.1, 0.1, 0.2 / 12**0.5),
        ("bn.running_var", 0.5, 1.5, 12**-0.5),
        ("norm.weight", -0.1, 0.1, 0.2 / 12**0.5),
        ("fc.bias", -0.1, 0.1, 0.2 / 12**0.5),
    ],
)
def test_distributions(state, name, low, high, deviation):
    value = state[name].astype(np.float64)
    width = high - low
    assert low - 1e-6 <= value.min() < low + 0.02 * width
    assert high - 0.02 * width < value.max() <= high + 1e-6
    # 4000 numbers and more: the mean has a standard error of at most 0.5 % of the width.
    assert abs(value.mean() - (low + high) / 2) < 0.02 * width
    assert value.std() == pytest.approx(deviation, rel=0.03)


def test_batch_norms_biases_open_three_channels_of_four(state):
    bias = state["bn.bias"].astype(np.float64)
    assert (np.abs(bias) >= 2.5).all() and (np.abs(bias) <= 3.5).all()
    assert 0.72 < (bias > 0).mean() < 0.78
    assert np.abs(bias).std() == pytest.approx(12**-0.5, rel=0.03)
    # The sign and the size are drawn apart.
    assert abs(np.corrcoef(np.sign(bias), np.abs(bias))[0, 1]) < 0.05


def test_images_are_blocks_under_noise():
    images, labels = rule.batch(64, 16, 10)
    assert images.shape == (64, 3, 16, 16) and images.dtype == np.float32
    assert labels.shape == (64,) and labels.dtype == np.int32
    assert np.abs(images).max() <= 2 and set(labels) == set(range(10))
    blocks = images.reshape(64, 3, 4, 4, 4, 4).mean((3, 5))
    inside = images - np.repeat(np.repeat(blocks, 4, 2), 4, 3)
    assert blocks.std() > 0.7 and inside.std() == pytest.approx(12**-0.5, rel=0.1)
    assert len({image.tobytes() for image in images}) == 64


def test_a_side_that_is_no_multiple_of_4_is_refused():
    with pytest.raises(InputError, match="side: expected a multiple of 4, got 30"):
        rule.batch(2, 30, 10)
