"""Data that belongs to one worker: the state of its optimizer, and the notes on its turn."""

from itertools import product
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from labkit.steps.state import rated

# Attributes of an optimizer that are not per-worker state: settings that a callback may change, and
# the step count.
SETTINGS = ("learning_rate", "weight_decay", "momentum", "global_step")


# The notes that follow a worker's vector in the bank, float32, in this order: the sum of w_i L_i
# over its micro-batches; the sum of w_i; the number of rows; the norm of its averaged gradient
# before clipping; and 1, or 0 for a worker without a finite micro-batch.
NOTES = 5
LOSS_SUM, WEIGHT, IMAGES, NORM, PRESENT = range(NOTES)


def states_of(optimizer: nn.Optimizer) -> list[Parameter]:
    """Return the Parameters of the optimizer's own state: moments and powers of betas."""
    kept_out = {id(parameter) for parameter in optimizer.parameters}
    for each, name in product((optimizer, rated(optimizer)), SETTINGS):
        kept_out |= {id(parameter) for parameter in _parameters(getattr(each, name, None))}
    return [parameter for parameter in optimizer.get_parameters() if id(parameter) not in kept_out]


def memory_usage(optimizer: nn.Optimizer, workers: int, on: str) -> dict[str, int]:
    """Return the bytes of an ``AdasumUpdate``'s Parameters by part, except its few scalars.

    Args:
        optimizer: that of the update.
        workers: virtual workers in one process.
        on: ``updates`` or ``gradients``.
    """
    numbers = sum(parameter.size for parameter in optimizer.parameters)
    parts = {"workers' vectors": 4 * workers * (numbers + NOTES)}
    if on == "updates":
        parts["weights that workers start from"] = sum(p.nbytes for p in optimizer.parameters)
        states = sum(state.nbytes for state in states_of(optimizer)) if workers > 1 else 0
        parts["workers' optimizer states"] = 2 * workers * states
    return parts


def _parameters(value: Any) -> list[Parameter]:
    """Return the Parameters in a Parameter, a Cell, or a list or tuple of them."""
    if isinstance(value, Parameter):
        return [value]
    if isinstance(value, list | tuple):
        return [parameter for part in value for parameter in _parameters(part)]
    return list(value.get_parameters()) if hasattr(value, "get_parameters") else []


def bank_of(parameter: Parameter, count: int) -> Parameter:
    """Return ``count`` copies of a state, (count, ...)."""
    values = np.repeat(parameter.asnumpy()[None], count, 0)
    return Parameter(
        Tensor(values, parameter.dtype), name=f"adasum.bank.{parameter.name}", requires_grad=False
    )


def load(index: Tensor, value: Parameter, bank: Parameter) -> Tensor:
    """Set a state to the row ``index`` (1,) of its bank."""
    return ops.assign(value, ops.reshape(ops.gather(bank, index, 0), value.shape))


def store(index: Tensor, value: Parameter, bank: Parameter) -> Tensor:
    """Set the row ``index`` (1,) of a bank to the state."""
    return ops.scatter_update(bank, index, ops.expand_dims(value, 0))


def difference(a: Tensor, b: Tensor) -> Tensor:
    """Return a - b as a vector, float32."""
    return ops.reshape(ops.cast(a, ms.float32) - ops.cast(b, ms.float32), (-1,))
