"""A table of a lab's claims: what was measured, what is expected, and whether the claim holds."""

import operator
import re
from typing import Any

import numpy as np

from labkit.base.arguments import wrong
from labkit.errors import InputError

# Encloses the measured column and is used nowhere else: notebooks/sanitize.cfg relies on it.
BAR = "│"
YES, NO = "✓", "✗"
_NUMBER = r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(\s*%)?"
_BOUND = re.compile(rf"([<>≤≥])\s*{_NUMBER}")
_WITHIN = re.compile(rf"{_NUMBER}\s*±\s*{_NUMBER}")
_HOLDS = {"<": operator.lt, ">": operator.gt, "≤": operator.le, "≥": operator.ge}

Claim = tuple[str, Any, Any]


def check(*claims: Claim) -> None:
    """Print a table of claims, one per line, and raise if one of them does not hold.

    A claim is (name, measured, expected). A bound on a number is given as a text: ``"< 1e-5"``,
    ``"> 5 %"``, ``"≥ 0.978"``, ``"4 ± 1e-4"``; NaN is neither above nor below anything. Any other
    ``expected`` must equal ``measured``.

    Raises:
        AssertionError: if claims do not hold; it names them, after all have been printed.
        InputError: if there is no claim, or a bound is malformed.
    """
    if not claims:
        raise InputError("claims: expected at least one, got none")
    rows = []
    for name, *claim in claims:
        measured, expected = map(_plain, claim)
        percent = isinstance(expected, str) and "%" in expected
        mark = YES if _holds(measured, expected) else NO
        rows.append((name, _text(measured, percent), _text(expected), mark))
    head = ("", "measured", "expected", "")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(3)]
    for name, found, wanted, mark in (head, *rows):
        parts = f"{name:{widths[0]}} {BAR} {found:{widths[1]}} {BAR} {wanted:{widths[2]}}"
        print(f"{parts} {mark}".rstrip())
    failed = [f"{row[0]}: {row[1]}, expected {row[2]}" for row in rows if row[3] == NO]
    if failed:
        raise AssertionError("; ".join(failed))


def _plain(value: Any) -> Any:
    """Return NumPy's numbers and arrays as Python's, and tuples as lists."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return list(value) if isinstance(value, tuple) else value


def _holds(measured: Any, expected: Any) -> bool:
    if isinstance(expected, str):
        if match := _BOUND.fullmatch(expected):
            return bool(_HOLDS[match[1]](float(measured), _value(*match.group(2, 3))))
        if match := _WITHIN.fullmatch(expected):
            middle, width = _value(*match.group(1, 2)), _value(*match.group(3, 4))
            return bool(abs(float(measured) - middle) <= width)
        if re.match(r"[<>≤≥=]|.*±", expected):
            raise wrong("expectation", expected, "a bound such as '< 1e-5', '> 5 %', '4 ± 0.1'")
    return bool(measured == expected)


def _value(digits: str, percent: str | None) -> float:
    return float(digits) / 100 if percent else float(digits)


def _text(value: Any, percent: bool = False) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if hasattr(value, "__float__") and (percent or not isinstance(value, int)):
        return f"{100 * float(value):.3g} %" if percent else f"{float(value):.3g}"
    return str(value)
