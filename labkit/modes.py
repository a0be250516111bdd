"""Training and evaluation mode of each Cell of a network, as ``Cell.set_train`` has left it.

A new Cell computes as in evaluation mode, but nobody has asked for that: MindSpore tells it from a
Cell with ``set_train(False)`` by the flag that this leaves, ``Cell.training`` does not.
"""

from collections.abc import Iterable

from mindspore import nn

# Classes that only hand on to the network inside.
_AROUND = ("labkit.losses", "labkit.precision", "mindspore.nn.wrap.", "mindspore.train.amp")


def modes(network: nn.Cell) -> list[tuple[nn.Cell, bool | None]]:
    """Return each Cell of ``network`` and what it was set to; None where it was not."""
    return [(cell, _mode(cell)) for _, cell in network.cells_and_names()]


def set_modes(kept: Iterable[tuple[nn.Cell, bool | None]]) -> None:
    """Set every Cell to what ``modes`` has returned."""
    for cell, mode in kept:
        cell.add_flags(training=bool(mode))
        if mode is None:
            cell.get_flags().pop("training")


def held(loss_net: nn.Cell, parameters, before=()) -> list[nn.Cell]:
    """Return the Cells of ``loss_net`` that somebody holds in evaluation mode while it is trained.

    A Cell that was set to evaluation mode is held, unless it was set with a whole network: where
    the Cell that holds all trained ``parameters`` is in evaluation mode with all that is in it, the
    network was only evaluated. Then those in ``before`` are.
    """
    off = [cell for cell, mode in modes(loss_net) if mode is False]
    whole = _evaluated(loss_net, {id(parameter) for parameter in parameters})
    inside = {id(cell) for cell, _ in modes(whole)} if whole is not None else set()
    inside -= {id(cell) for cell in before}
    return [cell for cell in off if id(cell) not in inside]


def _evaluated(loss_net, trained):
    """Return the Cell that is the whole trained network and in evaluation mode, or None."""
    cells = [loss_net]
    while cells:
        cell = cells.pop()
        if _mode(cell) is False and not any(inner for _, inner in modes(cell)):
            if trained <= {id(parameter) for parameter in cell.get_parameters()}:
                return cell
        elif cell is loss_net or type(cell).__module__.startswith(_AROUND):
            cells += cell.cells()
    return None


def _mode(cell):
    return cell.get_flags().get("training")
