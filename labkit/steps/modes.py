"""Training and evaluation mode of each Cell of a network, as set by ``Cell.set_train``.

A new Cell computes as in evaluation mode, although nobody has asked for it. Only the flag that
``set_train(False)`` leaves distinguishes such a Cell from a new one; ``Cell.training`` does not.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from mindspore import Parameter, nn

from labkit.steps.precision import NETWORK_NAMES, is_loss

# Modules of classes that only pass their inputs to the network inside.
_AROUND = (
    "labkit.steps.losses",
    "labkit.steps.precision",
    "mindspore.nn.wrap.",
    "mindspore.train.amp",
)


def modes(network: nn.Cell) -> list[tuple[nn.Cell, bool | None]]:
    """Return each Cell of ``network`` and the mode it was set to; None if it was never set."""
    return [(cell, _mode(cell)) for _, cell in network.cells_and_names()]


def set_modes(kept: Iterable[tuple[nn.Cell, bool | None]]) -> None:
    """Set every Cell to the mode that ``modes`` has returned."""
    for cell, mode in kept:
        # What add_flags(training=...) does, in 0.3 us instead of 1: a step may do it at each call.
        cell.__dict__["training"] = bool(mode)
        cell.get_flags()["training"] = mode
        if mode is None:
            cell.get_flags().pop("training")


class TrainingModes:
    """Training mode of a step's Cells, except those that the user holds in evaluation mode.

    Args:
        step: the step, a Cell that contains ``loss_net``.
        loss_net: network and loss.
        parameters: its trained Parameters.

    The Cells that are held are printed whenever they change.
    """

    def __init__(self, step: nn.Cell, loss_net: nn.Cell, parameters: Sequence[Parameter]):
        self._step, self._loss_net, self._parameters = step, loss_net, parameters
        self._held: list[nn.Cell] = []
        self._phases: dict[tuple, str] = {}
        self._seen: tuple | None = None
        self._changes: list[tuple] = []
        self._said = False

    def set(self, mode: bool) -> None:
        """Set the mode of all Cells of the step except those that are held."""
        before = {id(cell) for cell in self._held}
        self._held = held(self._loss_net, self._parameters, self._held)
        if {id(cell) for cell in self._held} != before:
            self._say_held()
        self._seen = None
        # Bypasses the step's own method, which calls this one.
        nn.Cell.add_flags_recursive(self._step, training=mode)
        self._step.phase = "train" if mode else "predict"
        for cell in self._held:
            cell.add_flags(training=False)
        self._watched = [cell for cell, _ in modes(self._loss_net)]
        # A compiled graph belongs to the modes it was compiled in; MindSpore does not check them.
        self._modes = self._current()
        self.phase = self._phases.setdefault(
            self._modes, f"train{len(self._phases) or ''}" if mode else "predict"
        )

    @contextmanager
    def followed(self, graphs: Sequence[nn.Cell]) -> Iterator[None]:
        """Follow what ``set_train`` has done to parts of the network since the last call.

        A network in evaluation mode as a whole returns to that mode afterwards. ``graphs`` are the
        Cells that are compiled; the graphs used are those of the modes in force.
        """
        current, changes = self._current(), []
        if current != self._modes:
            if current == self._seen:
                set_modes((cell, now) for cell, _, now in self._changes)
            else:
                kept = modes(self._loss_net)
                self._step.set_train()
                # If the next call finds the same modes, only the Cells that differ are set.
                changed = [(cell, mode, cell.training) for cell, mode in kept]
                self._changes = [change for change in changed if change[1] is not change[2]]
                self._seen = current
            changes = self._changes
        if self._step.phase != self.phase:
            for graph in graphs:
                graph.phase = self.phase
        try:
            yield
        finally:
            set_modes((cell, then) for cell, then, _ in changes)

    def _current(self) -> tuple[bool, ...]:
        return tuple(cell.training for cell in self._watched)

    def _say_held(self) -> None:
        """Print the outermost Cells that are held together with everything inside them."""
        ids = {id(cell) for cell in self._held}
        whole = [cell for cell in self._held if all(id(part) in ids for part, _ in modes(cell))]
        outer = {id(cell) for cell in whole}
        outer -= {id(part) for cell in whole for part in cell.cells()}
        named = self._loss_net.cells_and_names()
        # The path of the loss_net itself is "".
        names = [path or "the loss_net" for path, cell in named if id(cell) in outer]
        if names:
            print(f"labkit: in evaluation mode, as it was set: {', '.join(names)}", flush=True)
        elif self._said:
            print("labkit: all of the network is in training mode again", flush=True)
        self._said = bool(names)


def held(
    loss_net: nn.Cell, parameters: Sequence[Parameter], before: Sequence[nn.Cell] = ()
) -> list[nn.Cell]:
    """Return the Cells of ``loss_net`` that the user holds in evaluation mode during training.

    A Cell in evaluation mode is held, unless it was put there as part of a whole network: if every
    part of the network with trained ``parameters`` is in evaluation mode, in one Cell or in several
    that contain all its Parameters, the network was only evaluated. Then the Cells held are those
    in ``before``, and Cells set by themselves that have Parameters but no trained ones (a teacher).
    Losses do not affect this, nor do Parameters of the loss_net itself.
    """
    off = [cell for cell, mode in modes(loss_net) if mode is False]
    trained = {id(parameter) for parameter in parameters}
    kept = {id(cell) for cell in before}
    released = set()
    for whole in _evaluated(loss_net, trained) if off else ():
        released |= {id(cell) for cell, _ in modes(whole)} - kept
    return [cell for cell in off if id(cell) not in released]


def _evaluated(loss_net: nn.Cell, trained: set[int]) -> list[nn.Cell]:
    """Return the Cells of a network that is in evaluation mode as a whole, else an empty list."""
    if _off(loss_net):
        return [loss_net]
    networks, losses = _parts(loss_net)
    parts = [cell for cell in networks if trained & _ids(cell)]
    # A loss_net inside the loss_net may have the name of a loss.
    parts = parts or [cell for cell in losses if trained & _ids(cell)]
    outside = [_outermost(part, without_losses=True) for part in parts]
    if not parts or any(own for _, own in outside):
        return []
    cells, _ = _outermost(loss_net)
    return [cell for cell in cells if not _ids(cell) or trained & _ids(cell)]


def _parts(loss_net: nn.Cell) -> tuple[list[nn.Cell], list[nn.Cell]]:
    """Return the networks and the losses that make up a Cell which computes a loss."""
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


def _outermost(cell: nn.Cell, without_losses: bool = False) -> tuple[list[nn.Cell], set[int]]:
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


def _off(cell: nn.Cell) -> bool:
    return _mode(cell) is False and not any(mode for _, mode in modes(cell))


def _ids(cell: nn.Cell) -> set[int]:
    return {id(parameter) for parameter in cell.get_parameters()}


def _mode(cell: nn.Cell) -> bool | None:
    return cell.get_flags().get("training")
