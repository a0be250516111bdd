"""The layers that have factors: found in a network, cut into blocks, and tapped.

A tap is the identity in the forward pass. In the backward pass it passes the derivative on and
returns, as the "gradients" of three Parameters, sums over all positions that the layer sees:

    A_sum = sum p p^T        p: the patch of the input at one position
    count = sum 1
    G_sum = sum d d^T        d = dL/dy at one position, L the mean loss, unscaled

The same ``value_and_grad`` thus returns them with the weights' gradients, without a side effect. A
tap does not know what the loss is a mean over: ``GradientStage`` turns the sums into means over the
batch's N rows, A_sum / N, T = count / N and N G_sum (N d is the derivative of one row's loss), or
over its terms. If a layer is used twice in a forward pass, its positions add up.

All products are float32, whatever type the network computes in. The loss scale is divided out of d,
not of G_sum: from 2^64 on, its square would exceed the range of float32.
"""

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops

from labkit.base.arguments import wrong
from labkit.errors import InputError, nearest
from labkit.steps.batches import refuse

LAYERS = nn.Dense, mint.nn.Linear, nn.Conv2d  # those that can have factors


@dataclass(frozen=True)
class Blocks:
    """A dimension cut into ``count`` blocks of ``size``; the end of the last block is padding."""

    count: int
    size: int


def cut(dimension: int, split: int | None) -> Blocks:
    """Return the fewest blocks of at most ``split``, of one size; one block for None."""
    count = 1 if split is None else math.ceil(dimension / split)
    return Blocks(count, math.ceil(dimension / count))


@dataclass(frozen=True)
class Geometry:
    """Sizes of a layer's factors; the rest is a convolution's, as in nn.Conv2d, heights first."""

    inputs: int  # width of A, including the 1 of a homogeneous bias: C kh kw of a convolution
    outputs: int  # width of G, per group
    homogeneous: bool
    a_blocks: Blocks
    g_blocks: Blocks
    groups: int = 1  # groups of channels, each with its own A and G
    kernel: tuple[int, int] | None = None  # None: a fully connected layer
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pad_mode: str = "valid"
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)


def geometry_of(layer: nn.Cell, *, homogeneous: bool, split: int | None) -> Geometry:
    """Return the geometry of one of ``LAYERS``."""
    groups, window = 1, ()  # type: int, tuple[Any, ...]
    if isinstance(layer, nn.Conv2d):
        if layer.data_format != "NCHW":
            raise wrong("data_format of a convolution", layer.data_format, "'NCHW'")
        groups, pad = layer.group, layer.padding
        window = layer.kernel_size, layer.stride, layer.dilation
        window += layer.pad_mode, pad if isinstance(pad, tuple) else (pad,) * 4
    inputs = math.prod(layer.weight.shape[1:]) + homogeneous
    outputs = layer.weight.shape[0] // groups
    blocks = cut(inputs, split), cut(outputs, split)
    return Geometry(inputs, outputs, homogeneous, *blocks, groups, *window)


@ops.constexpr
def padding(
    pad_mode: str, pad: tuple, kernel: tuple, stride: tuple, dilation: tuple, size: tuple
) -> tuple[tuple[int, int], ...]:
    """Return ((top, bottom), (left, right)); an odd zero of "same" goes after the map."""
    if pad_mode != "same":
        return (pad[:2], pad[2:]) if pad_mode == "pad" else ((0, 0), (0, 0))
    sides: tuple = ()
    for length, entries, step, spread in zip(size, kernel, stride, dilation, strict=True):
        total = max((-(-length // step) - 1) * step + (entries - 1) * spread + 1 - length, 0)
        sides += ((total // 2, total - total // 2),)
    return sides


@dataclass(frozen=True)
class Place:
    """Where a layer is: ``parent`` holds it as ``key``."""

    name: str
    parent: nn.Cell
    key: str
    layer: nn.Cell  # without a tap
    geometry: Geometry
    weight: int  # its index among the optimizer's parameters
    bias: int | None = None  # likewise; None if it is not in the factors


def find_layers(
    loss_net: nn.Cell,
    parameters: Sequence[Parameter],
    bias: str,
    split: int | None,
    skip: Sequence[str],
) -> tuple[list[Place], dict[str, str]]:
    """Return the layers of ``loss_net``, in its order, whose weights are among ``parameters``.

    Then those that are left to the plain update, as though they were in ``skip``: name -> why.
    """
    layers: dict[str, tuple[nn.Cell, str, nn.Cell]] = {}
    owners: dict[int, list[str]] = {}  # paths of the Cells that hold a Parameter
    for path, parent in loss_net.cells_and_names():
        # Not name_cells(), which leaves out a Cell that the parent holds a second time.
        for key, cell in parent._cells.items():
            if cell is None:
                continue
            name = f"{path}.{key}".removeprefix(".").removeprefix("network.")
            if isinstance(cell, Tapped):
                raise InputError(
                    f"{name!r} has a tap of an earlier ThorUpdate; call that one's release() first"
                )
            if isinstance(cell, LAYERS):
                layers[name] = parent, key, cell
            for number in {id(parameter) for parameter in cell._params.values()}:
                owners.setdefault(number, []).append(name)
    skipped: set[str] = set()
    for pattern in skip:
        if not (found := fnmatch.filter(layers, pattern)):
            raise InputError(
                f"skip: expected names or patterns of layers with factors, got {pattern!r}, which "
                f"matches none of {', '.join(layers)}.{nearest(pattern, layers)}"
            )
        skipped.update(found)
    index = {id(parameter): number for number, parameter in enumerate(parameters)}
    places: list[Place] = []
    problems: dict[str, str] = {}
    plain: dict[str, str] = {}
    for name, (parent, key, layer) in layers.items():
        if name in skipped or id(layer.weight) not in index:
            continue
        own = {"weight": layer.weight}
        if bias == "homogeneous" and id(getattr(layer, "bias", None)) in index:
            own["bias"] = layer.bias
        if isinstance(parent, nn.MultiheadAttention) and key == "out_proj":
            plain[name] = "is never called: nn.MultiheadAttention takes its weight"
        for kind, parameter in reversed(own.items()):  # a shared weight is named before a bias
            if others := [other for other in owners[id(parameter)] if other != name]:
                # Of an embedding's use there are no factors; two layers would have half of them.
                where = problems if layers.keys() & others else plain
                said = " and ".join(map(repr, others))
                where[name] = f"shares its {kind} {parameter.name!r} with {said}"
        if name not in plain:
            geometry = geometry_of(layer, homogeneous="bias" in own, split=split)
            numbers = {kind: index[id(parameter)] for kind, parameter in own.items()}
            places.append(Place(name, parent, key, layer, geometry, **numbers))
    refuse_layers(problems)
    if not places:
        raise InputError(
            "the network has no nn.Dense, mint.nn.Linear or nn.Conv2d with a weight that the "
            f"optimizer updates, that skip={skip!r} leaves and that is not tied to another Cell; "
            "THOR has nothing to precondition (amp's O1 hides layers: give precision='auto' to the "
            "step instead)"
        )
    return places, plain


def refuse_layers(problems: dict[str, str]) -> None:
    """Raise ``InputError`` if there is a layer that must not be preconditioned: name -> problem."""
    if problems:
        listed = "; ".join(f"layer {name!r} {problem}" for name, problem in problems.items())
        raise InputError(
            f"THOR cannot precondition all layers: {listed}; expected Parameters that their "
            f"layer's own calls alone use, or the plain update: skip={tuple(problems)!r}"
        )


class _Once(nn.Cell):
    """Identity without a derivative."""

    def construct(self, x: Tensor) -> Tensor:
        return x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        refuse(
            "THOR's factors have no derivative: expected a loss of the network's outputs, got one "
            "of its derivatives, such as a gradient penalty; PlainStep and AccumulatedStep take it"
        )
        return (dout,)


class Tap(nn.Cell):
    """Identity on ``y`` that returns factors as gradients: ``(x, y, a, t, g, scale) -> y``.

    x and y are the layer's input and output before any activation function, scale is the factor
    that the loss was multiplied by, a scalar. The values of a, t and g are not used.
    """

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(auto_prefix=False)
        self.geometry, self.once, self.zeros = geometry, _Once(), ops.ZerosLike()

    def construct(self, x: Tensor, y: Tensor, a: Any, t: Any, g: Any, scale: Tensor) -> Tensor:
        return y

    def bprop(
        self, x: Tensor, y: Tensor, a: Any, t: Any, g: Any, scale: Tensor, out: Any, dout: Tensor
    ) -> tuple[Tensor, ...]:
        dout = self.once(dout)
        unscaled = ops.cast(dout, ms.float32) * (1.0 / scale)
        a_sum, positions, g_sum = self.sums(ops.cast(x, ms.float32), unscaled)
        return self.zeros(x), dout, a_sum, positions, g_sum, self.zeros(scale)

    def sums(self, x: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return A_sum, the positions in A_sum and in G_sum, (2,), and G_sum; ``slopes`` are d."""
        geometry = self.geometry
        if geometry.kernel is not None:
            patches = self.patches(x)
            slopes = slopes.reshape(slopes.shape[0], slopes.shape[1], -1)
        else:
            patches, slopes = _one_image(x), _one_image(slopes)
        count = ops.cast(patches.shape[0] * patches.shape[2], ms.float32)
        a_sum = self._products(patches, geometry.a_blocks, geometry.homogeneous)
        g_sum = self._products(slopes, geometry.g_blocks, False)
        return a_sum, ops.stack((count, count)), g_sum

    def patches(self, x: Tensor) -> Tensor:
        """Return the patches of a convolution's input (N, C, H, W): (N, C kh kw, T)."""
        own = self.geometry
        sizes = own.kernel, own.stride, own.dilation, x.shape[2:]
        vertical, horizontal = padding(own.pad_mode, own.pad, *sizes)
        pads = (vertical[0], horizontal[0])
        if vertical[0] != vertical[1] or horizontal[0] != horizontal[1]:
            # Im2Col pads both sides equally; ops.Pad is slower.
            x = ops.Pad(((0, 0), (0, 0), vertical, horizontal))(x)
            pads = (0, 0)
        patches = ops.Im2Col(own.kernel, own.stride, own.dilation, pads)(x)
        return patches.reshape(x.shape[0], -1, patches.shape[3])

    def _products(self, columns: Tensor, blocks: Blocks, homogeneous: bool) -> Tensor:
        """Return the sum over images and positions of the columns' outer products, in blocks.

        The columns are (M, groups * n, L); n, plus the homogeneous coordinate, is cut into blocks.
        """
        images, length, groups = columns.shape[0], columns.shape[2], self.geometry.groups
        columns = columns.reshape(images, groups, -1, length)
        if homogeneous:
            columns = ops.concat((columns, ops.ones((images, groups, 1, length), ms.float32)), 2)
        missing = blocks.count * blocks.size - columns.shape[2]
        if missing:
            zeros = ops.zeros((images, groups, missing, length), ms.float32)
            columns = ops.concat((columns, zeros), 2)
        columns = columns.reshape(images, groups * blocks.count, blocks.size, length)
        if images > 1 and blocks.size > length:
            # Products per image would take more memory than the columns: (32, 36, 128, 128) for
            # the last 3x3 convolutions of a ResNet-50, on maps of 4 positions.
            columns = ops.transpose(columns, (1, 2, 0, 3))
            columns = columns.reshape(1, columns.shape[0], columns.shape[1], -1)
        # On LeNet's two convolutions (128 images), a product per image and a sum took 4.2 and 7.8
        # ms; one product over all images' columns, which must be transposed first, 6.4 and 8.8 ms.
        return ops.reduce_sum(ops.BatchMatMul(transpose_b=True)(columns, columns), (0,))


def _one_image(x: Tensor) -> Tensor:
    """Return (N, ..., n) as one image's columns (1, n, N ...)."""
    return ops.expand_dims(ops.transpose(x.reshape(-1, x.shape[-1]), (1, 0)), 0)


class UpstreamTap(Tap):
    """What MindSpore's own THOR computes on GPU (nn/layer/thor_layer.py), for comparison only.

    For a convolution, N images and T positions:

        P = mean over the images of the patches, padded "same" whatever the layer's padding is
        A = P P^T / T',   T' = positions of P;   D = mean over the images of d;   G = N^2 D D^T / T

    For a fully connected layer A is divided by its width, not by the number of rows:

        A = X^T X / in,    G = N^2 D^T D / N

    The bias has no curvature, and dilation is ignored. Sums are multiplied by the positions.
    """

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(replace(geometry, pad_mode="same", dilation=(1, 1)))

    def sums(self, x: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # The gradient stage divides A and the positions by these, and multiplies G by them.
        rows = float(x.shape[0])
        a_blocks, g_blocks = self.geometry.a_blocks, self.geometry.g_blocks
        if self.geometry.kernel is not None:
            patches = ops.reduce_mean(self.patches(x), 0).expand_dims(0)
            flat = slopes.reshape(x.shape[0], slopes.shape[1], -1)
            slopes = ops.reduce_mean(flat, 0).expand_dims(0)
            a_sum = self._products(patches, a_blocks, False) * rows
            g_sum = self._products(slopes, g_blocks, False) * rows
            positions = (rows * patches.shape[2], rows * slopes.shape[2])
        else:
            columns = ops.transpose(x, (1, 0)).expand_dims(0)
            slopes = ops.transpose(slopes, (1, 0)).expand_dims(0)
            a_sum = self._products(columns, a_blocks, False) * (rows / columns.shape[1])
            g_sum = self._products(slopes, g_blocks, False)
            positions = (rows, rows)
        return a_sum, ops.stack([ops.cast(count, ms.float32) for count in positions]), g_sum


class Tapped(nn.Cell):
    """A layer followed by a tap: same outputs, same Parameters under the same names.

    ``buffers`` (a, t, g), the tap's Parameters, are in no checkpoint of the network.
    """

    # Set before a graph is compiled. A graph that gathers no factors has no tap: the tap's results
    # would be compiled and then discarded, 0.5 s of the 1.7 s of a LeNet step.
    gathers = True

    def __init__(self, layer: nn.Cell, tap: Tap, buffers: tuple[Parameter, ...]) -> None:
        super().__init__(auto_prefix=False)
        self.layer = layer
        # The tap is no child: MindSpore's O2 would cast it to float16, too small for its sums.
        for name, value in zip(("tap", "a", "t", "g"), (tap, *buffers), strict=True):
            object.__setattr__(self, name, value)
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
