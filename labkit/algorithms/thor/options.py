"""The options of ``ThorUpdate``, checked."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Integral, Real

from labkit.algorithms.thor.curvature import DAMPING_SPLITS
from labkit.algorithms.thor.rules import LevenbergMarquardt, TraceRule
from labkit.algorithms.thor.supported_losses import LOSSES
from labkit.errors import InputError, refuse_unknown

NAMES = {
    "bias": ("homogeneous", "plain"),
    "damping_split": DAMPING_SPLITS,
    "formulas": ("thor", "upstream_gpu"),
    "loss": LOSSES,
    "nan": ("stop", "drop"),
}


@dataclass(frozen=True)
class Options:
    """What ``ThorUpdate`` takes by name.

    frequency         updates between refreshes of the inverses: integer >= 1, or a function of the
                      number of updates so far that returns one
    factor_frequency  likewise between those of the factors; None: as often as the inverses. The
                      first update refreshes both, and inverses are made of that update's factors
    split             largest block of a factor, or None for whole factors
    bias              ``homogeneous``: one more coordinate of its layer's input; ``plain``: it takes
                      the plain update, as in MindSpore's THOR
    factor_decay      weight of the old factors in their running average, 0 <= decay < 1
    damping_split     ``equal`` or ``pi``, see ``labkit.algorithms.thor.curvature``
    trace_rule        ``TraceRule``, or None: every layer's inverses are made anew each time
    kl_clip           largest sum of rate^2 <U, grad> over the layers, or None; U is scaled to it
    adapt_damping     ``LevenbergMarquardt``, which starts from ``damping``, or None
    skip              layers that take the plain update: Cells, or names as in ``layers``. Those
                      whose weight is tied to another Cell's or used without their call must be
    formulas          ``upstream_gpu``: what MindSpore's THOR computes on GPU, to compare with
    loss              ``known``: refuse a loss that is not known to be a mean over rows;
                      ``sample mean``: take your word for it
    nan               ``stop``: a loss that is not finite raises FloatingPointError, which names the
                      layer; ``drop``: it is left to the step's ``nonfinite``

    Raises ``InputError`` for values that are none of these.
    """

    frequency: int | Callable = 100
    factor_frequency: int | Callable | None = None
    split: int | None = 128
    bias: str = "homogeneous"
    factor_decay: float = 0.0
    damping_split: str = "equal"
    trace_rule: TraceRule | None = None
    kl_clip: float | None = None
    adapt_damping: LevenbergMarquardt | None = None
    skip: tuple = ()
    formulas: str = "thor"
    loss: str = "known"
    nan: str = "stop"

    def __post_init__(self):
        for name, known in NAMES.items():
            refuse_unknown(name, getattr(self, name), known)
        _expect(self, "split", "an integer >= 1, or None", _is_count, or_none=True)
        _expect(
            self, "factor_decay", "0 <= factor_decay < 1", lambda x: _is_number(x) and 0 <= x < 1
        )
        _expect(self, "kl_clip", "a number > 0, or None", _is_positive, or_none=True)
        for name, kind in (("trace_rule", TraceRule), ("adapt_damping", LevenbergMarquardt)):
            right = f"a {kind.__name__}, or None"
            _expect(self, name, right, lambda x, kind=kind: isinstance(x, kind), or_none=True)
        is_names = lambda x: isinstance(x, (tuple, list))  # noqa: E731
        _expect(self, "skip", "a tuple of Cells or layer names", is_names)


def split_options(given: dict) -> tuple[dict, dict]:
    """Return (options of ``ThorUpdate``, the rest) of what came by name."""
    own = {field.name for field in fields(Options)}
    return (
        {name: value for name, value in given.items() if name in own},
        {name: value for name, value in given.items() if name not in own},
    )


def checked_options(given: dict) -> Options:
    """Return the ``Options``; an unknown name raises ``InputError`` with the nearest."""
    for name in given:
        refuse_unknown("option of ThorUpdate", name, [field.name for field in fields(Options)])
    return Options(**given)


def _expect(options, name, expected, is_right, *, or_none=False):
    value = getattr(options, name)
    if not (or_none and value is None) and not is_right(value):
        raise InputError(f"{name} is {value!r}; expected {expected}")


def _is_number(value):
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_count(value):
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= 1


def _is_positive(value):
    return _is_number(value) and 0 < value < math.inf
