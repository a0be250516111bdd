"""The arguments of ``thor`` and ``convert_to_thor_model``, checked and converted to labkit's."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, amp, nn

from labkit.base.arguments import is_integer, number, wrong
from labkit.errors import InputError
from labkit.steps.precision import DynamicLossScale

OfUpdate = Callable[[int], float]
Scale = float | DynamicLossScale


def learning_rates(value: object) -> tuple[object, OfUpdate | None]:
    """Return (what nn.Optimizer accepts, None or the function to call before each update)."""
    if isinstance(value, nn.learning_rate_schedule.LearningRateSchedule):
        return value, None
    checked = schedule("learning_rate", value, zero=True)
    if callable(checked):
        return at_update(checked, 0), checked
    return (Tensor(checked) if isinstance(checked, np.ndarray) else checked), None


def at_update(rate: OfUpdate, update: int) -> float:
    """Return a function's learning rate at an update; ``InputError`` if it is not a number >= 0."""
    value = rate(update)
    if isinstance(value, Tensor):
        value = value.asnumpy()
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    return number(f"learning_rate at update {update}", value, at_least=0)


def schedule(name: str, value: Any, zero: bool) -> float | np.ndarray | OfUpdate:
    """Return a float or a float32 array (N,), checked to be positive, or the function itself.

    Args:
        name: name of the argument.
        value: number, array, Tensor or function of the update's number.
        zero: whether values may be 0.
    """
    if isinstance(value, Tensor):
        value = value.asnumpy()
    if callable(value):
        return value
    bound = ">= 0" if zero else "> 0"
    expected = f"a finite number {bound}, one of them for each update, or a function of the update"
    try:
        values = np.asarray(value, np.float32)
        are_numbers = np.asarray(value).dtype.kind not in "bSU"  # NumPy accepts True and "0.1"
    except (TypeError, ValueError):
        are_numbers = False
    if not are_numbers:
        raise wrong(name, value, expected)
    if values.ndim > 1 or not values.size:
        raise InputError(f"{name}: expected {expected}, got shape {values.shape}")
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0) | ((values == 0) & (not zero)))
    if bad.size and values.ndim:
        raise wrong(f"{name}[{bad[0]}]", float(values[bad[0]]), expected)
    if bad.size:
        raise wrong(name, value, expected)
    return values if values.ndim else float(value)


def checked_split(net: nn.Cell, indices: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return upstream's groups of layers as a tuple, or None."""
    if indices is None:
        return None
    whole = isinstance(indices, list | tuple) and all(map(is_integer, indices))
    if not whole or not indices or list(indices) != sorted(set(indices)) or indices[0] < 0:
        raise wrong("split_indices", indices, "increasing integers >= 0")
    # The layers that have factors in upstream.
    cells = (cell for _, cell in net.cells_and_names() if isinstance(cell, nn.Dense | nn.Conv2d))
    layers = sum(cell.weight.requires_grad for cell in cells)
    if indices[-1] >= layers:
        expected = f"integers below {layers}, the number of layers with factors"
        raise wrong("split_indices", indices, expected)
    return tuple(map(int, indices))


def loss_scale_of(manager: object, of_thor: float) -> tuple[Scale, str]:
    """Return (loss scale of the step, what it does if a batch is not finite).

    Args:
        manager: None, or a loss scale manager of ``mindspore.amp``.
        of_thor: ``loss_scale`` of the optimizer.
    """
    scale: Scale
    right: tuple[float, ...] = (1.0,)
    nonfinite = "drop_micro"
    if isinstance(manager, amp.DynamicLossScaleManager):
        value = manager.get_loss_scale()
        scale = DynamicLossScale(float(value), float(manager.scale_factor), manager.scale_window)
    elif isinstance(manager, amp.FixedLossScaleManager):
        value = scale = float(manager.get_loss_scale())
        right = (value,)
        if manager.get_drop_overflow_update():
            # If MindSpore drops overflows, it unscales by itself; the optimizer's scale is to be 1.
            right = (value, 1.0)
        else:
            nonfinite = "propagate"
    elif manager is None:
        value = scale = 1.0
    else:
        raise InputError(
            "loss_scale_manager: expected FixedLossScaleManager, DynamicLossScaleManager or None, "
            f"got a {type(manager).__name__}"
        )
    if of_thor not in right:
        beside = "no manager" if manager is None else f"a {type(manager).__name__} of {value}"
        expected = f"{' or '.join(map(str, right))} beside {beside}"
        raise wrong("loss_scale of thor", of_thor, expected)
    return scale, nonfinite
