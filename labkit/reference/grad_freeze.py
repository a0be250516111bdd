"""Gradient freezing with Momentum, update by update, and how often each group is the first."""

from collections.abc import Sequence

import numpy as np

from labkit.reference.accumulation import Arrays, momentum_update


def frozen_momentum_update(
    parameters: Arrays,
    velocities: Arrays,
    gradients: Arrays,
    groups: Sequence[int],
    first: int,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
) -> tuple[Arrays, Arrays]:
    """Return (parameters, velocities) after an update of the groups >= ``first``.

    ``groups`` is the group of each parameter; other groups keep parameters and velocities.
    """
    moved, turned = momentum_update(parameters, velocities, gradients, learning_rate, momentum)
    trained = [group >= first for group in groups]
    return (
        [new if t else old for t, new, old in zip(trained, moved, parameters, strict=True)],
        [new if t else old for t, new, old in zip(trained, turned, velocities, strict=True)],
    )


def first_group_shares(groups: int, freeze_type: int, freeze_p: float) -> np.ndarray:
    """Return the share of updates in which each group is the first to be trained, (groups,).

    Type 0 runs through 1 .. groups - 1 after as many zeros, rounded down, as make up ``freeze_p``
    of all updates; type 1 draws 0 with exactly that share and otherwise k in proportion to
    groups - k.
    """
    if freeze_type == 0:
        zeros = int(freeze_p * (groups - 1) // (1 - freeze_p) + 0.5)
        counts = np.array([zeros, *np.ones(groups - 1)])
        return counts / counts.sum()
    falling = np.array([groups - k for k in range(1, groups)], dtype=np.float64)
    return np.array([freeze_p, *((1 - freeze_p) * falling / falling.sum())])
