"""Precision: float16 inside a network."""

import inspect
import re
from typing import Any

import mindspore as ms
from mindspore import amp, nn
from mindspore.ops import functional

from labkit.errors import InputError
from labkit.steps.losses import LossNet, TokenLossNet
from labkit.steps.options import DynamicLossScale as DynamicLossScale

# The name of the loss, which stays in float32, in LossNet and MindSpore's WithLossCell.
LOSS_NAMES = ("loss_fn", "_loss_fn")
# The name of the network in them, and in any Cell that is explicit about it.
NETWORK_NAMES = ("network", "_backbone")
_LOSS_WORDS = ("loss", "losses", "criterion")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LOSS_NETS = (LossNet, TokenLossNet, nn.WithLossCell)
_LISTS = (nn.CellList, nn.CellDict)


def use_float16(loss_net: nn.Cell, level: str = "O2") -> None:
    """Convert the networks inside ``loss_net`` to float16, but not its losses.

    ``level`` is MindSpore's: O2 leaves BatchNorm and LayerNorm in float32, O3 does not (like O2
    with ``keep_batchnorm_fp32=False``); Parameters and running statistics stay float32 in both.

    In a ``LossNet``, or any Cell that has a ``network``, that is the network and everything else is
    loss. In a custom Cell without a ``network``, the losses are MindSpore's own, Cells whose name
    or class contains loss or criterion (``is_loss``), and Cells without Parameters that are not
    MindSpore layers; everything else is network.

    Raises ``InputError`` if there is no network, or if a Cell may be network or loss: if several
    Cells have Parameters, no Cell is a loss, and a custom one takes several inputs.
    """
    places = _networks(loss_net, level)
    if not places:
        raise InputError(
            f"precision={level!r} finds no network inside the loss_net, a "
            f"{type(loss_net).__name__}; expected a Cell that holds the network as a Cell, as "
            "LossNet(network, loss_fn) does"
        )
    for _, _, cell in places:
        before = getattr(cell, "float16_by_step", level)
        if before != level:
            raise InputError(
                f"precision is {level!r}, and an earlier step with {before!r} put this network "
                f"into float16 for good; expected {before!r}, or a newly built network"
            )
    for parent, name, cell in places:
        # A Cell's _amp_level is "" until amp sets it.
        if cell._amp_level in ("", "O0"):
            losses = [inner for key, inner in _below(cell) if is_loss(key, inner)]
            # Set through _cells, as amp itself does: setattr would prefix the parameters' names.
            half = amp.auto_mixed_precision(cell, level)
            parent._cells[name] = _InFloat16(getattr(half, "_backbone", half), level)
            cell.float16_by_step = level
            for loss in losses:
                loss.to_float(ms.float32)


class _InFloat16(nn.Cell):
    """A network in float16 whose outputs are float32, as in amp's own wrapper.

    A scalar output is refused: it is a mean, and so a loss that was computed in float16.
    """

    def __init__(self, backbone: nn.Cell, level: str):
        super().__init__(auto_prefix=False)
        self._backbone = backbone
        self._get_attr_from_cell(backbone)
        self._amp_level = level

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self._backbone(*args, **kwargs)
        if isinstance(outputs, ms.Tensor) and outputs.ndim == 0:
            raise TypeError(
                "precision: what was taken for the network returned a scalar, a loss computed "
                "in float16; expected LossNet(network, loss_fn), or the network as self.network "
                "of the loss_net and the loss outside of it"
            )
        return functional.mixed_precision_cast(ms.float32, outputs)


def _networks(loss_net: nn.Cell, level: str) -> list[tuple[nn.Cell, str, nn.Cell]]:
    """Return (parent, name, Cell) of each network inside a Cell that computes a loss."""
    cells = loss_net.name_cells()
    named = {name: cells[name] for name in NETWORK_NAMES if name in cells}
    known = any(is_loss(*item) and not isinstance(item[1], _LOSS_NETS) for item in cells.items())
    places: list[tuple[nn.Cell, str, nn.Cell]] = []
    doubtful: list[str] = []
    for name, cell in (named or cells).items():
        if isinstance(cell, _LOSS_NETS):
            places += _networks(cell, level)
        elif not named and is_loss(name, cell):
            continue
        elif not named and (isinstance(cell, _LISTS) or any(is_loss(*c) for c in _below(cell))):
            places += _networks(cell, level)
        elif named or _is_layer(cell) or cell.parameters_dict():
            places.append((loss_net, name, cell))
            if not (named or known or _is_layer(cell)) and _takes_several(cell):
                doubtful.append(name)
    if doubtful and sum(bool(cell.parameters_dict()) for _, _, cell in places) > 1:
        raise InputError(
            f"precision={level!r} cannot tell whether {doubtful[-1]!r} of the loss_net, a "
            f"{type(loss_net).__name__}, is network or loss; expected LossNet(network, loss_fn), "
            "or the network as self.network: all else stays float32"
        )
    return places


def _below(cell: nn.Cell) -> list[tuple[str, nn.Cell]]:
    """Return (name, Cell) of all Cells inside a Cell."""
    return [(path.split(".")[-1], inner) for path, inner in cell.cells_and_names() if path]


def is_loss(name: str, cell: nn.Cell) -> bool:
    """Return whether the Cell called ``name`` is a loss, by its class or by their names.

    One of these names contains the word loss or criterion: ``aux_loss``, ``MSELoss``. If it is only
    part of a word, as in ``celoss`` and GlossNet, the Cell is a loss if it takes several inputs.
    """
    if isinstance(cell, nn.LossBase):
        return True
    names = (name, type(cell).__name__)
    words = {word.lower() for text in names for word in _WORD.findall(text)}
    if words.intersection(_LOSS_WORDS):
        return True
    inside = any(part in word for word in words for part in _LOSS_WORDS)
    return inside and _takes_several(cell)


def _takes_several(cell: nn.Cell) -> bool:
    """Return whether a Cell's ``construct`` takes more than one input, or may."""
    try:
        inputs = list(inspect.signature(cell.construct).parameters.values())
    except (TypeError, ValueError):
        return True
    required = [p for p in inputs if p.default is p.empty and p.kind != p.KEYWORD_ONLY]
    return len(required) > 1 or any(p.kind == p.VAR_POSITIONAL for p in inputs)


def _is_layer(cell: nn.Cell) -> bool:
    return type(cell).__module__.startswith(("mindspore.nn.", "mindspore.mint."))


def refuse_float16(loss_net: nn.Cell) -> None:
    """Refuse a network that an earlier O2 or O3 step changed: O0 would compute in float16."""
    if any(hasattr(cell, "float16_by_step") for _, cell in loss_net.cells_and_names()):
        raise InputError(
            "precision is 'O0', but an earlier step with another precision put this network into "
            "float16 for good; expected precision='O2' or 'O3' as there, or a newly built network"
        )
