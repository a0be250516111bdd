"""What MindSpore's own THOR computes on GPU, for comparison. Not to be used for training.

For a convolution, over N images and T positions (nn/layer/thor_layer.py, Conv2dThor, not Ascend):

    P = mean over the images of the patches, padded "same" whatever the convolution's padding is
    A = P P^T / T',    T' = positions of P;    D = mean over the images of d;    G = N^2 D D^T / T

The mean is taken before the outer product: E[p] E[p]^T, of rank T' at most. For a fully connected
layer A is divided by its width, not by the number of rows:

    A = X^T X / in,    G = N^2 D^T D / N

The bias has no curvature. Sums are returned multiplied by the number of positions, because
``LayerCurvature`` divides by it.
"""

import mindspore as ms
from mindspore import Tensor, ops

from labkit.algorithms.thor.layers import Dense, Tap


class UpstreamTap(Tap):
    """``Tap`` with the formulas above; it uses the convolution's stride and ignores dilation."""

    def __init__(self, geometry: Dense) -> None:
        super().__init__(geometry)
        if self.is_convolution:
            self.pad_mode, self.dilation = "same", (1, 1)

    def sums(self, x: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # The gradient stage divides A and the positions by the number of rows, and multiplies G by
        # it.
        rows = float(x.shape[0])
        if self.is_convolution:
            patches = ops.reduce_mean(self.patches(x), 0).expand_dims(0)
            flat = slopes.reshape(x.shape[0], slopes.shape[1], -1)
            slopes = ops.reduce_mean(flat, 0).expand_dims(0)
            a_sum = self._products(patches, self.a_blocks, False) * rows
            g_sum = self._products(slopes, self.g_blocks, False) * rows
            positions = (rows * patches.shape[2], rows * slopes.shape[2])
        else:
            columns = ops.transpose(x, (1, 0)).expand_dims(0)
            slopes = ops.transpose(slopes, (1, 0)).expand_dims(0)
            a_sum = self._products(columns, self.a_blocks, False) * (rows / columns.shape[1])
            g_sum = self._products(slopes, self.g_blocks, False)
            positions = (rows, rows)
        counts = ops.stack([ops.cast(count, ms.float32) for count in positions])
        return a_sum, counts, g_sum
