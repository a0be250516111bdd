"""When factors and inverses are refreshed, and with how much damping: plain Python, on the host."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor
from numpy.typing import ArrayLike

from labkit.base.arguments import integer, names_checked, number
from labkit.errors import InputError
from labkit.steps.schedules import check_length

REFRESH, SKIP, FREEZE = "refresh", "skip", "freeze"


@names_checked
@dataclass(frozen=True)
class TraceRule:
    """THOR's own rule for each layer (Chen et al., AAAI 2021), by the change of the trace.

        D = |tr(F + damping I) - tr(F' + damping I)| / tr(F' + damping I)

    F' is F at the last refresh of the layer's inverses. D > refresh: refresh them; D < freeze:
    never refresh them again; otherwise: skip this refresh.

    Args:
        refresh: threshold of D, at least ``freeze``.
        freeze: threshold of D, at least 0. 0 never freezes.

    Raises:
        InputError: unless 0 <= freeze <= refresh, both finite.
    """

    refresh: float = 0.01
    freeze: float = 0.001

    def __post_init__(self) -> None:
        refresh = number("refresh", self.refresh, at_least=0)
        number("freeze", self.freeze, at_least=0, at_most=refresh)

    def decide(self, trace: float, last: float) -> str:
        """Return REFRESH, SKIP or FREEZE.

        Args:
            trace: tr(F + damping I).
            last: tr(F' + damping I).
        """
        change = abs(trace - last) / last
        if not change <= self.refresh:  # NaN if the traces are infinite
            return REFRESH
        return SKIP if change >= self.freeze else FREEZE


class Damping:
    """Damping at each update.

    Args:
        damping: number > 0, array with one per update (updates,), or function of the number of
            updates so far.

    Raises:
        InputError: if a value is not a finite number > 0, or an array has a different shape.
    """

    def __init__(self, damping: float | ArrayLike | Tensor | Callable[[int], float]) -> None:
        self.function = damping if callable(damping) else None
        if self.function is None:
            values = np.asarray(getattr(damping, "asnumpy", lambda: damping)(), dtype=object)
            self.values = np.array([number("damping", x, above=0) for x in values.ravel()])
            if values.ndim > 1 or not values.size:
                raise InputError(f"damping: expected shape () or (updates,), got {values.shape}")
            self.constant = values.ndim == 0

    @property
    def by_update(self) -> Callable[[int], float] | np.ndarray | None:
        """The function, or the array (updates,); None for a constant."""
        if self.function is not None:
            return self.function
        return None if self.constant else self.values

    def check_length(self, updates: int) -> None:
        """Raise ``InputError`` if an array has fewer than ``updates`` values."""
        if self.function is None and not self.constant:
            check_length(self.values, updates, "damping", "values")

    def at(self, update: int) -> float:
        """Return the damping of update 0, 1, ...; raise ``InputError`` past the end of an array."""
        if self.function is not None:
            return number("damping", self.function(update), above=0)
        if self.constant:
            return float(self.values[0])
        self.check_length(update + 1)
        return float(self.values[update])


class Frequency:
    """Updates from one refresh to the next.

    Args:
        name: name of the option, for messages.
        frequency: integer >= 1, or function of the number of updates so far that returns one.

    Raises:
        InputError: if it is not such an integer.
    """

    def __init__(self, name: str, frequency: int | Callable[[int], int]) -> None:
        self.name = name
        self.function = frequency if callable(frequency) else None
        self.constant = integer(name, frequency(0) if callable(frequency) else frequency)

    def is_due(self, update: int, last: int) -> bool:
        """Return whether ``update`` refreshes; ``last`` is the last that did, < 0 for none."""
        every = integer(self.name, self.function(update)) if self.function else self.constant
        return last < 0 or update - last >= every
