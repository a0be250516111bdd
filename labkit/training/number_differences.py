"""Which of an optimizer's numbers differ from those noted in a checkpoint, in words."""

from typing import Any

import numpy as np
from mindspore import Tensor

from labkit.steps.step import Step
from labkit.training import optimizer_numbers as numbers
from labkit.training.fingerprints import UNKNOWN, agrees

Differences = dict[str, tuple[Any, Any]]


def differences(then: dict[str, Any] | None, values: dict, step: Step) -> Differences:
    """Return name -> (this step's, the checkpoint's) for the optimizer's numbers that differ.

    Arrays of rates are the same if one begins with the other. A rate that a callback has changed
    during training is no difference as long as both trainings began with the same rate.
    Without ``then``, the checkpoint's ``optimizer_numbers.noted``, only arrays of rates can be
    compared, with those in ``values``, the checkpoint's values by name.
    """
    differ: Differences = {}
    if then is not None:
        kind, before = type(step.optimizer).__name__, then["constants"]["class"]
        if kind != before:
            return {"the optimizer": (kind, before)}
        differ |= _of_constants(then, step) | _of_functions(then, step)
        of_rates = numbers.rates(step.optimizer)
        if of_rates != (before := then.get("rates", of_rates)):
            differ |= _named("the learning rate", of_rates, before)
    differ |= _of_parameters(then or {}, values, step)
    if then is not None and "damping" in then:
        differ |= _of_damping(then["damping"], step)
    return differ


def not_compared(then: dict[str, Any] | None, step: Step) -> list[str]:
    """Return the names of values that cannot be compared with the checkpoint's."""
    kinds = {"texts": numbers.texts(step.optimizer), "functions": numbers.functions(step)}
    return [
        name
        for kind, own in kinds.items()
        for name, text in own.items()
        if (then or {}).get(kind) is None or UNKNOWN in text
    ]


def _of_constants(then: dict[str, Any], step: Step) -> Differences:
    own, theirs = numbers.constants(step.optimizer), then["constants"]
    if "texts" in then:  # an older labkit did not note them
        own, theirs = own | numbers.texts(step.optimizer), theirs | then["texts"]
    differ: Differences = {}
    for name in dict.fromkeys((*own, *theirs)):
        mine, other = own.get(name), theirs.get(name)
        if isinstance(mine, dict) and numbers.is_a_number_each(other, mine):
            other = dict(zip(mine, other, strict=True))  # noted without names, in their order
        if not _same(mine, other):
            differ |= _named(name, mine, other)
    return differ


def _of_functions(then: dict[str, Any], step: Step) -> Differences:
    own, theirs = numbers.functions(step), then.get("functions", {})
    # A function in one and a number in the other is a difference of the step's settings.
    return {
        name: (text, theirs[name])
        for name, text in own.items()
        if name in theirs and not _same(text, theirs[name])
    }


def _of_parameters(then: dict[str, Any], values: dict, step: Step) -> Differences:
    own, rates = numbers.own_parameters(step.optimizer), numbers.rate_names(step.optimizer)
    begun = then.get("parameters", {})
    # In a step that has made updates, a counter of them does not show where it began.
    fresh = int(step.updates.asnumpy()) == 0
    differ: Differences = {}
    for name in dict.fromkeys((*own, *begun)):
        mine = own[name].asnumpy() if name in own else None
        # A text in place of an array is refused when it is loaded.
        other = values[name].asnumpy() if isinstance(values.get(name), Tensor) else None
        if mine is None or other is None or mine.shape != other.shape:
            differs = (name in rates or name in begun) and not _goes_on(mine, other)
        elif _equal(mine, other):
            differs = False
        elif mine.size > 1:
            differs = True
        elif name not in begun:
            differs = False
        elif name in rates or name == "momentum":
            differs = not _same(numbers.first_number(mine), begun[name])
        else:
            differs = fresh and _same(numbers.first_number(other), begun[name])
        if differs:
            differ[name] = (_shown(mine), _shown(other))
    return differ


def _of_damping(before: dict[str, Any], step: Step) -> Differences:
    """Return the difference if THOR's array of damping does not begin with the checkpoint's."""
    damping, length = numbers.damping_array(step), before["length"]
    if damping is None:
        return {}
    if len(damping) >= length and numbers.damping_digest(damping[:length]) == before["sha256"]:
        return {}
    theirs = f"{length} values from {before['first']:g} to {before['last']:g}"
    return {"damping": (_shown(damping), theirs)}


def _same(mine: Any, other: Any) -> bool:
    """Return whether two values of a note are the same; NaN equals NaN."""
    if isinstance(mine, dict) and isinstance(other, dict):
        return mine.keys() == other.keys() and all(_same(mine[n], other[n]) for n in mine)
    if isinstance(mine, list) and isinstance(other, list):
        return len(mine) == len(other) and all(map(_same, mine, other))
    if isinstance(mine, str) and isinstance(other, str):
        return agrees(mine, other)
    return mine == other or (mine != mine and other != other)


def _equal(mine: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(mine, other, equal_nan=True)


def _goes_on(mine: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Return whether the shorter of two arrays of rates is the beginning of the other."""
    if mine is None or other is None or not mine.ndim == other.ndim == 1:
        return False
    length = min(len(mine), len(other))
    return length > 0 and _equal(mine[:length], other[:length])


def _named(name: str, mine: Any, other: Any) -> Differences:
    """Return a difference; for values by Parameter name, that of the first that differs."""
    if not (isinstance(mine, dict) and isinstance(other, dict)):
        return {name: (_shown(mine), _shown(other))}
    differ = [n for n in dict.fromkeys((*mine, *other)) if not _same(mine.get(n), other.get(n))]
    pair = (_shown(mine.get(differ[0])), _shown(other.get(differ[0])))
    more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
    return {f"{name} of {differ[0]}{more}": pair}


def _shown(value: Any) -> Any:
    """Return a value for display: a number as it is, an array by its ends, "none" for None."""
    if value is None:
        return "none"
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list) and any(isinstance(part, list) for part in value):
        return f"{len(value)} lists"
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} values from {value[0]:g} to {value[-1]:g}"
    if isinstance(value, float) and float(np.float32(value)) == value:
        return str(np.float32(value))  # 0.1, and not 0.10000000149011612
    return value
