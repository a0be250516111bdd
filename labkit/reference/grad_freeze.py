"""Gradient freezing of Momentum, one update at a time; and how often each group is the first."""

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

    ``groups`` says of each parameter which group it belongs to; the others stay, velocities too.
    """
    moved, turned = momentum_update(parameters, velocities, gradients, learning_rate, momentum)
    trained = [group >= first for group in groups]
    return (
        [new if t else old for t, new, old in zip(trained, moved, parameters, strict=True)],
        [new if t else old for t, new, old in zip(trained, turned, velocities, strict=True)],
    )


def first_group_shares(groups: int, freeze_type: int, freeze_p: float) -> np.ndarray:
    """Return how often each group is the first that is trained, (groups,), over many updates.

    Type 0 runs through 1 .. groups - 1 after as many zeros as keep ``freeze_p`` of all updates,
    rounded down; type 1 keeps it exactly, and has k in (groups - k) of the other draws.
    """
    if freeze_type == 0:
        zeros = int(freeze_p * (groups - 1) // (1 - freeze_p) + 0.5)
        counts = np.array([zeros, *np.ones(groups - 1)])
        return counts / counts.sum()
    falling = np.array([groups - k for k in range(1, groups)], dtype=np.float64)
    return np.array([freeze_p, *((1 - freeze_p) * falling / falling.sum())])
