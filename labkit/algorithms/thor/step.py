"""The step: THOR's update stage after the plain step's gradient stage."""

from typing import Any

from mindspore import nn

from labkit.algorithms.thor.rules import OPTION_NAMES, ByUpdate
from labkit.algorithms.thor.update import ThorUpdate
from labkit.steps.options import gradient_options
from labkit.steps.step import PlainStep


class ThorStep(PlainStep):
    """One THOR update per batch: a ``PlainStep`` with a ``ThorUpdate``.

    With accumulation:
    ``AccumulatedStep(loss_net, optimizer, 4, update=ThorUpdate(loss_net, optimizer, damping))``.

    Args:
        loss_net: network and loss, a mean over rows; its layers get taps, in place.
        optimizer: any ``nn.Optimizer``; THOR's own is nn.Momentum.
        damping: see ``ThorOptions``.
        **options: see ``ThorOptions`` and ``GradientOptions``.

    Raises:
        InputError: as ``ThorUpdate`` does, and ``FloatingPointError`` likewise.

    >>> step = ThorStep(LossNet(network, loss_fn), optimizer, damping=0.3, frequency=10)
    >>> loss = step(images, labels)
    """

    def __init__(
        self, loss_net: nn.Cell, optimizer: nn.Optimizer, damping: ByUpdate, **options: Any
    ):
        own = {name: options.pop(name) for name in OPTION_NAMES if name in options}
        gradient_options(options, *OPTION_NAMES)  # before the network gets taps
        update = ThorUpdate(loss_net, optimizer, damping, **own)
        try:
            super().__init__(loss_net, optimizer, update=update, **options)
        except Exception:
            update.release()
            raise
