"""Taps: they see a layer's inputs and output derivatives, and compute THOR's factors from them.

A tap is the identity in the forward pass. In the backward pass it passes the derivative on and
returns, as the "gradients" of three Parameters that it is given, sums over all positions that the
layer sees in the batch:

    A_sum = sum p p^T        p: the patch of the input at one position
    count = sum 1
    G_sum = sum d d^T        d = dL/dy at one position, L the mean over rows, unscaled

The same ``value_and_grad`` thus returns them with the weights' gradients, without a side effect. If
these "gradients" are not requested, dead-code elimination removes the whole computation. A tap does
not know which axis counts the rows: ``GradientStage`` turns the sums into means over the batch's N
rows: A_sum / N, T = count / N and N G_sum (N d is the derivative of one row's loss). If a layer is
used twice in a forward pass, its positions add up.

All products are float32, whatever type the network computes in. The loss scale is divided out of d,
not of G_sum: from 2^64 on, its square would exceed the range of float32.
"""

from collections.abc import Sequence
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from labkit.algorithms.thor.curvature import LayerCurvature
from labkit.algorithms.thor.geometry import Blocks, Convolution, Dense, Place, geometry_of, padding
from labkit.nets.layers import exchange


class Tap(nn.Cell):
    """Identity on ``y`` that returns factors as gradients: ``(x, y, a, t, g, scale) -> y``.

    x and y are the layer's input and output before any activation function, scale is the factor
    that the loss was multiplied by, a float32 scalar. a, t and g are Parameters of shapes (blocks,
    b, b), (2,) and (blocks', b', b') whose values are not used; the "gradient" of t counts the
    positions in A_sum and G_sum.

    Args:
        geometry: geometry of the layer.
    """

    def __init__(self, geometry: Dense) -> None:
        super().__init__(auto_prefix=False)
        self.a_blocks, self.g_blocks = geometry.a_blocks, geometry.g_blocks
        self.homogeneous = geometry.homogeneous
        self.groups = geometry.groups
        self.is_convolution = isinstance(geometry, Convolution)
        if isinstance(geometry, Convolution):
            self.pad_mode, self.pad = geometry.pad_mode, geometry.pad
            self.kernel, self.stride = geometry.kernel, geometry.stride
            self.dilation = geometry.dilation

    def construct(
        self, x: Tensor, y: Tensor, a: Tensor, t: Tensor, g: Tensor, scale: Tensor
    ) -> Tensor:
        return y

    def bprop(
        self,
        x: Tensor,
        y: Tensor,
        a: Tensor,
        t: Tensor,
        g: Tensor,
        scale: Tensor,
        out: Tensor,
        dout: Tensor,
    ) -> tuple[Tensor, ...]:
        unscaled = ops.cast(dout, ms.float32) * (1.0 / scale)
        a_sum, positions, g_sum = self.sums(ops.cast(x, ms.float32), unscaled)
        return ops.zeros_like(x), dout, a_sum, positions, g_sum, ops.zeros_like(scale)

    def sums(self, x: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return A_sum, the positions in A_sum and in G_sum, (2,), and G_sum; ``slopes`` are d."""
        if self.is_convolution:
            patches = self.patches(x)
            slopes = slopes.reshape(slopes.shape[0], slopes.shape[1], -1)
        else:
            patches, slopes = _one_image(x), _one_image(slopes)
        count = ops.cast(patches.shape[0] * patches.shape[2], ms.float32)
        a_sum = self._products(patches, self.a_blocks, self.homogeneous)
        g_sum = self._products(slopes, self.g_blocks, False)
        return a_sum, ops.stack((count, count)), g_sum

    def patches(self, x: Tensor) -> Tensor:
        """Return the patches of a convolution's input (N, C, H, W): (N, C kh kw, T)."""
        geometry = (self.pad_mode, self.pad, self.kernel, self.stride, self.dilation)
        vertical, horizontal = _padding(*geometry, x.shape[2], x.shape[3])
        pads = (vertical[0], horizontal[0])
        if vertical[0] != vertical[1] or horizontal[0] != horizontal[1]:
            # Im2Col pads both sides equally; ops.Pad is slower.
            x = ops.Pad(((0, 0), (0, 0), vertical, horizontal))(x)
            pads = (0, 0)
        patches = ops.Im2Col(self.kernel, self.stride, self.dilation, pads)(x)
        return patches.reshape(x.shape[0], -1, patches.shape[3])

    def _products(self, columns: Tensor, blocks: Blocks, homogeneous: bool) -> Tensor:
        """Return the sum over images and positions of the columns' outer products, in blocks.

        The columns are (M, groups * n, L); n, plus the homogeneous coordinate, is cut into blocks.
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
            # Products per image would take more memory than the columns: (32, 36, 128, 128) for
            # the last 3x3 convolutions of a ResNet-50, on maps of 4 positions.
            columns = ops.transpose(columns, (1, 2, 0, 3))
            columns = columns.reshape(1, columns.shape[0], columns.shape[1], -1)
        # On LeNet's two convolutions (128 images), a product per image and a sum took 4.2 and 7.8
        # ms; one product over all images' columns, which must be transposed first, 6.4 and 8.8 ms.
        return ops.reduce_sum(ops.BatchMatMul(transpose_b=True)(columns, columns), (0,))


@ops.constexpr
def _padding(*arguments: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    return padding(*arguments)


def _one_image(x: Tensor) -> Tensor:
    """Return (N, ..., n) as one image's columns (1, n, N ...)."""
    return ops.expand_dims(ops.transpose(x.reshape(-1, x.shape[-1]), (1, 0)), 0)


class Tapped(nn.Cell):
    """A layer followed by a tap: same outputs, same Parameters under the same names.

    Args:
        layer: nn.Dense, mint.nn.Linear or nn.Conv2d, or a subclass of one.
        tap: its tap, called like ``Tap``.
        buffers: (a, t, g), the tap's Parameters. They do not belong to this Cell, so that no
            checkpoint of the network contains them.
    """

    taps_thor = True
    # Set before a graph is compiled. A graph that gathers no factors has no tap: the tap's results
    # would be compiled and then discarded, 0.5 s of the 1.7 s of a LeNet step.
    gathers = True

    def __init__(self, layer: nn.Cell, tap: Tap, buffers: tuple[Parameter, ...]) -> None:
        super().__init__(auto_prefix=False)
        self.layer = layer
        # Not a child: MindSpore's O2 would cast it to float16, and its float32 sums would not fit.
        object.__setattr__(self, "tap", tap)
        for name, buffer in zip(("a", "t", "g"), buffers, strict=True):
            object.__setattr__(self, name, buffer)
        self.scale = Tensor(1.0, ms.float32)
        # The derivative is taken before the activation function that an nn.Dense may have.
        self.activates = bool(getattr(layer, "activation_flag", False))
        if self.activates:
            layer.activation_flag = False

    def unscale(self, scale: Parameter) -> None:
        """Make the tap divide by ``scale``, the Parameter that the loss is multiplied by."""
        object.__setattr__(self, "scale", scale)

    def construct(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if self.gathers:
            y = self.tap(x, y, self.a, self.t, self.g, self.scale)
        if self.activates:
            y = self.layer.activation(y)
        return y

    def release(self) -> nn.Cell:
        """Restore the layer and return it."""
        if self.activates:
            self.layer.activation_flag = True
        return self.layer

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)


def tap_layers(
    places: Sequence[Place], *, split: int | None, tap: type[Tap]
) -> tuple[list[LayerCurvature], list[Tapped]]:
    """Put a tap after each layer, in place; return the layers' curvatures and the tapped layers.

    Args:
        places: places of the layers.
        split: largest block of a factor, or None.
        tap: class of the taps, whose formulas compute the factors.
    """
    layers, tapped = [], []
    for place in places:
        geometry = geometry_of(place.layer, homogeneous=place.bias is not None, split=split)
        assert geometry is not None  # ``find_layers`` has left out all others
        layer = LayerCurvature(place.name, geometry)
        cell = Tapped(place.layer, tap(geometry), (layer.a_factor, layer.positions, layer.g_factor))
        exchange(place.parent, place.key, cell)
        layers.append(layer)
        tapped.append(cell)
    return layers, tapped
