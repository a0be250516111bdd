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

    Raises ``InputError`` for a network that has taps already, two layers with one weight, a name
    in ``skip`` that is none, and where no layer is left.
    """
    index = {id(parameter): number for number, parameter in enumerate(parameters)}
    places, owners, names = [], {}, []
    for path, parent in loss_net.cells_and_names():
        if hasattr(parent, "taps_thor"):
            raise InputError(
                f"{path!r} has a tap of an earlier ThorUpdate; call that one's release() first"
            )
        for key, layer in parent.name_cells().items():
            name = f"{path}.{key}".removeprefix(".").removeprefix("network.")
            if geometry_of(layer, homogeneous=False, split=None) is None:
                continue
            names.append(name)
            weight = index.get(id(layer.weight))
            if weight is None or any(layer is other or name == other for other in skip):
                continue
            if weight in owners:
                raise InputError(
                    f"layers {owners[weight]!r} and {name!r} share the weight "
                    f"{layer.weight.name!r}; expected one layer for each, or skip=({name!r},)"
                )
            owners[weight] = name
            own = getattr(layer, "bias", None)
            taken = bias == "homogeneous" and isinstance(own, Parameter)
            places.append(
                Place(name, parent, key, layer, weight, index.get(id(own)) if taken else None)
            )
    _check_skip(skip, names, loss_net)
    if not places:
        raise InputError(
            "the network has no nn.Dense, mint.nn.Linear or nn.Conv2d with a weight that the "
            f"optimizer updates and that skip={skip!r} leaves; THOR has nothing to precondition"
        )
    return places


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


def release_layers(places) -> None:
    """Put the layers back where their taps were."""
    for place in places:
        parent, key = place.parent, place.key
        found = parent.name_cells()[key]
        if not hasattr(found, "taps_thor"):
            # precision="O2" wraps a network, also one that is nothing but a tapped layer.
            parent, key, found = found, "_backbone", found.name_cells().get("_backbone")
        if hasattr(found, "taps_thor"):
            _put(parent, key, found.release())


def _put(parent, key, cell):
    # Through _cells: setattr would prefix the Parameters' names.
    parent._cells[key] = cell
    if isinstance(parent, nn.SequentialCell):
        parent.cell_list = list(parent._cells.values())


def _check_skip(skip, names, loss_net):
    cells = {id(cell) for _, cell in loss_net.cells_and_names()}
    for one in skip:
        if isinstance(one, str) and one not in names:
            raise InputError(f"skip names a layer {one!r} that has no factors{nearest(one, names)}")
        if not isinstance(one, str) and id(one) not in cells:
            raise InputError(f"skip holds a {type(one).__name__} that is no Cell of the network")
