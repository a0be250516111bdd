"""Which layers have factors, how large these are, and how they are cut into blocks.

A layer's kind follows from its class, and its own Parameters from the Cell; names and sizes decide
nothing.
"""

import fnmatch
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindspore import Parameter, mint, nn

from labkit.base.arguments import wrong
from labkit.errors import InputError, nearest


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
