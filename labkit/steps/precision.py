"""Precision: float16 inside a network, float32 in its loss."""

from typing import Any

import mindspore as ms
from mindspore import amp, nn
from mindspore.ops import functional

from labkit.errors import InputError
from labkit.steps.options import DynamicLossScale as DynamicLossScale


def use_float16(loss_net: nn.Cell, level: str = "O2") -> None:
    """Convert ``loss_net.network`` to float16 at MindSpore's level O2 or O3; its loss is not.

    Raises ``InputError`` if there is no such Cell, or another level has converted it before.
    """
    network = getattr(loss_net, "network", None)
    if not isinstance(network, nn.Cell):
        raise InputError(
            f"precision={level!r}: expected LossNet(network, loss_fn), or self.network"
        )
    before = _level(network)
    if before not in (None, level):
        raise InputError(f"precision: expected {before!r}, which the network is in, got {level!r}")
    if isinstance(network, _InFloat16):
        return
    if before is None:
        half = amp.auto_mixed_precision(network, level)
        # Past Cell's own setattr, which would make it a part of itself.
        object.__setattr__(network, "labkit_half", (level, getattr(half, "_backbone", half)))
    # Set through _cells, as amp itself does: setattr would prefix the parameters' names.
    loss_net._cells["network"] = _InFloat16(network.labkit_half[1], level)


def refuse_float16(loss_net: nn.Cell) -> None:
    """Refuse a network that an earlier step has put into float16: O0 would compute in it."""
    if _level(getattr(loss_net, "network", None)):
        raise InputError("precision is 'O0', and an earlier step has put this network into float16")


def _level(network: object) -> str | None:
    if isinstance(network, _InFloat16):
        return network.level
    return getattr(network, "labkit_half", (None,))[0]


class _InFloat16(nn.Cell):
    """A network in float16 whose outputs are float32, as in amp's own wrapper."""

    def __init__(self, backbone: nn.Cell, level: str):
        super().__init__(auto_prefix=False)
        self._backbone, self.level = backbone, level
        self._get_attr_from_cell(backbone)
        self._amp_level = level

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return functional.mixed_precision_cast(ms.float32, self._backbone(*args, **kwargs))
