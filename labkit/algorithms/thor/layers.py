"""The layers that have factors: found in a network, cut into blocks, and tapped.

A layer's kind follows from its class, and its own Parameters from the Cell; names and sizes decide
nothing.

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

import fnmatch
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops

from labkit.algorithms.thor.curvature import LayerCurvature
from labkit.base.arguments import wrong
from labkit.errors import InputError, nearest
from labkit.nets.layers import exchange


@dataclass(frozen=True)
class Blocks:
    """A dimension cut into ``count`` blocks of ``size``; the end of the last block is padding."""

    count: int
    size: int


def cut(dimension: int, split: int | None) -> Blocks:
    """Return the fewest blocks of at most ``split``, as equal as possible; one block for None.

    MindSpore's THOR takes blocks of 128 and a remainder. LeNet's first dense layer has 401 inputs:
    4 blocks of 101 with 3 rows of padding, instead of 4 of 128 with 111.
    """
    count = 1 if split is None else math.ceil(dimension / split)
    return Blocks(count, math.ceil(dimension / count))


@dataclass(frozen=True)
class Dense:
    """A fully connected layer: weight (outputs, inputs)."""

    inputs: int  # width of A, including the 1 of a homogeneous bias
    outputs: int  # width of G, per group
    homogeneous: bool
    a_blocks: Blocks
    g_blocks: Blocks
    groups: int = 1  # groups of channels, each with its own A and G


@dataclass(frozen=True)
class Convolution(Dense):
    """A convolution: each group's weight is (outputs, inputs = C kh kw, + 1 for the bias).

    Pairs are (height, width), ``pad`` is (top, bottom, left, right), as in nn.Conv2d.
    """

    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pad_mode: str = "valid"
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)


def padding(
    pad_mode: str,
    pad: tuple[int, int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    height: int,
    width: int,
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return ((top, bottom), (left, right)) of a convolution on a map of (height, width)."""
    if pad_mode == "valid":
        return ((0, 0), (0, 0))
    if pad_mode == "pad":
        top, bottom, left, right = pad
        return ((top, bottom), (left, right))
    sizes = zip((height, width), kernel, stride, dilation, strict=True)
    vertical, horizontal = (_same(*axis) for axis in sizes)
    return vertical, horizontal


def _same(length: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Return (before, after) for ceil(length / stride) positions; the odd one goes after."""
    positions = -(-length // stride)
    total = max((positions - 1) * stride + (kernel - 1) * dilation + 1 - length, 0)
    return total // 2, total - total // 2


def geometry_of(layer: nn.Cell, *, homogeneous: bool, split: int | None) -> Dense | None:
    """Return the geometry of a layer that can have factors, or None.

    Raises:
        InputError: if it is a convolution whose axes are not in the order (N, C, H, W).
    """
    if not isinstance(layer, nn.Dense | mint.nn.Linear | nn.Conv2d):
        return None
    groups = layer.group if isinstance(layer, nn.Conv2d) else 1
    inputs = math.prod(layer.weight.shape[1:]) + homogeneous
    outputs = layer.weight.shape[0] // groups
    sizes = (inputs, outputs, homogeneous, cut(inputs, split), cut(outputs, split), groups)
    if not isinstance(layer, nn.Conv2d):
        return Dense(*sizes)
    if layer.data_format != "NCHW":
        raise wrong("data_format of a convolution", layer.data_format, "'NCHW'")
    return Convolution(
        *sizes,
        kernel=tuple(layer.kernel_size),
        stride=_pair(layer.stride),
        dilation=_pair(layer.dilation),
        pad_mode=layer.pad_mode,
        pad=layer.padding if isinstance(layer.padding, tuple) else (layer.padding,) * 4,
    )


def _pair(value: int | tuple) -> tuple[int, int]:
    """Return (height, width) from what nn.Conv2d stores: an int, 2 numbers, or 4 with N and C."""
    return (value, value) if isinstance(value, int) else tuple(value[-2:])


@dataclass(frozen=True)
class Place:
    """The place of a layer: ``parent`` holds it as ``key``."""

    name: str
    parent: nn.Cell
    key: str
    layer: nn.Cell  # without a tap
    weight: int  # its index among the optimizer's parameters
    bias: int | None  # likewise; None if it is not in the factors


def find_layers(
    loss_net: nn.Cell, parameters: Sequence[Parameter], *, bias: str, skip: Sequence[str]
) -> list[Place]:
    """Return the layers of ``loss_net``, in its order, whose weights are among ``parameters``.

    Args:
        loss_net: network and loss.
        parameters: parameters of the optimizer.
        bias: ``homogeneous`` includes a layer's bias in its factors, ``plain`` leaves it out.
        skip: names or patterns of layers to leave out.

    Raises:
        InputError: if the network already has taps, a name or pattern in ``skip`` matches no layer,
            or no layer is left; also, naming every such layer, if another Cell owns a layer's
            weight or bias too, or the network uses a layer without calling it
            (``nn.MultiheadAttention``).
    """
    layers = list(_layers(loss_net))
    skipped = _matching([name for name, *_ in layers], skip)
    index = {id(parameter): number for number, parameter in enumerate(parameters)}
    places = []
    for name, parent, key, layer in layers:
        weight, bias_number = index.get(id(layer.weight)), None
        if weight is None or name in skipped:
            continue
        if bias == "homogeneous" and isinstance(getattr(layer, "bias", None), Parameter):
            bias_number = index.get(id(layer.bias))
        places.append(Place(name, parent, key, layer, weight, bias_number))
    owners = _owners(loss_net)
    refuse_layers({place.name: _problem(place, owners) for place in places})
    if not places:
        raise InputError(
            "the network has no nn.Dense, mint.nn.Linear or nn.Conv2d with a weight that the "
            f"optimizer updates and that skip={skip!r} leaves; THOR has nothing to precondition"
        )
    return places


def refuse_layers(problems: dict[str, str]) -> None:
    """Raise ``InputError`` if a layer must not be preconditioned: name -> problem, or ""."""
    problems = {name: problem for name, problem in problems.items() if problem}
    if not problems:
        return
    listed = "; ".join(f"layer {name!r} {problem}" for name, problem in problems.items())
    raise InputError(
        f"THOR cannot precondition all layers: {listed}; expected Parameters that their layer's "
        f"own calls alone use, or the plain update: skip={tuple(problems)!r}"
    )


def _layers(loss_net: nn.Cell) -> Iterator[tuple[str, nn.Cell, str, nn.Cell]]:
    """Yield (name, parent, key, layer) of every layer that can have factors."""
    for path, parent, key, layer in _places(loss_net):
        if hasattr(layer, "taps_thor"):
            raise InputError(
                f"{path!r} has a tap of an earlier ThorUpdate; call that one's release() first"
            )
        if geometry_of(layer, homogeneous=False, split=None) is not None:
            yield path, parent, key, layer


def _places(loss_net: nn.Cell) -> Iterator[tuple[str, nn.Cell, str, nn.Cell]]:
    """Yield (path, parent, key, Cell) for every place of a Cell; one Cell may have several."""
    for path, parent in loss_net.cells_and_names():
        # Not name_cells(), which leaves out a Cell that the parent holds a second time.
        for key, cell in parent._cells.items():
            if cell is not None:
                whole = f"{path}.{key}".removeprefix(".").removeprefix("network.")
                yield whole, parent, key, cell


def _matching(names: Sequence[str], skip: Sequence[str]) -> set[str]:
    matching: set[str] = set()
    for pattern in skip:
        found = fnmatch.filter(names, pattern)
        if not found:
            raise InputError(
                f"skip: expected names or patterns of layers with factors, got {pattern!r}, which "
                f"matches none of {', '.join(names)}.{nearest(pattern, names)}"
            )
        matching.update(found)
    return matching


def _owners(loss_net: nn.Cell) -> dict[int, list[str]]:
    """Return id of a Parameter -> paths of the Cells that hold it, each place once."""
    owners: dict[int, list[str]] = {}
    for path, _, _, cell in _places(loss_net):
        for number in {id(parameter) for parameter in cell._params.values()}:
            owners.setdefault(number, []).append(path)
    return owners


def _problem(place: Place, owners: dict[int, list[str]]) -> str:
    """Return why a layer's calls are not all that uses its weight or bias, or an empty string."""
    own = {"weight": place.layer.weight}
    if place.bias is not None:
        own["bias"] = place.layer.bias
    for kind, parameter in own.items():
        others = [name for name in owners[id(parameter)] if name != place.name]
        if others:
            return f"shares its {kind} {parameter.name!r} with {' and '.join(map(repr, others))}"
    if isinstance(place.parent, nn.MultiheadAttention) and place.key == "out_proj":
        return "is never called: nn.MultiheadAttention takes its weight without it"
    return ""


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
