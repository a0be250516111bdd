"""Convolutions as matrix products over patches (im2col), with any window, and their slopes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

Pair = tuple[int, int]
Sides = tuple[int, int, int, int]


@dataclass(frozen=True)
class Window:
    """The window of a convolution; pairs are (height, width)."""

    kernel: Pair
    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)  # zeros at (top, bottom, left, right)
    dilation: Pair = (1, 1)
    groups: int = 1  # groups into which the channels are split


def same_padding(size: Pair, kernel: Pair, stride: Pair = (1, 1), dilation: Pair = (1, 1)) -> Sides:
    """Return (top, bottom, left, right) of pad_mode "same" on a map of ``size`` (height, width).

    Each axis has ceil(size / stride) positions; an odd zero goes to the bottom or to the right.
    """
    rows, columns = (
        max((-(-length // s) - 1) * s + (k - 1) * d + 1 - length, 0)
        for length, k, s, d in zip(size, kernel, stride, dilation, strict=True)
    )
    return rows // 2, rows - rows // 2, columns // 2, columns - columns // 2


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
    padded = _pad(np.asarray(x, dtype=np.float64), padding)
    views = list(_views(padded, Window(kernel, stride, padding, dilation, groups)))
    return np.stack(views, axis=2).reshape(len(x), groups, -1, views[0][0, 0].size)


def sum_of_patches(columns: np.ndarray, shape: Sequence[int], window: Window) -> np.ndarray:
    """Return the transpose of ``patches``: each entry is added to the pixel that it came from.

    columns (N, groups, C/groups kh kw, T), ``shape`` (N, C, H, W) of the result.
    """
    padded = _pad(np.zeros(shape), window.padding)
    columns = columns.reshape(*shape[:2], -1, columns.shape[3])
    for entry, view in enumerate(_views(padded, window)):
        view += columns[:, :, entry].reshape(view.shape)
    top, _, left, _ = window.padding
    return padded[:, :, top : top + shape[2], left : left + shape[3]]


def convolve(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, window: Window
) -> np.ndarray:
    """Return y (N, O, H', W') of x (N, C, H, W), weight (O, C/groups, kh, kw), bias (O,) or None.

    y = W p + b for every patch p, group by group.
    """
    columns = patches(x, **vars(window))
    matrix = weight.reshape(window.groups, len(weight) // window.groups, -1)
    y = np.einsum("gop,ngpt->ngot", matrix, columns)
    y = y.reshape(len(x), len(weight), *_positions(_pad(x, window.padding).shape, window))
    return y if bias is None else y + bias[:, None, None]


def convolution_slopes(
    x: np.ndarray, weight: np.ndarray, derivatives: np.ndarray, window: Window
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (dL/dx, dL/d weight, dL/d bias) for dL/dy (N, O, H', W')."""
    columns = patches(x, **vars(window))
    matrix = weight.reshape(window.groups, len(weight) // window.groups, -1)
    slopes = derivatives.reshape(len(x), window.groups, matrix.shape[1], -1)
    by_input = sum_of_patches(np.einsum("gop,ngot->ngpt", matrix, slopes), x.shape, window)
    by_weight = np.einsum("ngot,ngpt->gop", slopes, columns).reshape(weight.shape)
    return by_input, by_weight, derivatives.sum(axis=(0, 2, 3))


def _pad(x: np.ndarray, padding: Sides) -> np.ndarray:
    top, bottom, left, right = padding
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))


def _positions(padded_shape: Sequence[int], window: Window) -> list[int]:
    """Return [H', W'] on a padded map (N, C, H, W)."""
    sizes = zip(padded_shape[2:], window.kernel, window.stride, window.dilation, strict=True)
    return [(length - (k - 1) * d - 1) // s + 1 for length, k, s, d in sizes]


def _views(padded: np.ndarray, window: Window) -> Iterator[np.ndarray]:
    """Yield what each entry of the kernel sees at all positions: views (N, C, H', W')."""
    height, width = _positions(padded.shape, window)
    (down, right), (below, beside) = window.stride, window.dilation
    for i, j in np.ndindex(*window.kernel):
        rows = slice(i * below, i * below + (height - 1) * down + 1, down)
        columns = slice(j * beside, j * beside + (width - 1) * right + 1, right)
        yield padded[:, :, rows, columns]
