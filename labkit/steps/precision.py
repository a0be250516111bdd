"""The types that a network computes in, and what the device has no kernel for."""

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, amp, mint, nn, ops
from mindspore.ops import functional as F

from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.runtime import pynative
from labkit.steps.options import BFLOAT16

_PRODUCTS = nn.Dense, nn.Conv1d, nn.Conv2d, nn.Conv3d, mint.nn.Linear, mint.nn.Conv2d
_NO_KERNEL = re.compile(r".*?(?:operator\[|For ')(\w+).*?(?:get input|got Ref).*?BFloat16", re.S)
_UNSUPPORTED = re.compile(r"Unsupported op \[(\w+)\] on (\w+)")
_OTHER_TYPES = re.compile(r"types? (must|should) be (the )?same|type of .* should be same")


class OperatorPrecision(nn.Cell):
    """A network with MindSpore's operator-level mixed precision; its outputs are float32."""

    def __init__(self, network: nn.Cell, level: str) -> None:
        super().__init__(auto_prefix=False)
        self._backbone = network  # the name in the wrappers of amp's O2 and O3
        # On this Cell, not on the network, whose calls outside the step stay as they are.
        amp.auto_mixed_precision(self, "auto", ms.bfloat16 if level == BFLOAT16 else ms.float16)

    def construct(self, *inputs: Any) -> Any:
        return F.mixed_precision_cast(ms.float32, self._backbone(*inputs))


def set_precision(loss_net: nn.Cell, level: str) -> None:
    """Make ``loss_net.network``, not its loss, compute in a step's ``precision``."""
    _refuse_bfloat16(loss_net, level)
    network = getattr(loss_net, "network", None)
    half = getattr(network, "labkit_half", None)  # (level, network of that precision)
    if half is None:
        if level == "O0":
            return
        if not isinstance(network, nn.Cell):
            expected = "LossNet(network, loss_fn), or a Cell with self.network"
            raise wrong(f"loss_net of precision={level!r}", type(loss_net).__name__, expected)
        convert = amp.auto_mixed_precision if level in ("O2", "O3") else OperatorPrecision
        half = level, convert(network, level)
        for cell in (network, half[1]):
            # Past Cell's own setattr, which would make it a part of itself.
            object.__setattr__(cell, "labkit_half", half)
    if half[0] != level:
        raise wrong("precision", level, f"{half[0]!r}, which an earlier step set for this network")
    # Through _cells, as amp itself does: setattr would prefix the parameters' names.
    loss_net._cells["network"] = half[1]


def _refuse_bfloat16(loss_net: nn.Cell, level: str) -> None:
    """Refuse bfloat16 products, of ``level`` or of a layer, where the device has none."""
    uses = [f"precision={level!r}"] if level == BFLOAT16 else []
    for path, cell in loss_net.cells_and_names():
        # Other cells in bfloat16 run on CPU. bf16 is the flag of to_float.
        if isinstance(cell, _PRODUCTS):
            if cell.get_flags().get("bf16") or cell.weight.dtype == ms.bfloat16:
                uses.append(f"layer {path.removeprefix('network.')!r} in bfloat16")
    if uses and not has_products(ms.bfloat16):
        raise _lacking("product", uses[0])


def _lacking(kernel: str, got: str) -> InputError:
    name = f"MindSpore's {ms.get_context('device_target')} has no bfloat16 {kernel}"
    return wrong(name, got, "float32 layers and precision='auto' (float16) or 'O0'")


@functools.cache
def has_products(dtype: Any) -> bool:
    """Return whether the device multiplies matrices of a type: it runs one small product."""
    try:
        with pynative():
            ones = ops.cast(Tensor(np.ones((2, 2), np.float32)), dtype)
            return bool(ops.cast(ops.matmul(ones, ones), ms.float32).asnumpy().all())
    except (TypeError, ValueError, RuntimeError):
        return False


@contextlib.contextmanager
def explained(level: str) -> Iterator[None]:
    """Refuse, in one sentence, operators and types that a compilation in the block cannot take."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        text = str(error).strip()
        if found := _NO_KERNEL.match(text):
            raise _lacking(found[1], "bfloat16 in the network") from error
        if found := _UNSUPPORTED.search(text):
            expected = f"operators that {found[2]} has, as those of nn and ops instead of mint's"
            raise InputError(f"network: expected {expected}, got {found[1]}") from error
        if level in ("O2", "O3") and _OTHER_TYPES.search(text):
            expected = "'auto', which casts at each operator and not at each layer"
            raise wrong("precision", level, f"{expected} ({text.splitlines()[0]})") from error
        raise
