"""Compare two trainings by their parameters, one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from labkit.base.arguments import wrong
from labkit.errors import InputError

if TYPE_CHECKING:
    from mindspore.nn import Cell

    from labkit.steps.step import Step


def parameter_values(network: Cell) -> dict[str, np.ndarray]:
    """Return a copy of the trainable parameters of a MindSpore Cell by name."""
    return {p.name: p.asnumpy().copy() for p in network.trainable_params()}


def largest_differences(
    actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Return the largest absolute difference of each parameter, by name.

    Raises:
        InputError: if both are empty, because an empty comparison would always agree, or their
            names or shapes differ.
    """
    if not expected or actual.keys() != expected.keys():
        raise wrong("actual", sorted(actual), f"the names {sorted(expected)}, at least one")
    for name in expected:
        if actual[name].shape != expected[name].shape:
            raise wrong(name, actual[name].shape, f"the shape {expected[name].shape}")
    return {
        name: float(np.abs(actual[name].astype(np.float64) - expected[name]).max())
        for name in expected
    }


def relative_error(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """Return |actual - expected| / |expected| over all parameters together (Euclidean norms)."""
    largest_differences(actual, expected)
    off = sum(((actual[n].astype(np.float64) - expected[n]) ** 2).sum() for n in expected)
    size = sum((expected[n].astype(np.float64) ** 2).sum() for n in expected)
    return float(np.sqrt(off / size))


def restarted(step: Step, weights: Mapping[str, np.ndarray], rate: float | None = None) -> Step:
    """Reset a step to these weights, and its optimizer's moments to 0; return it.

    The compiled graph is used again: building a new step takes as long as hundreds of LeNet steps.
    The step's counts of updates continue; it must not be within a group of micro-batches.

    Args:
        step: step with ``nn.Momentum``, or ``nn.SGD`` without momentum.
        weights: name -> array of each trained Parameter.
        rate: the new learning rate; None: unchanged.

    Raises:
        InputError: if ``rate`` is given and the optimizer's learning rate is not a constant.
    """
    import mindspore as ms
    from mindspore import Parameter, Tensor, ops

    optimizer = step.optimizer
    if rate is not None and not isinstance(optimizer.learning_rate, Parameter):
        given = f"{type(optimizer).__name__} with {type(optimizer.learning_rate).__name__}"
        raise InputError(f"rate: expected an optimizer with a constant learning rate, got {given}")
    for parameter in optimizer.parameters:
        ops.assign(parameter, Tensor(weights[parameter.name]))
    for moment in getattr(optimizer, "moments", ()):
        ops.assign(moment, ops.zeros_like(moment))
    if rate is not None:
        ops.assign(optimizer.learning_rate, Tensor(rate, ms.float32))
    return step
