"""Compare two trainings by their parameters, leaf by leaf."""

import numpy as np

from labkit.errors import InputError


def parameter_values(network) -> dict[str, np.ndarray]:
    """Return a copy of the trainable parameters of a MindSpore Cell by name."""
    return {p.name: p.asnumpy().copy() for p in network.trainable_params()}


def largest_differences(came, expected) -> dict[str, float]:
    """Return the largest absolute difference of each parameter, by name.

    came, expected  dicts of arrays. Raises ``InputError`` where they are empty or do not hold the
    same names and shapes: a comparison of nothing would always agree.
    """
    if not expected or came.keys() != expected.keys():
        raise InputError(f"{sorted(came)} cannot be compared with {sorted(expected)}")
    for name in expected:
        if came[name].shape != expected[name].shape:
            raise InputError(f"{name}: {came[name].shape} came, expected {expected[name].shape}")
    return {
        name: float(np.abs(came[name].astype(np.float64) - expected[name]).max())
        for name in expected
    }


def relative_error(came, expected) -> float:
    """Return |came - expected| / |expected| over all parameters together (Euclidean norms)."""
    largest_differences(came, expected)
    off = sum(((came[n].astype(np.float64) - expected[n]) ** 2).sum() for n in expected)
    size = sum((expected[n].astype(np.float64) ** 2).sum() for n in expected)
    return float(np.sqrt(off / size))
