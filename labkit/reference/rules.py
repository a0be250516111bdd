"""Rules that decide when THOR refreshes, how far it steps, and how much it damps."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from labkit.base.arguments import wrong
from labkit.reference.kronecker import Positions


@dataclass(frozen=True)
class TraceRule:
    """Refresh if the change is above ``refresh``, freeze for good below ``freeze``, else skip."""

    refresh: float = 0.01
    freeze: float = 0.001

    def __post_init__(self) -> None:
        if not self.refresh >= self.freeze >= 0:
            given = (self.refresh, self.freeze)
            raise wrong("refresh, freeze", given, "refresh >= freeze >= 0")

    def decide(self, trace: float, last: float) -> str:
        """Return "refresh", "skip" or "freeze" by |trace - last| / last, of tr(F + damping I)."""
        change = abs(trace - last) / last
        if math.isnan(change) or change > self.refresh:
            return "refresh"
        return "freeze" if change < self.freeze else "skip"


def running_average(old: np.ndarray | None, new: np.ndarray, decay: float) -> np.ndarray:
    """Return decay old + (1 - decay) new, or ``new`` if ``old`` is None."""
    return new if old is None else decay * old + (1 - decay) * new


def trace_of_fisher(
    a_factor: np.ndarray, g_factor: np.ndarray, positions: Positions, damping: float
) -> float:
    """Return tr(T G (x) A + damping I) = sum over groups of T tr A tr G + damping dim A dim G.

    If ``positions`` is a pair, as in upstream's factors, T is that of A.
    """
    count = positions[0] if isinstance(positions, tuple) else positions
    trace = 0.0
    for a, g in zip(a_factor, g_factor, strict=True):
        trace += count * np.trace(a) * np.trace(g) + damping * len(a) * len(g)
    return float(trace)


def fisher_quadratic(
    a_factor: np.ndarray, g_factor: np.ndarray, positions: int, step: np.ndarray, damping: float
) -> float:
    """Return s^T (F + damping I) s for a step (groups, out, in), F = T G (x) A."""
    curved = sum(
        positions * np.trace(s.T @ g @ s @ a)
        for a, g, s in zip(a_factor, g_factor, step, strict=True)
    )
    return float(curved + damping * np.sum(step**2))


def kl_clip_factor(
    directions: Iterable[np.ndarray],
    gradients: Iterable[np.ndarray],
    learning_rate: float,
    kl_clip: float,
) -> float:
    """Return min(1, sqrt(kl_clip / sum |lr^2 <U, grad>|)) over all layers with factors."""
    moved = sum(
        abs(learning_rate**2 * np.sum(u * g)) for u, g in zip(directions, gradients, strict=True)
    )
    return 1.0 if moved <= kl_clip else math.sqrt(kl_clip / moved)
