"""Precision: float16 inside a network, and the loss scale that it needs."""

import math
from dataclasses import dataclass
from numbers import Integral, Real

from mindspore import amp, nn

from labkit.errors import InputError

PRECISION = ("O0", "O2")
# A dynamic loss scale stops growing here: doubled to infinity it would never come back.
LARGEST_SCALE = 2.0**120
# What LossNet and MindSpore's WithLossCell call their loss: it stays in float32.
LOSS_NAMES = ("loss_fn", "_loss_fn")


@dataclass(frozen=True)
class DynamicLossScale:
    """Loss scale that shrinks on a non-finite micro-batch and grows after a run of finite ones.

    initial   scale at the start, 1 .. 2**120; it stays between them
    factor    divides the scale on a non-finite micro-batch, multiplies it after ``interval``
              finite ones in a row, > 1
    interval  integer >= 1
    """

    initial: float = 2.0**16
    factor: float = 2.0
    interval: int = 2000

    def __post_init__(self):
        numbers = isinstance(self.initial, Real) and isinstance(self.factor, Real)
        integer = isinstance(self.interval, Integral) and not isinstance(self.interval, bool)
        if not (
            numbers
            and integer
            and 1 <= self.initial <= LARGEST_SCALE
            and 1 < self.factor < math.inf
            and self.interval >= 1
        ):
            raise InputError(
                f"{self} came; expected initial from 1 to 2**120, factor > 1, and an integer "
                "interval >= 1"
            )


def positive(name, value):
    """Return ``value`` as a float if float32 holds it and its reciprocal, else raise."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 1e-37 <= value <= 1e37:
        raise InputError(f"{name} is {value!r}; expected a finite number > 0, 1e-37 to 1e37")
    return float(value)


def use_float16(loss_net):
    """Put the networks inside ``loss_net`` into float16 (MindSpore's O2), its losses left alone."""
    networks = {
        name: cell
        for name, cell in loss_net.name_cells().items()
        if name not in LOSS_NAMES and not isinstance(cell, nn.LossBase)
    }
    if not networks:
        raise InputError(
            f"precision='O2' finds no network inside the loss_net, a {type(loss_net).__name__}; "
            "expected a Cell that holds the network as a Cell, as LossNet(network, loss_fn) does"
        )
    for name, cell in networks.items():
        # A Cell's _amp_level is "" until amp sets it.
        if cell._amp_level in ("", "O0"):
            # Through _cells, as amp itself does: setattr would prefix the parameters' names.
            loss_net._cells[name] = amp.auto_mixed_precision(cell, "O2")
            cell.float16_by_step = True


def refuse_float16(loss_net):
    """Refuse a network that an earlier O2 step changed in place: O0 would compute in float16."""
    if any(getattr(cell, "float16_by_step", False) for _, cell in loss_net.cells_and_names()):
        raise InputError(
            "precision is 'O0', but an earlier step with precision='O2' put this network into "
            "float16 for good; expected precision='O2', or a newly built network"
        )
