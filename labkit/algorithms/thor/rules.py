"""When factors and inverses are made anew, and with how much damping: plain Python, on the host."""

import math
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from labkit.errors import InputError
from labkit.steps.schedules import check_length

REFRESH, SKIP, FREEZE = "refresh", "skip", "freeze"


@dataclass(frozen=True)
class TraceRule:
    """THOR's own rule for each layer (Chen et al., AAAI 2021): by how much did the trace change?

        D = |tr(F + damping I) - tr(F' + damping I)| / tr(F' + damping I)

    F' is what the layer's inverses were last made of. D > refresh: make them anew; D < freeze:
    never again; in between: not this time.

    refresh, freeze  thresholds, 0 <= freeze <= refresh. freeze = 0 never freezes
    """

    refresh: float = 0.01
    freeze: float = 0.001

    def __post_init__(self):
        if not 0 <= self.freeze <= self.refresh < math.inf:
            raise InputError(f"{self} came; expected 0 <= freeze <= refresh, both finite")

    def decide(self, trace: float, last: float) -> str:
        """Return REFRESH, SKIP or FREEZE for the traces of F + damping I, now and then."""
        change = abs(trace - last) / last
        if change > self.refresh:
            return REFRESH
        return SKIP if change >= self.freeze else FREEZE


@dataclass(frozen=True)
class LevenbergMarquardt:
    """Damping that follows how well the quadratic model foresees an update (Martens 2010, 4.1).

        M(s) = <grad, s> + 1/2 s^T (F + damping I) s,     rho = (L(w + s) - L(w)) / M(s)
        rho > 3/4: damping *= decay;  rho < 1/4: damping /= decay

    decay           0 < decay < 1, applied at each refresh
    least, largest  the damping stays between them
    """

    decay: float = 0.95
    least: float = 1e-6
    largest: float = 1e3

    def __post_init__(self):
        if not (0 < self.decay < 1 and 0 < self.least <= self.largest < math.inf):
            raise InputError(f"{self} came; expected 0 < decay < 1 and 0 < least <= largest")

    def adjust(self, damping: float, rho: float) -> float:
        """Return the new damping; a rho that is not finite counts as a bad forecast."""
        if rho > 0.75:
            damping *= self.decay
        elif not rho >= 0.25:
            damping /= self.decay
        return min(max(damping, self.least), self.largest)


class Damping:
    """Damping at each update: a number > 0, an array of them by update, or a function of it."""

    def __init__(self, damping):
        self.function = damping if callable(damping) else None
        if self.function is None:
            values = np.asarray(getattr(damping, "asnumpy", lambda: damping)(), dtype=object)
            self.values = np.array([_checked(value) for value in values.ravel()])
            if values.ndim > 1 or not values.size:
                raise InputError(f"damping has shape {values.shape}; expected (), or (updates,)")
            self.constant = values.ndim == 0

    def check_length(self, updates: int) -> None:
        """Raise ``InputError`` where an array ends before ``updates`` are made."""
        if self.function is None and not self.constant:
            check_length(self.values, updates, "damping", "values")

    def at(self, update: int) -> float:
        """Return the damping of update 0, 1, ...; raise ``InputError`` behind an array's end."""
        if self.function is not None:
            return _checked(self.function(update))
        if self.constant:
            return float(self.values[0])
        if update >= len(self.values):
            raise InputError(
                f"damping has {len(self.values)} values and update {update + 1} is due; expected "
                "at least one for each update"
            )
        return float(self.values[update])


class Frequency:
    """Updates from one refresh to the next: an integer >= 1, or a function of the update."""

    def __init__(self, name, frequency):
        self.name = name
        self.function = frequency if callable(frequency) else None
        self.constant = None if self.function else self._checked(frequency)

    def is_due(self, update: int, last: int) -> bool:
        """Return whether ``update`` is to refresh; ``last`` is the one that did, < 0 for none."""
        every = self._checked(self.function(update)) if self.function else self.constant
        return last < 0 or update - last >= every

    def _checked(self, value):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise InputError(
                f"{self.name} is {value!r}; expected an integer >= 1, or a function of the number "
                "of updates that returns one"
            )
        return int(value)


def _checked(value):
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise InputError(f"damping is {value!r}; expected a finite number > 0")
    return float(value)
