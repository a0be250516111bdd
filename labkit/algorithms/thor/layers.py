"""Finding the layers that get curvature, putting taps behind them, taking the taps away again.

What a layer is follows from its class, which Parameters are its own from the Cell: no name and no
size decides anything.
"""

from dataclasses import dataclass

from mindspore import Parameter, nn

from labkit.algorithms.thor.curvature import LayerCurvature
from labkit.algorithms.thor.geometry import geometry_of
from labkit.errors import InputError, nearest


@dataclass(frozen=True)
class Place:
    """Where a layer is: ``parent`` holds it as ``key``; ``weight`` and ``bias`` are the indices of
    its Parameters among the optimizer's, ``bias`` None for one that is not in the factors."""

    name: str
    parent: nn.Cell
    key: str
    layer: nn.Cell
    weight: int
    bias: int | None


def find_layers(loss_net, parameters, *, bias, skip) -> list[Place]:
    """Return the layers of ``loss_net`` whose weights are among ``parameters``, in their order.

    bias  ``homogeneous`` takes a layer's bias into its factors, ``plain`` leaves it out
    skip  layers left out: Cells or their names

    Raises ``InputError`` for a network that has taps already, a name in ``skip`` that is none,
    where no layer is left, and, with the names of all of them, for layers whose weight or bias
    another Cell owns as well or whose call the network leaves out (``nn.MultiheadAttention``).
    """
    index = {id(parameter): number for number, parameter in enumerate(parameters)}
    places, names = [], []
    for path, parent in loss_net.cells_and_names():
        if hasattr(parent, "taps_thor"):
            raise InputError(
                f"{path!r} has a tap of an earlier ThorUpdate; call that one's release() first"
            )
        # Not name_cells(), which leaves out a layer that the parent holds a second time.
        for key, layer in parent._cells.items():
            name = _path(f"{path}.{key}")
            if geometry_of(layer, homogeneous=False, split=None) is None:
                continue
            names.append(name)
            weight = index.get(id(layer.weight))
            if weight is None or any(layer is other or name == other for other in skip):
                continue
            own = getattr(layer, "bias", None)
            taken = bias == "homogeneous" and isinstance(own, Parameter)
            places.append(
                Place(name, parent, key, layer, weight, index.get(id(own)) if taken else None)
            )
    _check_skip(skip, names, loss_net)
    owners = _owners(loss_net)
    problems = {place.name: _shared(place, owners) or _left_out(place) for place in places}
    refuse_layers({name: problem for name, problem in problems.items() if problem})
    if not places:
        raise InputError(
            "the network has no nn.Dense, mint.nn.Linear or nn.Conv2d with a weight that the "
            f"optimizer updates and that skip={skip!r} leaves; THOR has nothing to precondition"
        )
    return places


def refuse_layers(problems) -> None:
    """Raise ``InputError`` for layers that must not be preconditioned: name -> what is wrong."""
    if not problems:
        return
    told = "; ".join(f"layer {name!r} {problem}" for name, problem in problems.items())
    raise InputError(
        f"THOR cannot precondition all layers: {told}; expected Parameters that their layer's own "
        "calls alone use, on as many positions for each row, or the plain update: "
        f"skip={tuple(problems)!r}"
    )


def _owners(loss_net):
    """Return id of a Parameter -> [(path of a Cell that holds it, the Cell)], each place once."""
    owners = {}
    for path, cell in _all_places(loss_net):
        held = [one for one in cell._params.values() if one is not None]
        for name, value in vars(cell).items():
            if not name.startswith("_") and isinstance(value, list | tuple | dict):
                items = value.values() if isinstance(value, dict) else value
                held += [one for one in items if isinstance(one, Parameter)]
        for parameter in {id(one): one for one in held}.values():
            owners.setdefault(id(parameter), []).append((_path(path) or "the loss net", cell))
    return owners


def _all_places(loss_net):
    """Yield (path, Cell) for every place of a Cell, also those of one that has several."""
    yield "", loss_net
    for path, parent in loss_net.cells_and_names():
        for key, cell in parent._cells.items():
            if cell is not None:
                yield f"{path}.{key}", cell


def _shared(place, owners):
    """Return who else owns the layer's weight or bias, or an empty string."""
    own = getattr(place.layer, "bias", None)
    for kind, parameter in (("weight", place.layer.weight), ("bias", own)):
        if not isinstance(parameter, Parameter) or (kind == "bias" and place.bias is None):
            continue
        others = [name for name, _ in owners[id(parameter)] if name != place.name]
        if others:
            named = " and ".join(map(repr, others))
            return f"shares its {kind} {parameter.name!r} with {named}"
    return ""


def _left_out(place):
    """Return that the network has this layer for its weight alone, where that is known."""
    if isinstance(place.parent, nn.MultiheadAttention) and place.key == "out_proj":
        return "is never called: nn.MultiheadAttention takes its weight without it"
    return ""


def _path(path):
    return path.removeprefix(".").removeprefix("network.")


def tap_layers(places, *, split, tapped) -> list[LayerCurvature]:
    """Put a tap behind each layer, in place; return their curvatures.

    tapped  (layer, geometry, buffers) -> ``Tapped``
    """
    layers = []
    for place in places:
        geometry = geometry_of(place.layer, homogeneous=place.bias is not None, split=split)
        layers.append(LayerCurvature(place.name, geometry))
    for place, layer in zip(places, layers, strict=True):
        buffers = (layer.a_factor, layer.positions, layer.g_factor)
        _put(place.parent, place.key, tapped(place.layer, layer.geometry, buffers))
    return layers


def tapped_cells(places) -> list:
    """Return the cell with the tap at each place; None where it was taken away."""
    return [_tap_at(place)[2] for place in places]


def release_layers(places) -> None:
    """Put the layers back where their taps were."""
    for place in places:
        parent, key, tap = _tap_at(place)
        if tap is not None:
            _put(parent, key, tap.release())


def _tap_at(place):
    """Return (parent, key, cell with the tap or None) of a place."""
    parent, key = place.parent, place.key
    found = parent.name_cells()[key]
    if not hasattr(found, "taps_thor"):
        # precision="O2" wraps a network, also one that is nothing but a tapped layer.
        parent, key, found = found, "_backbone", found.name_cells().get("_backbone")
    return parent, key, found if hasattr(found, "taps_thor") else None


def _put(parent, key, cell):
    # Through _cells: setattr would prefix the Parameters' names.
    parent._cells[key] = cell
    if isinstance(parent, nn.SequentialCell):
        parent.cell_list = list(parent._cells.values())


def _check_skip(skip, names, loss_net):
    cells = {id(cell) for _, cell in loss_net.cells_and_names()}
    for one in skip:
        if isinstance(one, str) and one not in names:
            raise InputError(
                f"skip names a layer {one!r} that has no factors.{nearest(one, names)}"
            )
        if not isinstance(one, str) and id(one) not in cells:
            raise InputError(f"skip holds a {type(one).__name__} that is no Cell of the network")
