"""Patches against PyTorch's unfold and conv2d in float64, over windows of all kinds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import reference
from labkit.reference import Window

SEEDS = st.integers(0, 99)
EXACT = dict(rtol=1e-12, atol=1e-12)


@st.composite
def windows(draw):
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    around = st.tuples(*[st.integers(0, 2)] * 4)
    step = st.tuples(st.integers(1, 2), st.integers(1, 2))
    return Window(
        draw(pair), draw(step), draw(around), draw(step), draw(st.sampled_from([1, 2, 4]))
    )


@given(windows(), st.booleans(), SEEDS)
def test_convolution_and_its_slopes_are_those_of_conv2d(window, has_bias, seed):
    torch, random = pytest.importorskip("torch"), np.random.default_rng(seed)
    x, weight = random.normal(size=(2, 4, 6, 7)), random.normal(size=(8, 4 // window.groups, 3, 2))
    bias = random.normal(size=8) if has_bias else None
    window = Window((3, 2), window.stride, window.padding, window.dilation, window.groups)
    leaves = [torch.from_numpy(x.copy()), torch.from_numpy(weight.copy())]
    leaves += [torch.from_numpy(bias.copy())] if has_bias else []
    for leaf in leaves:
        leaf.requires_grad_()
    top, bottom, left, right = window.padding
    padded = torch.nn.functional.pad(leaves[0], (left, right, top, bottom))
    y = torch.nn.functional.conv2d(
        *(padded, leaves[1], leaves[2] if has_bias else None),
        stride=window.stride,
        dilation=window.dilation,
        groups=window.groups,
    )
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
