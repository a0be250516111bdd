"""Convolutions as matrix products over patches (im2col), with any window, and their slopes."""

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


def patches(x: np.ndarray, window: Window) -> np.ndarray:
    """Return what each kernel position sees: (N, groups, C/groups kh kw, T) of x (N, C, H, W).

    T counts the positions row by row; a patch is ordered by channel, then kernel row and column.
    """
    views = _views(_pad(np.asarray(x, dtype=np.float64), window), window)
    return np.stack(views, axis=2).reshape(len(x), window.groups, -1, views[0][0, 0].size)


def convolve(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, window: Window
) -> np.ndarray:
    """Return y (N, O, H', W') of x (N, C, H, W), weight (O, C/groups, kh, kw), bias (O,) or None.

    y = W p + b for every patch p, group by group.
    """
    matrix = weight.reshape(window.groups, len(weight) // window.groups, -1)
    y = np.einsum("gop,ngpt->ngot", matrix, patches(x, window))
    y = y.reshape(len(x), len(weight), *_views(_pad(x, window), window)[0].shape[2:])
    return y if bias is None else y + bias[:, None, None]


def convolution_slopes(
    x: np.ndarray, weight: np.ndarray, derivatives: np.ndarray, window: Window
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (dL/dx, dL/d weight, dL/d bias) for dL/dy (N, O, H', W')."""
    matrix = weight.reshape(window.groups, len(weight) // window.groups, -1)
    slopes = derivatives.reshape(len(x), window.groups, matrix.shape[1], -1)
    by_weight = np.einsum("ngot,ngpt->gop", slopes, patches(x, window)).reshape(weight.shape)
    by_patch = np.einsum("gop,ngot->ngpt", matrix, slopes)
    by_patch = by_patch.reshape(*x.shape[:2], -1, *derivatives.shape[2:])
    # The transpose of ``patches``: each entry is added to the pixel that it came from.
    padded = _pad(np.zeros(x.shape), window)
    for entry, view in enumerate(_views(padded, window)):
        view += by_patch[:, :, entry]
    top, _, left, _ = window.padding
    by_input = padded[:, :, top : top + x.shape[2], left : left + x.shape[3]]
    return by_input, by_weight, derivatives.sum(axis=(0, 2, 3))


def _pad(x: np.ndarray, window: Window) -> np.ndarray:
    top, bottom, left, right = window.padding
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))


def _views(padded: np.ndarray, window: Window) -> list[np.ndarray]:
    """Return what each entry of the kernel sees at all positions: views (N, C, H', W')."""
    (down, right), (below, beside) = window.stride, window.dilation
    rows = padded.shape[2] - (window.kernel[0] - 1) * below
    columns = padded.shape[3] - (window.kernel[1] - 1) * beside
    return [
        padded[:, :, i * below : i * below + rows : down, j * beside : j * beside + columns : right]
        for i, j in np.ndindex(*window.kernel)
    ]
