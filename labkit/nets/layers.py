"""Layers: global average pooling, and two that avoid slow kernels of MindSpore on CPU.

``PaddedConv2d`` stays fast on small maps, as in the last stages of a ResNet. On CPU, MindSpore's
convolution computes one matrix product per image, with as many rows as the map has positions: on a
2x2 map it reaches 14 to 30 GFLOP/s, on 8x8 maps 100 (two cores, AVX2). For small maps the whole
batch goes through one product instead:

    Y (B P, O) = X (B P, C k k) W (C k k, O),        P positions of the output map

with X gathered from the input map by a product with a constant matrix of zeros and ones.

``TiledMaxPool2d`` is max-pooling with adjacent windows. On CPU, the backward pass of MindSpore's
own max-pooling is oneDNN's reference kernel, which takes longer than a convolution.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

# Largest output map, in positions, for which one product is faster, by kernel size: on 2x2 maps it
# takes 0.33 to 0.5 of the convolution's time, on 4x4 maps 0.8 to 1.4 (ResNet-50's, 32 images).
_SMALL = {1: 4, 3: 4}


class PaddedConv2d(nn.Conv2d):
    """``nn.Conv2d`` with padding (k - 1) / 2 and no bias: (B, C, H, W) -> (B, O, H', W').

    The only Parameter is ``weight`` (O, C, k, k). On GPU and Ascend, and for larger maps, it calls
    ``nn.Conv2d``; both forms agree to float32 rounding.

    Hazard: if a map holds an infinity, the product form returns NaN for that image, whereas
    ``nn.Conv2d`` returns infinities and NaN. k = ``kernel`` is odd; H' = ceil(H / stride).
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1):
        pad = {"pad_mode": "pad", "padding": (kernel - 1) // 2}
        super().__init__(in_channels, out_channels, kernel, stride, **pad)
        self.kernel, self.step = kernel, stride
        self.largest = _SMALL.get(kernel, 0) if _on_cpu() else 0

    def construct(self, x: Tensor) -> Tensor:
        height = -(-x.shape[2] // self.step)
        width = -(-x.shape[3] // self.step)
        if 0 < height * width <= self.largest:
            return self._one_product(x, height, width)
        return self.conv2d(x, self.weight)

    def _one_product(self, x: Tensor, height: int, width: int) -> Tensor:
        batch, channels, positions = x.shape[0], self.in_channels, height * width
        patches = x
        if self.kernel > 1 or self.step > 1:
            chosen = _selection(x.shape[2], x.shape[3], self.kernel, self.step)
            patches = x.reshape(batch * channels, x.shape[2] * x.shape[3])
            patches = ops.MatMul()(patches, ops.cast(chosen, x.dtype))
        patches = patches.reshape(batch, channels, positions, self.kernel * self.kernel)
        patches = ops.transpose(patches, (0, 2, 1, 3))
        weight = self.weight.reshape(self.out_channels, -1)
        rows = ops.MatMul(transpose_b=True)(patches.reshape(batch * positions, -1), weight)
        maps = ops.transpose(rows.reshape(batch, positions, self.out_channels), (0, 2, 1))
        return maps.reshape(batch, self.out_channels, height, width)


class TiledMaxPool2d(nn.MaxPool2d):
    """``nn.MaxPool2d(size, stride=size)``: (B, C, H, W) -> (B, C, H // size, W // size).

    On CPU, if ``size`` divides H and W, it calls adaptive pooling, which has the same windows and
    also gives the gradient to the first of several equal maxima: both are equal to the bit.

    Hazard: a NaN after another number of its window is not seen; a window that begins with NaN
    gives NaN. ``nn.MaxPool2d`` returns NaN or not, depending on the position.
    """

    def __init__(self, size: int):
        super().__init__(size, stride=size)
        self.size, self.adaptive = size, _on_cpu()

    def construct(self, x: Tensor) -> Tensor:
        if self.adaptive and x.ndim == 4:
            height, width = x.shape[2], x.shape[3]
            if height % self.size == 0 and width % self.size == 0:
                return ops.AdaptiveMaxPool2D((height // self.size, width // self.size))(x)[0]
        return super().construct(x)


class GlobalAveragePool(nn.Cell):
    """The mean over all positions, (B, C, H, W) -> (B, C, 1, 1), as in the source document."""

    def construct(self, x: Tensor) -> Tensor:
        return ops.mean(x, (2, 3), keep_dims=True)


def _on_cpu() -> bool:
    return ms.get_context("device_target") == "CPU"


@ops.constexpr
def _selection(height: int, width: int, kernel: int, stride: int) -> Tensor:
    """Return S (H W, H' W' k k) of zeros and ones: map times S gives the zero-padded patches."""
    pad = (kernel - 1) // 2
    numbers = np.pad(np.arange(1, height * width + 1).reshape(height, width), pad)
    patches = np.lib.stride_tricks.sliding_window_view(numbers, (kernel, kernel))
    patches = patches[::stride, ::stride].reshape(-1)
    return Tensor((np.arange(1, height * width + 1)[:, None] == patches).astype(np.float32))


def exchange(parent: nn.Cell, key: str, cell: nn.Cell) -> None:
    """Replace the Cell ``key`` of ``parent`` by ``cell``; names of Parameters do not change."""
    # Not by setattr, which would prefix them with the parent's name.
    parent._cells[key] = cell
    if isinstance(parent, nn.SequentialCell):
        # The list that it calls. Not from cells(), which omits the repetition of a Cell held twice.
        parent.cell_list = list(parent._cells.values())
