"""What ``thor`` and ``convert_to_thor_model`` are given, checked and in labkit's own forms."""

import math
from numbers import Integral, Real

import numpy as np
from mindspore import Tensor, amp, nn

from labkit.errors import InputError
from labkit.steps.precision import DynamicLossScale


def learning_rates(value):
    """Return (what nn.Optimizer takes, None or the function that the training has to ask)."""
    if isinstance(value, nn.learning_rate_schedule.LearningRateSchedule):
        return value, None
    checked = schedule("learning_rate", value, ">= 0", lambda values: values >= 0)
    if callable(checked):
        return at_update(checked, 0), checked
    return (Tensor(checked) if isinstance(checked, np.ndarray) else checked), None


def at_update(rate, update: int) -> float:
    """Return the learning rate that a function says for an update; ``InputError`` for none."""
    value = rate(update)
    if isinstance(value, Tensor):
        value = value.asnumpy()
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    name = f"learning_rate at update {update}"
    return number(name, value, "a finite number >= 0", lambda rate: rate >= 0)


def schedule(name, value, bound, is_right):
    """Return a float, a float32 array (N,) or the function itself.

    bound, is_right  what its values have to be, in words and as a function of an array
    """
    if isinstance(value, Tensor):
        value = value.asnumpy()
    if callable(value):
        return value
    expected = f"a finite number {bound}, one of them for each update, or a function of the update"
    if isinstance(value, bool | str):
        raise InputError(f"{name} is {value!r}; expected {expected}")
    try:
        values = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}; expected {expected}") from None
    if values.ndim > 1 or not values.size:
        raise InputError(f"{name} has shape {values.shape}; expected {expected}")
    wrong = np.flatnonzero(~(np.isfinite(values) & is_right(values)))
    if wrong.size and values.ndim:
        first = int(wrong[0])
        raise InputError(f"{name}[{first}] is {values[first]}; expected {expected}")
    if wrong.size:
        raise InputError(f"{name} is {value!r}; expected {expected}")
    return values if values.ndim else float(value)


def preconditioned_layers(net) -> int:
    """Return how many layers of ``net`` upstream gives factors: Dense and Conv2d that train."""
    cells = (cell for _, cell in net.cells_and_names() if isinstance(cell, nn.Dense | nn.Conv2d))
    return sum(cell.weight.requires_grad for cell in cells)


def checked_split(net, indices):
    """Return upstream's groups of layers as a tuple, or None."""
    if indices is None:
        return None
    layers = preconditioned_layers(net)
    whole = isinstance(indices, list | tuple) and all(
        isinstance(one, Integral) and not isinstance(one, bool) for one in indices
    )
    if not whole or not indices or list(indices) != sorted(set(indices)) or indices[0] < 0:
        raise InputError(f"split_indices is {indices!r}; expected increasing whole numbers >= 0")
    if indices[-1] >= layers:
        raise InputError(
            f"split_indices ends with {indices[-1]}; the network has {layers} layers with factors, "
            f"0 to {layers - 1}"
        )
    return tuple(int(one) for one in indices)


def number(name, value, expected, is_right) -> float:
    """Return ``value`` as a float; ``InputError`` for what is no such number."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not is_right(value):
        raise InputError(f"{name} is {value!r}; expected {expected}")
    return float(value)


def name_of(value) -> str:
    """Return what came instead of a network with trainable Parameters."""
    return f"a {type(value).__name__}" + (" without any" if isinstance(value, nn.Cell) else "")


def loss_scale_of(manager, said):
    """Return (loss scale of the step, what it does where a batch is not finite).

    said  ``loss_scale`` of the optimizer
    """
    if isinstance(manager, amp.DynamicLossScaleManager):
        scale, right = manager.get_loss_scale(), (1.0,)
        found = DynamicLossScale(float(scale), float(manager.scale_factor), manager.scale_window)
        nonfinite = "drop_micro"
    elif isinstance(manager, amp.FixedLossScaleManager):
        found = scale = float(manager.get_loss_scale())
        drops = manager.get_drop_overflow_update()
        # Where MindSpore drops overflows, it unscales by itself, and the optimizer's is to be 1.
        right = (scale, 1.0) if drops else (scale,)
        nonfinite = "drop_micro" if drops else "propagate"
    elif manager is None:
        found = scale = 1.0
        right, nonfinite = (1.0,), "drop_micro"
    else:
        raise InputError(
            f"loss_scale_manager is a {type(manager).__name__}; expected FixedLossScaleManager, "
            "DynamicLossScaleManager or None"
        )
    if said not in right:
        raise InputError(
            f"loss_scale is {said} in thor, and {scale} in the loss_scale_manager, a "
            f"{type(manager).__name__}; expected {' or '.join(map(str, right))} in thor"
        )
    return found, nonfinite
