"""Convolutions as matrix products over patches (im2col), with any window, and their slopes."""

from dataclasses import dataclass

import numpy as np

from labkit.errors import InputError


@dataclass(frozen=True)
class Window:
    """How a convolution looks at its input.

    kernel, stride, dilation  (height, width)
    padding  zeros at (top, bottom, left, right)
    groups   parts that the channels are cut into
    """

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


def same_padding(size, kernel, stride=(1, 1), dilation=(1, 1)) -> tuple[int, int, int, int]:
    """Return (top, bottom, left, right) of pad_mode "same" on a map of ``size`` (height, width).

    ceil(size / stride) positions an axis; the odd zero goes to the bottom and to the right.
    """
    around = []
    for length, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        positions = -(-length // s)
        total = max((positions - 1) * s + (k - 1) * d + 1 - length, 0)
        around += [total // 2, total - total // 2]
    return tuple(around)


def map_size(size, window: Window) -> tuple[int, int]:
    """Return (height, width) of a convolution's output on a map of ``size`` (height, width)."""
    top, bottom, left, right = window.padding
    padded = (size[0] + top + bottom, size[1] + left + right)
    spans = [(k - 1) * d + 1 for k, d in zip(window.kernel, window.dilation, strict=True)]
    if padded[0] < spans[0] or padded[1] < spans[1]:
        raise InputError(f"a map of {padded}, padding included, came; expected at least {spans}")
    return tuple((p - s) // t + 1 for p, s, t in zip(padded, spans, window.stride, strict=True))


def patches(
    x, kernel, stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1
) -> np.ndarray:
    """Return what each kernel position sees: (N, groups, C/groups kh kw, T) of x (N, C, H, W).

    T counts the positions row by row; a patch is ordered by channel, then kernel row and column.
    """
    window = Window(tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), groups)
    rows, channels = x.shape[:2]
    if channels % groups:
        raise InputError(f"{channels} channels came; expected a multiple of {groups} groups")
    height, width = map_size(x.shape[2:], window)
    padded = _pad(np.asarray(x, dtype=np.float64), padding)
    seen = np.zeros((rows, channels, *kernel, height, width))
    for i, j in np.ndindex(*kernel):
        seen[:, :, i, j] = padded[(..., *_seen_by(i, j, window, height, width))]
    return seen.reshape(rows, groups, -1, height * width)


def sum_of_patches(columns, shape, window: Window) -> np.ndarray:
    """Return the transpose of ``patches``: each entry added to the pixel that it came from.

    columns (N, groups, C/groups kh kw, T), ``shape`` (N, C, H, W) of the result
    """
    height, width = map_size(shape[2:], window)
    top, _, left, _ = window.padding
    padded = _pad(np.zeros(shape), window.padding)
    columns = columns.reshape(*shape[:2], *window.kernel, height, width)
    for i, j in np.ndindex(*window.kernel):
        padded[(..., *_seen_by(i, j, window, height, width))] += columns[:, :, i, j]
    return padded[:, :, top : top + shape[2], left : left + shape[3]]


def convolve(x, weight, bias, window: Window) -> np.ndarray:
    """Return y (N, O, H', W') of x (N, C, H, W), weight (O, C/groups, kh, kw), bias (O,) or None.

    y = W p + b for every patch p, group by group.
    """
    columns = patches(x, **vars(window))
    matrix = weight.reshape(window.groups, weight.shape[0] // window.groups, -1)
    y = np.einsum("gop,ngpt->ngot", matrix, columns)
    y = y.reshape(len(x), len(weight), *map_size(x.shape[2:], window))
    return y if bias is None else y + bias[:, None, None]


def convolution_slopes(x, weight, derivatives, window: Window):
    """Return (dL/dx, dL/d weight, dL/d bias) for dL/dy (N, O, H', W')."""
    columns = patches(x, **vars(window))
    matrix = weight.reshape(window.groups, weight.shape[0] // window.groups, -1)
    slopes = derivatives.reshape(len(x), window.groups, matrix.shape[1], -1)
    by_input = sum_of_patches(np.einsum("gop,ngot->ngpt", matrix, slopes), x.shape, window)
    by_weight = np.einsum("ngot,ngpt->gop", slopes, columns).reshape(weight.shape)
    return by_input, by_weight, derivatives.sum(axis=(0, 2, 3))


def _pad(x, padding):
    top, bottom, left, right = padding
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))


def _seen_by(i, j, window, height, width):
    """Return the slices of the pixels under entry (i, j) of the kernel, for all positions."""
    slices = []
    for entry, d, s, count in zip(
        (i, j), window.dilation, window.stride, (height, width), strict=True
    ):
        slices.append(slice(entry * d, entry * d + (count - 1) * s + 1, s))
    return slices
