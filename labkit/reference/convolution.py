"""Convolutions as matrix products over patches (im2col), with any window, and their slopes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.errors import InputError

Pair = tuple[int, int]
Sides = tuple[int, int, int, int]


@dataclass(frozen=True)
class Window:
    """The window of a convolution.

    Attributes:
        kernel: (height, width).
        stride: (height, width).
        padding: zeros at (top, bottom, left, right).
        dilation: (height, width).
        groups: number of groups into which the channels are split.
    """

    kernel: Pair
    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1


def same_padding(size: Pair, kernel: Pair, stride: Pair = (1, 1), dilation: Pair = (1, 1)) -> Sides:
    """Return (top, bottom, left, right) of pad_mode "same" on a map of ``size`` (height, width).

    Each axis has ceil(size / stride) positions; an odd zero goes to the bottom or to the right.
    """
    totals = []
    for length, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        positions = -(-length // s)
        totals.append(max((positions - 1) * s + (k - 1) * d + 1 - length, 0))
    rows, columns = totals
    return rows // 2, rows - rows // 2, columns // 2, columns - columns // 2


def _map_of(shape: Sequence[int], window: Window) -> Pair:
    """Return (height, width) of a convolution's output on an input of ``shape`` (N, C, H, W)."""
    top, bottom, left, right = window.padding
    padded = (shape[2] + top + bottom, shape[3] + left + right)
    spans = [(k - 1) * d + 1 for k, d in zip(window.kernel, window.dilation, strict=True)]
    if padded[0] < spans[0] or padded[1] < spans[1]:
        raise InputError(f"a map of {padded}, padding included; expected at least {spans}")
    height, width = ((p - s) // t + 1 for p, s, t in zip(padded, spans, window.stride, strict=True))
    return height, width


def patches(
    x: np.ndarray,
    kernel: Pair,
    stride: Pair = (1, 1),
    padding: Sides = (0, 0, 0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> np.ndarray:
    """Return what each kernel position sees: (N, groups, C/groups kh kw, T) of x (N, C, H, W).

    T counts the positions row by row; a patch is ordered by channel, then kernel row and column.
    """
    window = Window(kernel, stride, padding, dilation, groups)
    rows, channels = x.shape[:2]
    if channels % groups:
        raise InputError(f"channels: expected a multiple of {groups} groups, got {channels}")
    height, width = _map_of(x.shape, window)
    padded = _pad(np.asarray(x, dtype=np.float64), padding)
    columns = np.zeros((rows, channels, *kernel, height, width))
    for i, j in np.ndindex(*kernel):
        columns[:, :, i, j] = padded[_seen_by(i, j, window, height, width)]
    return columns.reshape(rows, groups, -1, height * width)


def sum_of_patches(columns: np.ndarray, shape: Sequence[int], window: Window) -> np.ndarray:
    """Return the transpose of ``patches``: each entry is added to the pixel that it came from.

    columns (N, groups, C/groups kh kw, T), ``shape`` (N, C, H, W) of the result.
    """
    height, width = _map_of(shape, window)
    top, _, left, _ = window.padding
    padded = _pad(np.zeros(shape), window.padding)
    columns = columns.reshape(*shape[:2], *window.kernel, height, width)
    for i, j in np.ndindex(*window.kernel):
        padded[_seen_by(i, j, window, height, width)] += columns[:, :, i, j]
    return padded[:, :, top : top + shape[2], left : left + shape[3]]


def convolve(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, window: Window
) -> np.ndarray:
    """Return y (N, O, H', W') of x (N, C, H, W), weight (O, C/groups, kh, kw), bias (O,) or None.

    y = W p + b for every patch p, group by group.
    """
    columns = patches(x, **vars(window))
    matrix = weight.reshape(window.groups, weight.shape[0] // window.groups, -1)
    y = np.einsum("gop,ngpt->ngot", matrix, columns)
    y = y.reshape(len(x), len(weight), *_map_of(x.shape, window))
    return y if bias is None else y + bias[:, None, None]


def convolution_slopes(
    x: np.ndarray, weight: np.ndarray, derivatives: np.ndarray, window: Window
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (dL/dx, dL/d weight, dL/d bias) for dL/dy (N, O, H', W')."""
    columns = patches(x, **vars(window))
    matrix = weight.reshape(window.groups, weight.shape[0] // window.groups, -1)
    slopes = derivatives.reshape(len(x), window.groups, matrix.shape[1], -1)
    by_input = sum_of_patches(np.einsum("gop,ngot->ngpt", matrix, slopes), x.shape, window)
    by_weight = np.einsum("ngot,ngpt->gop", slopes, columns).reshape(weight.shape)
    return by_input, by_weight, derivatives.sum(axis=(0, 2, 3))


def _pad(x: np.ndarray, padding: Sides) -> np.ndarray:
    top, bottom, left, right = padding
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))


def _seen_by(i: int, j: int, window: Window, height: int, width: int) -> tuple[Any, ...]:
    """Return the index of the pixels under entry (i, j) of the kernel, for all positions."""
    index: tuple[Any, ...] = (...,)
    for entry, d, s, count in zip(
        (i, j), window.dilation, window.stride, (height, width), strict=True
    ):
        index += (slice(entry * d, entry * d + (count - 1) * s + 1, s),)
    return index
