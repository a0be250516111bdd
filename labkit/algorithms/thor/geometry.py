"""Which layers have factors, how large these are, and how they are cut into blocks."""

import math
from dataclasses import dataclass

from mindspore import mint, nn

from labkit.errors import InputError


@dataclass(frozen=True)
class Blocks:
    """A dimension cut into ``count`` blocks of ``size``; the last one's end is padding."""

    count: int
    size: int


def cut(dimension: int, split: int | None) -> Blocks:
    """Return the fewest blocks of at most ``split``, as equal as possible; None: one block.

    MindSpore's THOR takes blocks of 128 and a rest. LeNet's first dense layer has 401 inputs: 4
    blocks of 101 and 3 of padding, instead of 4 of 128 and 111 of padding.
    """
    count = 1 if split is None else math.ceil(dimension / split)
    return Blocks(count, math.ceil(dimension / count))


@dataclass(frozen=True)
class Dense:
    """A fully connected layer: weight (outputs, inputs); ``inputs`` counts the bias' 1 if any."""

    inputs: int
    outputs: int
    homogeneous: bool
    a_blocks: Blocks
    g_blocks: Blocks
    groups: int = 1


@dataclass(frozen=True)
class Convolution(Dense):
    """A convolution: each group's weight is (outputs, inputs = C kh kw, + 1 for the bias).

    kernel, stride, dilation   (height, width)
    pad_mode, pad              as nn.Conv2d has them
    """

    kernel: tuple = (1, 1)
    stride: tuple = (1, 1)
    dilation: tuple = (1, 1)
    pad_mode: str = "valid"
    pad: tuple = (0, 0, 0, 0)


def padding(pad_mode, pad, kernel, stride, dilation, height, width):
    """Return ((top, bottom), (left, right)) of a convolution on an input map of that size."""
    if pad_mode == "valid":
        return ((0, 0), (0, 0))
    if pad_mode == "pad":
        top, bottom, left, right = pad
        return ((top, bottom), (left, right))
    sizes = zip((height, width), kernel, stride, dilation, strict=True)
    return tuple(_same(*of_axis) for of_axis in sizes)


def _same(length, kernel, stride, dilation):
    """Return (before, after): ceil(length / stride) positions, the odd one out after."""
    positions = -(-length // stride)
    total = max((positions - 1) * stride + (kernel - 1) * dilation + 1 - length, 0)
    return total // 2, total - total // 2


def kind_of(layer) -> type:
    """Return which of MindSpore's layers with factors ``layer`` is, or is derived of."""
    return next(kind for kind in (nn.Dense, mint.nn.Linear, nn.Conv2d) if isinstance(layer, kind))


def geometry_of(layer, *, homogeneous: bool, split: int | None):
    """Return the geometry of a layer that can have factors, or None.

    homogeneous  whether the bias, if it has one, is a coordinate of the inputs
    split        largest block of a factor, or None

    Raises ``InputError`` for a convolution whose axes are not in the order (N, C, H, W).
    """
    if isinstance(layer, (nn.Dense, mint.nn.Linear)):
        outputs, inputs = layer.weight.shape
        return _geometry(Dense, inputs, outputs, homogeneous, split)
    if isinstance(layer, nn.Conv2d):
        if layer.data_format != "NCHW":
            raise InputError(
                f"a convolution has data_format {layer.data_format!r}; expected 'NCHW'"
            )
        outputs, inputs = layer.weight.shape[0], math.prod(layer.weight.shape[1:])
        padding = layer.padding if isinstance(layer.padding, tuple) else (layer.padding,) * 4
        return _geometry(
            Convolution,
            inputs,
            outputs // layer.group,
            homogeneous,
            split,
            groups=layer.group,
            kernel=tuple(layer.kernel_size),
            stride=_pair(layer.stride),
            dilation=_pair(layer.dilation),
            pad_mode=layer.pad_mode,
            pad=padding,
        )
    return None


def _geometry(kind, inputs, outputs, homogeneous, split, **others):
    inputs += homogeneous
    return kind(
        inputs=inputs,
        outputs=outputs,
        homogeneous=homogeneous,
        a_blocks=cut(inputs, split),
        g_blocks=cut(outputs, split),
        **others,
    )


def _pair(value):
    """Return (height, width) of what nn.Conv2d keeps: an int, 2 numbers, or 4 with batch axes."""
    if isinstance(value, int):
        return (value, value)
    return tuple(value[-2:])
