"""What MindSpore's own THOR computes on GPU, to compare with. Not to be used for training.

For a convolution, over N images and T positions (nn/layer/thor_layer.py, Conv2dThor, not Ascend):

    P = mean over the images of the patches, padded "same" whatever the convolution's padding is
    A = P P^T / T',    T' = positions of P;    D = mean over the images of d;    G = N^2 D D^T / T

The mean is taken before the outer product: E[p] E[p]^T, of rank T' at most. For a fully connected
layer A is divided by its width, not by the rows:

    A = X^T X / in,    G = N^2 D^T D / N

Bias: no curvature. Sums that ``LayerCurvature`` divides by the positions come out multiplied.
"""

import mindspore as ms
from mindspore import ops

from labkit.algorithms.thor.taps import Tap, Tapped


class UpstreamTap(Tap):
    """``Tap`` with the formulas above; stride is the convolution's, dilation is not looked at."""

    def __init__(self, geometry):
        super().__init__(geometry)
        if self.is_convolution:
            self.pad_mode, self.dilation = "same", (1, 1)

    def bprop(self, x, y, a, t, g, scale, out, dout):
        # The gradient stage divides A and the positions by the rows, and multiplies G by them.
        rows = float(x.shape[0])
        unscaled = ops.cast(dout, ms.float32) * (1.0 / scale)
        if self.is_convolution:
            patches = ops.reduce_mean(self.patches(ops.cast(x, ms.float32)), 0).expand_dims(0)
            flat = unscaled.reshape(x.shape[0], dout.shape[1], -1)
            derivatives = ops.reduce_mean(flat, 0).expand_dims(0)
            a_sum = self._products(patches, self.a_blocks, False) * rows
            g_sum = self._products(derivatives, self.g_blocks, False) * rows
            positions = (rows * patches.shape[2], rows * derivatives.shape[2])
        else:
            columns = ops.transpose(ops.cast(x, ms.float32), (1, 0)).expand_dims(0)
            derivatives = ops.transpose(unscaled, (1, 0)).expand_dims(0)
            a_sum = self._products(columns, self.a_blocks, False) * (rows / columns.shape[1])
            g_sum = self._products(derivatives, self.g_blocks, False)
            positions = (rows, rows)
        counted = ops.stack([ops.cast(one, ms.float32) for one in positions])
        return ops.zeros_like(x), dout, a_sum, counted, g_sum, ops.zeros_like(scale)


def tapped(layer, geometry, buffers) -> Tapped:
    """Return ``layer`` with the tap of MindSpore's formulas on GPU."""
    return Tapped(layer, UpstreamTap(geometry), buffers)
