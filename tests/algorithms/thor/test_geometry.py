"""Sizes of factors, blocks and paddings: by properties, and against MindSpore's own layers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Tensor, mint, nn

from labkit import reference
from labkit.algorithms.thor.geometry import (
    Blocks,
    Convolution,
    Dense,
    cut,
    geometry_of,
    padding,
)
from labkit.errors import InputError
from labkit.nets.convolution import PaddedConv2d

pytestmark = pytest.mark.usefixtures("runtime")


class TestBlocks:
    @given(st.integers(1, 5000), st.integers(1, 600))
    def test_as_few_as_possible_as_equal_as_possible(self, dimension, split):
        blocks = cut(dimension, split)
        assert blocks.size <= split and blocks.count * blocks.size >= dimension
        assert (blocks.count - 1) * split < dimension, "one block fewer would have been enough"
        padded = blocks.count * blocks.size - dimension
        assert 0 <= padded < blocks.count, "a block smaller by one would have been enough"

    @given(st.integers(1, 5000), st.integers(1, 600))
    def test_the_bounds_are_the_references(self, dimension, split):
        blocks = cut(dimension, split)
        bounds = reference.block_bounds(dimension, split)
        starts = range(0, dimension, blocks.size)
        assert bounds == [(first, min(first + blocks.size, dimension)) for first in starts]

    @given(st.integers(1, 5000))
    def test_none_is_one_block(self, dimension):
        assert cut(dimension, None) == Blocks(1, dimension)

    def test_lenets_first_dense_layer(self):
        assert cut(401, 128) == Blocks(4, 101)


axes = st.tuples(st.integers(1, 4), st.integers(1, 4))


class TestPadding:
    @given(st.tuples(st.integers(1, 20), st.integers(1, 20)), axes, axes, axes)
    def test_same_is_the_references(self, size, kernel, stride, dilation):
        (top, bottom), (left, right) = padding(
            "same", (9, 9, 9, 9), kernel, stride, dilation, *size
        )
        expected = reference.same_padding(size, kernel, stride, dilation)
        assert (top, bottom, left, right) == expected
        assert 0 <= bottom - top <= 1 and 0 <= right - left <= 1
        for axis, around in enumerate((top + bottom, left + right)):
            seen = size[axis] + around - (kernel[axis] - 1) * dilation[axis] - 1
            assert seen // stride[axis] + 1 == -(-size[axis] // stride[axis])

    def test_valid_is_none_and_pad_is_what_came(self):
        others = ((3, 3), (1, 1), (1, 1), 8, 8)
        assert padding("valid", (1, 2, 3, 4), *others) == ((0, 0), (0, 0))
        assert padding("pad", (1, 2, 3, 4), *others) == ((1, 2), (3, 4))

    @pytest.mark.parametrize(
        "size, kernel, stride, dilation",
        [
            ((7, 8), (3, 3), (2, 2), (1, 1)),
            ((8, 7), (2, 3), (1, 2), (1, 1)),
            ((8, 9), (3, 2), (1, 1), (2, 3)),
            ((5, 6), (1, 1), (3, 2), (1, 1)),
            ((6, 6), (5, 4), (3, 3), (1, 1)),
        ],
        ids=str,
    )
    def test_same_is_what_the_convolution_itself_does(self, size, kernel, stride, dilation):
        """Its outputs, not only their number: an odd zero on the other side would change them."""
        layer = nn.Conv2d(2, 3, kernel, stride, "same", dilation=dilation)
        x = np.random.default_rng(0).normal(size=(2, 2, *size)).astype(np.float32)
        geometry = geometry_of(layer, homogeneous=False, split=None)
        of_layer = (geometry.pad_mode, geometry.pad, geometry.kernel, geometry.stride)
        (top, bottom), (left, right) = padding(*of_layer, geometry.dilation, *size)
        window = reference.Window(kernel, stride, (top, bottom, left, right), dilation)
        expected = reference.convolve(x, layer.weight.asnumpy().astype(np.float64), None, window)
        np.testing.assert_allclose(layer(Tensor(x)).asnumpy(), expected, rtol=1e-5, atol=1e-6)


class OwnDense(nn.Dense):
    """A subclass that changes nothing."""


class TestGeometryOf:
    @pytest.mark.parametrize("make", [nn.Dense, OwnDense, mint.nn.Linear])
    @pytest.mark.parametrize("homogeneous", [False, True])
    def test_dense(self, make, homogeneous):
        came = geometry_of(make(300, 10), homogeneous=homogeneous, split=128)
        inputs = 300 + homogeneous
        assert type(came) is Dense
        assert (came.inputs, came.outputs, came.groups) == (inputs, 10, 1)
        assert came.homogeneous is homogeneous
        assert (came.a_blocks, came.g_blocks) == (cut(inputs, 128), Blocks(1, 10))

    def test_convolution(self):
        layer = nn.Conv2d(
            6, 40, (3, 2), (2, 1), "pad", (1, 0, 2, 3), dilation=(1, 2), group=2, has_bias=True
        )
        came = geometry_of(layer, homogeneous=True, split=8)
        assert came == Convolution(
            inputs=3 * 3 * 2 + 1,
            outputs=20,
            homogeneous=True,
            a_blocks=Blocks(3, 7),
            g_blocks=Blocks(3, 7),
            groups=2,
            kernel=(3, 2),
            stride=(2, 1),
            dilation=(1, 2),
            pad_mode="pad",
            pad=(1, 0, 2, 3),
        )

    def test_convolution_by_numbers(self):
        layer = nn.Conv2d(4, 8, 3, 2, "pad", 1, dilation=2)
        came = geometry_of(layer, homogeneous=False, split=None)
        assert (came.kernel, came.stride, came.dilation) == ((3, 3), (2, 2), (2, 2))
        assert (came.pad_mode, came.pad) == ("pad", (1, 1, 1, 1))
        assert (came.inputs, came.outputs, came.groups) == (36, 8, 1)

    def test_padded_convolution(self):
        came = geometry_of(PaddedConv2d(4, 8, 3, 2), homogeneous=False, split=None)
        assert (came.pad_mode, came.pad, came.stride) == ("pad", (1, 1, 1, 1), (2, 2))

    @pytest.mark.parametrize(
        "layer",
        [
            lambda: nn.BatchNorm2d(4),
            lambda: nn.LayerNorm((4,)),
            lambda: nn.GroupNorm(2, 4),
            lambda: nn.Embedding(4, 4),
            lambda: nn.Conv1d(4, 4, 3),
            lambda: nn.Conv2dTranspose(4, 4, 3),
            lambda: nn.SequentialCell(nn.Dense(3, 3)),
        ],
    )
    def test_others_have_none(self, layer):
        assert geometry_of(layer(), homogeneous=False, split=128) is None

    def test_other_axes_are_refused(self):
        layer = nn.Conv2d(4, 4, 3)
        layer.data_format = "NHWC"  # MindSpore refuses to build one on CPU
        with pytest.raises(InputError, match="data_format 'NHWC'; expected 'NCHW'"):
            geometry_of(layer, homogeneous=False, split=128)
