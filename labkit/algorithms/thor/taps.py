"""Taps: what sees a layer's inputs and output derivatives, and makes THOR's factors of them.

A tap is the identity in the forward pass. In the backward pass it passes the derivative on and
returns, as the "gradients" of three Parameters that it is given, sums over all positions that the
layer sees in the batch,

    A_sum = sum p p^T        p: the patch of the input at one position
    count = sum 1
    G_sum = sum d d^T        d = dL/dy at one position, L the mean over rows, unscaled

so that they come out of the same ``value_and_grad`` as the weights' gradients, without a side
effect. Where these are not asked for, dead-code elimination removes all of it. Which axis counts
the rows, a tap does not know: ``GradientStage`` makes means over the batch's N rows of them, A_sum
/ N, T = count / N and N G_sum (N d is the derivative of one row's loss). A layer that is used twice
in a forward pass adds up its positions.

All products are float32, whatever the network computes in. The loss scale is taken out of d, not of
G_sum: its square would leave the range of float32 from 2^64 on.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops

from labkit.algorithms.thor.geometry import Convolution, padding


class Tap(nn.Cell):
    """Identity of ``y`` that returns factors as gradients: ``(x, y, a, t, g, scale) -> y``.

    x, y     the layer's input and output before any activation function
    a, t, g  Parameters of shapes (blocks, b, b), (2,) and (blocks', b', b'); their values are
             not looked at. t counts the positions in A_sum and in G_sum
    scale    what the loss was multiplied by, (), float32
    """

    def __init__(self, geometry):
        super().__init__(auto_prefix=False)
        self.a_blocks, self.g_blocks = geometry.a_blocks, geometry.g_blocks
        self.homogeneous = geometry.homogeneous
        self.groups = geometry.groups
        self.is_convolution = isinstance(geometry, Convolution)
        if self.is_convolution:
            self.pad_mode, self.pad = geometry.pad_mode, geometry.pad
            self.kernel, self.stride = geometry.kernel, geometry.stride
            self.dilation = geometry.dilation

    def construct(self, x, y, a, t, g, scale):
        return y

    def bprop(self, x, y, a, t, g, scale, out, dout):
        unscaled = ops.cast(dout, ms.float32) * (1.0 / scale)
        if self.is_convolution:
            patches = self.patches(ops.cast(x, ms.float32))
            derivatives = unscaled.reshape(dout.shape[0], dout.shape[1], -1)
        else:
            patches = _one_image(ops.cast(x, ms.float32))
            derivatives = _one_image(unscaled)
        count = ops.cast(patches.shape[0] * patches.shape[2], ms.float32)
        a_sum = self._products(patches, self.a_blocks, self.homogeneous)
        g_sum = self._products(derivatives, self.g_blocks, False)
        counted = ops.stack((count, count))
        return ops.zeros_like(x), dout, a_sum, counted, g_sum, ops.zeros_like(scale)

    def patches(self, x):
        """Return the patches of a convolution's input (N, C, H, W): (N, C kh kw, T)."""
        geometry = (self.pad_mode, self.pad, self.kernel, self.stride, self.dilation)
        vertical, horizontal = _padding(*geometry, x.shape[2], x.shape[3])
        pads = (vertical[0], horizontal[0])
        if vertical[0] != vertical[1] or horizontal[0] != horizontal[1]:
            # Im2Col pads both sides alike; ops.Pad takes longer.
            x = ops.Pad(((0, 0), (0, 0), vertical, horizontal))(x)
            pads = (0, 0)
        patches = ops.Im2Col(self.kernel, self.stride, self.dilation, pads)(x)
        return patches.reshape(x.shape[0], -1, patches.shape[3])

    def _products(self, columns, blocks, homogeneous):
        """Return sum over images and positions of the columns' outer products, in blocks.

        columns  (M, groups n, L); blocks  how the n (with the homogeneous coordinate) are cut
        """
        images, length = columns.shape[0], columns.shape[2]
        columns = columns.reshape(images, self.groups, -1, length)
        if homogeneous:
            ones = ops.ones((images, self.groups, 1, length), ms.float32)
            columns = ops.concat((columns, ones), 2)
        missing = blocks.count * blocks.size - columns.shape[2]
        if missing:
            zeros = ops.zeros((images, self.groups, missing, length), ms.float32)
            columns = ops.concat((columns, zeros), 2)
        columns = columns.reshape(images, self.groups * blocks.count, blocks.size, length)
        if images > 1 and blocks.size > length:
            # The images' own products would take more room than the columns: (32, 36, 128, 128)
            # for the last 3x3 convolutions of a ResNet-50, on maps of 4 positions.
            columns = ops.transpose(columns, (1, 2, 0, 3))
            columns = columns.reshape(1, columns.shape[0], columns.shape[1], -1)
        # A product per image and a sum took 4.2 and 7.8 ms on LeNet's convolutions (128 images),
        # one product over all images' columns, to be transposed first, 6.4 and 8.8.
        return ops.reduce_sum(ops.BatchMatMul(transpose_b=True)(columns, columns), 0)


@ops.constexpr
def _padding(*arguments):
    return padding(*arguments)


def _one_image(x):
    """Return (N, ..., n) as one image's columns (1, n, N ...)."""
    return ops.transpose(x.reshape(-1, x.shape[-1]), (1, 0)).expand_dims(0)


class Tapped(nn.Cell):
    """A layer with a tap behind it: same outputs, same Parameters under the same names.

    layer    nn.Dense, mint.nn.Linear or nn.Conv2d, or a subclass of one
    tap      its tap, called as ``Tap`` is
    buffers  (a, t, g), the tap's Parameters. They are not this Cell's own, so that they are in no
             checkpoint of the network
    """

    taps_thor = True
    # While a training is looked at operator by operator: (call, x) -> what stands for the call.
    watch = None

    def __init__(self, layer, tap, buffers):
        super().__init__(auto_prefix=False)
        self.layer = layer
        # Not a child: MindSpore's O2 would put it into float16, and its float32 sums would not fit.
        object.__setattr__(self, "tap", tap)
        for name, buffer in zip(("a", "t", "g"), buffers, strict=True):
            object.__setattr__(self, name, buffer)
        self.scale = Tensor(1.0, ms.float32)
        # The derivative is wanted before the activation function that an nn.Dense may have.
        self.activates = bool(getattr(layer, "activation_flag", False))
        if self.activates:
            layer.activation_flag = False

    def __call__(self, x):
        if self.watch is None:
            return super().__call__(x)
        return self.watch(super().__call__, x)

    def unscale(self, scale):
        """Let the tap divide by ``scale``, the Parameter that the loss is multiplied by."""
        object.__setattr__(self, "scale", scale)

    def construct(self, x):
        y = self.tap(x, self.layer(x), self.a, self.t, self.g, self.scale)
        if self.activates:
            y = self.layer.activation(y)
        return y

    def release(self):
        """Return the layer as it was."""
        if self.activates:
            self.layer.activation_flag = True
        return self.layer

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)


def tapped(layer, geometry, buffers) -> Tapped:
    """Return ``layer`` with the tap that makes THOR's factors."""
    return Tapped(layer, Tap(geometry), buffers)
