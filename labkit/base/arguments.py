"""Validation of arguments: each function returns the value as a plain Python one, or raises.

    epochs = integer("epochs", epochs)                      an integer >= 1
    decay = number("decay", decay, at_least=0, below=1)     0 <= decay < 1
    nesterov = flag("nesterov", nesterov)                   True or False
    tail = choice("tail", tail, ("flush", "drop"))          one of these words

NumPy's integers and floats are accepted everywhere; True and False never count as numbers.
"""

import functools
import inspect
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, cast

from labkit.errors import InputError, nearest

C = TypeVar("C", bound=Callable)

# How a message writes a bound, and the test that a value keeps to it.
_BOUNDS = {
    "at_least": (">=", operator.ge),
    "above": (">", operator.gt),
    "at_most": ("<=", operator.le),
    "below": ("<", operator.lt),
}

MAX_SEED = 2**32 - 1
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def is_integer(value: object) -> bool:
    """Return whether ``value`` is an integer, Python's or NumPy's, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether ``value`` is a finite real number, Python's or NumPy's, and not a bool."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer such as 10**400, larger than any float
        return False


def integer(name: str, value: object, at_least: int = 1, at_most: int | None = None) -> int:
    """Return ``value`` as an int.

    Raises:
        InputError: unless it is an integer with ``at_least <= value <= at_most``.
    """
    bounds: dict[str, float | None] = {"at_least": at_least, "at_most": at_most}
    if not is_integer(value) or not _inside(value, bounds):
        raise wrong(name, value, f"an integer{_in_words(bounds)}")
    return int(value)  # type: ignore[call-overload]


def number(
    name: str,
    value: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> float:
    """Return ``value`` as a float.

    Raises:
        InputError: if it is not a finite number, or is outside a given bound.
    """
    bounds = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    if not is_number(value) or not _inside(value, bounds):
        raise wrong(name, value, f"a finite number{_in_words(bounds)}")
    return float(value)  # type: ignore[arg-type]


def flag(name: str, value: object) -> bool:
    """Return ``value``; raise ``InputError`` unless it is True or False."""
    if not isinstance(value, bool):
        raise wrong(name, value, "True or False")
    return value


def choice(name: str, value: object, words: Iterable[str]) -> str:
    """Return ``value``; raise ``InputError``, naming the nearest, unless it is one of ``words``."""
    words = tuple(words)
    if not isinstance(value, str) or value not in words:
        raise wrong(name, value, "one of " + ", ".join(map(repr, words)), nearest(value, words))
    return value


def path(name: str, value: object, expected: str = "a path") -> Path:
    """Return ``value`` as a Path; raise ``InputError`` unless it is a text or a path."""
    if not isinstance(value, str | os.PathLike):
        raise wrong(name, value, expected)
    return Path(value)


def seed(value: object, name: str = "seed") -> int:
    """Return a seed that NumPy and MindSpore both take: an integer from 0 to 2**32 - 1."""
    return integer(name, value, 0, MAX_SEED)


def wrong(name: str, value: object, expected: str, hint: str = "") -> InputError:
    """Return the error for an argument: what was expected, and what was given."""
    return InputError(f"{name}: expected {expected}, got {value!r}{hint and '.' + hint}")


class UnknownName(InputError, TypeError):
    """A keyword argument that a function does not take."""


def names_checked(function: C) -> C:
    """Decorate a function or a dataclass to answer an unknown keyword with the nearest name.

    Raises:
        UnknownName: instead of Python's TypeError, of which it is a subclass.
    """
    if inspect.isclass(function):
        function.__init__ = names_checked(function.__init__)  # type: ignore[method-assign]
        return function
    given = inspect.signature(function).parameters.items()
    names = [name for name, own in given if own.kind in _BY_NAME and name not in ("self", "cls")]
    owner = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in names:
                raise UnknownName(f"{owner} has no argument {name!r}.{nearest(name, names)}")
        return function(*args, **kwargs)

    return cast(C, checked)


def fit_workers(workers: object) -> int:
    """Return ``workers``, limited to this process's cores; print a message if that is fewer."""
    workers = integer("num_parallel_workers", workers)
    cores = len(os.sched_getaffinity(0))
    if workers > cores:
        print(f"num_parallel_workers: {workers} asked for, {cores} used: there are {cores} cores")
    return min(workers, cores)


def _inside(value: Any, bounds: Mapping[str, float | None]) -> bool:
    return all(
        _BOUNDS[name][1](value, bound) for name, bound in bounds.items() if bound is not None
    )


def _in_words(bounds: Mapping[str, float | None]) -> str:
    words = [f"{_BOUNDS[name][0]} {_shown(x)}" for name, x in bounds.items() if x is not None]
    return " " + " and ".join(words) if words else ""


def _shown(bound: float) -> str:
    return f"{bound:.6g}" if isinstance(bound, float) else str(bound)
