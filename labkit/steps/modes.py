"""Training and evaluation mode of each Cell of a network, as ``Cell.set_train`` has left it.

A new Cell computes as in evaluation mode, but nobody has asked for that: MindSpore tells it from a
Cell with ``set_train(False)`` by the flag that this leaves, ``Cell.training`` does not.
"""

from collections.abc import Iterable

from mindspore import nn

from labkit.steps.precision import NETWORK_NAMES, is_loss

# Classes that only hand on to the network inside.
_AROUND = (
    "labkit.steps.losses",
    "labkit.steps.precision",
    "mindspore.nn.wrap.",
    "mindspore.train.amp",
)


def modes(network: nn.Cell) -> list[tuple[nn.Cell, bool | None]]:
    """Return each Cell of ``network`` and what it was set to; None where it was not."""
    return [(cell, _mode(cell)) for _, cell in network.cells_and_names()]


def set_modes(kept: Iterable[tuple[nn.Cell, bool | None]]) -> None:
    """Set every Cell to what ``modes`` has returned."""
    for cell, mode in kept:
        # What add_flags(training=...) does, in 0.3 us for 1: a step may do it at each call.
        cell.__dict__["training"] = bool(mode)
        cell.get_flags()["training"] = mode
        if mode is None:
            cell.get_flags().pop("training")


def held(loss_net: nn.Cell, parameters, before=()) -> list[nn.Cell]:
    """Return the Cells of ``loss_net`` that somebody holds in evaluation mode while it is trained.

    A Cell that was set to evaluation mode is held, unless it was set with a whole network: where
    all of the network that has trained ``parameters`` is in evaluation mode, in one Cell or in
    several that hold all its Parameters, it was only evaluated. Then those in ``before`` are held,
    and Cells set by themselves that have Parameters but no trained one: a teacher. What is loss
    has no say in this, nor have Parameters of the loss_net itself.
    """
    off = [cell for cell, mode in modes(loss_net) if mode is False]
    trained = {id(parameter) for parameter in parameters}
    kept = {id(cell) for cell in before}
    released = set()
    for whole in _evaluated(loss_net, trained) if off else ():
        released |= {id(cell) for cell, _ in modes(whole)} - kept
    return [cell for cell in off if id(cell) not in released]


def _evaluated(loss_net, trained):
    """Return the Cells of a network that is in evaluation mode as a whole, or none."""
    if _off(loss_net):
        return [loss_net]
    networks, losses = _parts(loss_net)
    parts = [cell for cell in networks if trained & _ids(cell)]
    # A loss_net inside the loss_net may be called a loss.
    parts = parts or [cell for cell in losses if trained & _ids(cell)]
    outside = [_outermost(part, without_losses=True) for part in parts]
    if not parts or any(own for _, own in outside):
        return []
    cells, _ = _outermost(loss_net)
    return [cell for cell in cells if not _ids(cell) or trained & _ids(cell)]


def _parts(loss_net):
    """Return the networks and the losses that a Cell which computes a loss is made of."""
    cells = loss_net.name_cells()
    named = [name for name in NETWORK_NAMES if name in cells]
    networks, losses = [], []
    for name, cell in cells.items():
        if named and name not in named:
            losses.append(cell)
        elif type(cell).__module__.startswith(_AROUND):
            inner = _parts(cell)
            networks += inner[0]
            losses += inner[1]
        else:
            (losses if not named and is_loss(name, cell) else networks).append(cell)
    return networks, losses


def _outermost(cell, without_losses=False):
    """Return the outermost Cells in evaluation mode, and the ids of Parameters outside of them."""
    if _off(cell):
        return [cell], set()
    cells = []
    outside = {id(parameter) for parameter in cell.get_parameters(expand=False)}
    for name, inner in cell.name_cells().items():
        if not (without_losses and is_loss(name, inner)):
            more, own = _outermost(inner, without_losses)
            cells += more
            outside |= own
    return cells, outside.difference(*map(_ids, cells))


def _off(cell):
    return _mode(cell) is False and not any(mode for _, mode in modes(cell))


def _ids(cell):
    return {id(parameter) for parameter in cell.get_parameters()}


def _mode(cell):
    return cell.get_flags().get("training")
