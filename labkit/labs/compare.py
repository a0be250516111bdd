"""Compare two trainings by their parameters, one by one."""

from collections.abc import Mapping

import numpy as np
from mindspore import nn

from labkit.base.arguments import wrong

Arrays = Mapping[str, np.ndarray]


def parameter_values(network: nn.Cell) -> dict[str, np.ndarray]:
    """Return a copy of the trainable parameters of a MindSpore Cell by name."""
    return {p.name: p.asnumpy().copy() for p in network.trainable_params()}


def largest_differences(actual: Arrays, expected: Arrays) -> dict[str, float]:
    """Return the largest absolute difference of each parameter, by name.

    Raises:
        InputError: if both are empty, because an empty comparison would always agree, or their
            names or shapes differ.
    """
    have, want = ({n: v.shape for n, v in values.items()} for values in (actual, expected))
    if not want or have != want:
        raise wrong("actual", have, f"the shapes {want}, at least one")
    off = {n: actual[n].astype(np.float64) - value for n, value in expected.items()}
    return {name: float(np.abs(difference).max()) for name, difference in off.items()}


def relative_error(actual: Arrays, expected: Arrays) -> float:
    """Return |actual - expected| / |expected| over all parameters together (Euclidean norms)."""
    largest_differences(actual, expected)
    off = sum(((actual[n].astype(np.float64) - expected[n]) ** 2).sum() for n in expected)
    size = sum((expected[n].astype(np.float64) ** 2).sum() for n in expected)
    return float(np.sqrt(off / size))
