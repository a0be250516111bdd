"""MindSpore's GPU formulas: what they compute, where that is THOR's, and where it is not."""

import numpy as np
import pytest

from labkit import reference
from labkit.errors import InputError
from labkit.reference import Layer, Window

RANDOM = np.random.default_rng(0)
SAME = Window((3, 3), padding=(1, 1, 1, 1))


def test_a_dense_factor_is_divided_by_the_width():
    """The figure measured on MindSpore's DenseThor: 4 rows of 8 ones make 0.5; right is 1."""
    layer = Layer("fc", np.ones((4, 8)), np.ones((4, 2)))
    a, g, positions = layer.factors(homogeneous=False, formulas="upstream_gpu")
    right_a, right_g, _ = layer.factors(homogeneous=False)
    assert positions == (1, 1) and np.all(a == 0.5) and np.all(right_a == 1)
    np.testing.assert_array_equal(g, right_g)


def test_a_dense_layer_of_as_many_rows_as_inputs_is_right():
    layer = Layer("fc", RANDOM.normal(size=(8, 8)), RANDOM.normal(size=(8, 2)))
    came = layer.factors(homogeneous=False, formulas="upstream_gpu")
    for one, other in zip(came, layer.factors(homogeneous=False), strict=False):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_one_row_of_a_convolution_padded_same_is_right_and_a_batch_is_not():
    for rows, right in ((1, True), (4, False)):
        inputs, slopes = RANDOM.normal(size=(rows, 2, 5, 6)), RANDOM.normal(size=(rows, 3, 5, 6))
        layer = Layer("conv", inputs, slopes, SAME)
        came = layer.factors(homogeneous=False, formulas="upstream_gpu")
        expected = layer.factors(homogeneous=False)
        assert came[2] == (30, 30) and expected[2] == 30
        for one, other in zip(came[:2], expected[:2], strict=True):
            assert np.allclose(one, other, rtol=1e-10, atol=1e-12) == right


def test_lenets_convolutions_are_seen_as_if_padded():
    inputs, slopes = RANDOM.normal(size=(2, 1, 32, 32)), RANDOM.normal(size=(2, 6, 28, 28))
    layer = Layer("conv1", inputs, slopes, Window((5, 5)))
    _, g, positions = layer.factors(homogeneous=False, formulas="upstream_gpu")
    assert positions == (32 * 32, 28 * 28)
    mean = slopes.reshape(2, 6, -1).sum(axis=0)
    np.testing.assert_allclose(g[0], mean @ mean.T / 784, rtol=1e-12)


def test_what_upstream_refuses_is_refused():
    inputs, slopes = np.ones((2, 2, 4, 4)), np.ones((2, 2, 4, 4))
    with pytest.raises(InputError, match="2 groups; expected 1"):
        reference.upstream_factors(inputs, slopes, Window((1, 1), groups=2))
    with pytest.raises(InputError, match=r"expected \(N, in\)"):
        reference.upstream_factors(np.ones((2, 3, 4)), np.ones((2, 3, 4)), None)
