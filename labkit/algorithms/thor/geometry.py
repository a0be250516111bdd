"""Which layers have factors, how large these are, and how they are cut into blocks.

A layer's kind follows from its class, and its own Parameters from the Cell; names and sizes decide
nothing.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindspore import Parameter, mint, nn

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


def kind_of(layer: nn.Cell) -> type[nn.Cell]:
    """Return which of MindSpore's layers with factors ``layer`` is, or is derived from."""
    return next(kind for kind in (nn.Dense, mint.nn.Linear, nn.Conv2d) if isinstance(layer, kind))


def geometry_of(layer: nn.Cell, *, homogeneous: bool, split: int | None) -> Dense | None:
    """Return the geometry of a layer that can have factors, or None.

    Raises:
        InputError: if it is a convolution whose axes are not in the order (N, C, H, W).
    """
    if isinstance(layer, nn.Dense | mint.nn.Linear):
        outputs, inputs = layer.weight.shape
        return Dense(**_sizes(inputs, outputs, homogeneous, split))
    if not isinstance(layer, nn.Conv2d):
        return None
    if layer.data_format != "NCHW":
        raise InputError(
            f"data_format of a convolution: expected 'NCHW', got {layer.data_format!r}"
        )
    outputs, inputs = layer.weight.shape[0], math.prod(layer.weight.shape[1:])
    return Convolution(
        **_sizes(inputs, outputs // layer.group, homogeneous, split),
        groups=layer.group,
        kernel=tuple(layer.kernel_size),
        stride=_pair(layer.stride),
        dilation=_pair(layer.dilation),
        pad_mode=layer.pad_mode,
        pad=layer.padding if isinstance(layer.padding, tuple) else (layer.padding,) * 4,
    )


def _sizes(inputs: int, outputs: int, homogeneous: bool, split: int | None) -> dict:
    inputs += homogeneous
    return {
        "inputs": inputs,
        "outputs": outputs,
        "homogeneous": homogeneous,
        "a_blocks": cut(inputs, split),
        "g_blocks": cut(outputs, split),
    }


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
    loss_net: nn.Cell,
    parameters: Sequence[Parameter],
    *,
    bias: str,
    skip: Sequence[nn.Cell | str],
) -> list[Place]:
    """Return the layers of ``loss_net``, in its order, whose weights are among ``parameters``.

    Args:
        loss_net: network and loss.
        parameters: parameters of the optimizer.
        bias: ``homogeneous`` includes a layer's bias in its factors, ``plain`` leaves it out.
        skip: layers to leave out: Cells or their names.

    Raises:
        InputError: if the network already has taps, ``skip`` holds an unknown layer, or no layer is
            left; also, naming every such layer, if another Cell owns a layer's weight or bias too,
            or the network uses a layer without calling it (``nn.MultiheadAttention``).
    """
    layers = list(_layers(loss_net))
    _check_skip(skip, layers)
    index = {id(parameter): number for number, parameter in enumerate(parameters)}
    places = []
    for name, parent, key, layer in layers:
        weight, bias_number = index.get(id(layer.weight)), None
        if weight is None or any(layer is other or name == other for other in skip):
            continue
        if bias == "homogeneous" and isinstance(getattr(layer, "bias", None), Parameter):
            bias_number = index.get(id(layer.bias))
        places.append(Place(name, parent, key, layer, weight, bias_number))
    owners = _owners(loss_net)
    problems = {place.name: _shared(place, owners) or _left_out(place) for place in places}
    refuse_layers(problems)
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
        "own calls alone use, on as many positions for each row, or the plain update: "
        f"skip={tuple(problems)!r}"
    )


def _layers(loss_net: nn.Cell) -> Iterator[tuple[str, nn.Cell, str, nn.Cell]]:
    """Yield (name, parent, key, layer) of every layer that can have factors."""
    for path, parent in loss_net.cells_and_names():
        if hasattr(parent, "taps_thor"):
            raise InputError(
                f"{path!r} has a tap of an earlier ThorUpdate; call that one's release() first"
            )
        # Not name_cells(), which leaves out a layer that the parent holds a second time.
        for key, layer in parent._cells.items():
            if geometry_of(layer, homogeneous=False, split=None) is not None:
                yield _short(f"{path}.{key}"), parent, key, layer


def _check_skip(skip: Sequence[nn.Cell | str], layers: list) -> None:
    names = [name for name, *_ in layers]
    for layer in skip:
        if isinstance(layer, str) and layer not in names:
            raise InputError(
                f"skip names a layer {layer!r} that has no factors.{nearest(layer, names)}"
            )
        if not isinstance(layer, str) and not any(layer is other for *_, other in layers):
            raise InputError(
                f"skip holds a {type(layer).__name__} that is not a Cell of the network with "
                f"factors; expected some of its layers: {', '.join(names)}"
            )


def _owners(loss_net: nn.Cell) -> dict[int, list[str]]:
    """Return id of a Parameter -> paths of the Cells that hold it, each place once."""
    owners: dict[int, list[str]] = {}
    for path, cell in _all_places(loss_net):
        values = list(cell._params.values())
        for name, value in vars(cell).items():
            if not name.startswith("_") and isinstance(value, list | tuple | dict):
                values += value.values() if isinstance(value, dict) else value
        for number in {id(value) for value in values if isinstance(value, Parameter)}:
            owners.setdefault(number, []).append(_short(path) or "the loss net")
    return owners


def _all_places(loss_net: nn.Cell) -> Iterator[tuple[str, nn.Cell]]:
    """Yield (path, Cell) for every place of a Cell; one Cell may have several."""
    yield "", loss_net
    for path, parent in loss_net.cells_and_names():
        for key, cell in parent._cells.items():
            if cell is not None:
                yield f"{path}.{key}", cell


def _shared(place: Place, owners: dict[int, list[str]]) -> str:
    """Return who else owns the layer's weight or bias, or an empty string."""
    shared = {"weight": place.layer.weight}
    if place.bias is not None:
        shared["bias"] = place.layer.bias
    for kind, parameter in shared.items():
        others = [name for name in owners[id(parameter)] if name != place.name]
        if others:
            return f"shares its {kind} {parameter.name!r} with {' and '.join(map(repr, others))}"
    return ""


def _left_out(place: Place) -> str:
    """Return a problem if the network is known to use the layer for its weight alone, or ""."""
    if isinstance(place.parent, nn.MultiheadAttention) and place.key == "out_proj":
        return "is never called: nn.MultiheadAttention takes its weight without it"
    return ""


def _short(path: str) -> str:
    return path.removeprefix(".").removeprefix("network.")
