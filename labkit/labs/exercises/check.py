"""Check a learner's function against a slow specification; say what is wrong, not what is right.

A check is found by the exercise's name. It tries the function on public cases; an unsolved exercise
(``raise NotImplementedError``) is reported and does not stop a notebook.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.errors import refuse_unknown
from labkit.labs.exercises import attempts
from labkit.labs.exercises.attempts import Attempt

_SHOWN_LINES = 5  # of what a learner's function printed


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    name   as the notebook calls it
    spec   the slow specification, same arguments as the learner's function
    cases  argument tuples
    hints  wrong functions that learners write, each with what to say when the answer is theirs
    rtol   relative tolerance on the largest entry of the specification's answer
    """

    name: str
    spec: Callable
    cases: Sequence[tuple]
    hints: Sequence[tuple[Callable, str]] = field(default=())
    rtol: float = 1e-6


def check(exercises: Sequence[Exercise], name: str, attempt: Callable) -> bool:
    """Try ``attempt`` on all cases of exercise ``name``, print what was found, return the verdict.

    Raises ``InputError`` for an unknown exercise; whatever ``attempt`` does or raises is reported,
    and stopped after ``labkit.labs.exercises.attempts.SECONDS`` if it does not end.
    """
    by_name = {exercise.name: exercise for exercise in exercises}
    refuse_unknown("exercise", name, by_name)
    exercise = by_name[name]
    names = list(inspect.signature(exercise.spec).parameters)
    if refused := attempts.refusal(attempt, names):
        print(f"{name}: {refused}")
        return False
    calls = _tried(attempt, exercise.cases, names)
    if calls[-1].unsolved:
        print(f"{name}: not attempted yet")
        return False
    right = [not call.fault and _is_right(exercise, i, call) for i, call in enumerate(calls)]
    if all(right):
        print(f"{name}: passed ({len(right)} of {len(right)} public checks)")
    else:
        complaint = _complaint(exercise, calls, right.index(False))
        print(f"{name}: {sum(right)} of {len(exercise.cases)} public checks passed; {complaint}")
    _show_printed(calls[0 if all(right) else right.index(False)].printed)
    return all(right)


def _tried(attempt: Callable, cases: Sequence[tuple], names: list[str]) -> list[Attempt]:
    calls: list[Attempt] = []
    for case in cases:
        calls.append(attempts.call(attempt, case, names))
        if calls[-1].unsolved or calls[-1].endless:
            break
    return calls


def _show_printed(printed: str) -> None:
    lines = printed.splitlines()
    for line in lines[:_SHOWN_LINES]:
        print(f"    it printed: {line[:100]}")
    if len(lines) > _SHOWN_LINES:
        print(f"    and {len(lines) - _SHOWN_LINES} lines more")


def _is_right(exercise: Exercise, i: int, call: Attempt) -> bool:
    return _close(attempts.row(call.answer), _expected(exercise, i), exercise.rtol)


def _expected(exercise: Exercise, i: int) -> np.ndarray:
    return attempts.row(exercise.spec(*copy.deepcopy(exercise.cases[i])))


def _complaint(exercise: Exercise, calls: list[Attempt], first: int) -> str:
    """Return what is wrong with the call ``first``, the first that is not right."""
    call, expected = calls[first], _expected(exercise, first)
    if call.fault:
        return call.fault
    came = attempts.row(call.answer)
    if came.shape != expected.shape:
        return f"it returned {came.size} numbers; expected {expected.size}"
    if not np.isfinite(came).all():
        return "it returned numbers that are not finite"
    return (
        _hint(exercise, calls, first)
        or _form(call.answer, exercise.spec(*copy.deepcopy(exercise.cases[first])), exercise.rtol)
        or _size_of_error(came, expected)
    )


def _hint(exercise: Exercise, calls: list[Attempt], first: int) -> str:
    """Return the hint whose wrong function agrees with most answers, and with the first wrong one.

    Two mistakes may look alike in one case, and only one of them in all.
    """
    best, most = "", 0
    for wrong, hint in exercise.hints:
        agrees = [_agrees(exercise, i, call, wrong) for i, call in enumerate(calls)]
        if agrees[first] and sum(agrees) > most:
            best, most = hint, sum(agrees)
    return best


def _agrees(exercise: Exercise, i: int, call: Attempt, wrong: Callable) -> bool:
    if call.fault:
        return False
    with np.errstate(all="ignore"):  # a mistake may divide by zero in some cases
        return _close(
            attempts.row(call.answer),
            attempts.row(wrong(*copy.deepcopy(exercise.cases[i]))),
            exercise.rtol,
        )


def _form(answer: Any, expected: Any, rtol: float) -> str:
    """Return what is wrong with the form of the right numbers, in any exercise; else empty."""
    came, right = attempts.row(answer), attempts.row(expected)
    if not came.any():
        return "it returned zeros only"
    row = isinstance(answer, list | tuple) or (isinstance(answer, np.ndarray) and answer.ndim > 0)
    parts = row and isinstance(expected, list | tuple)
    if parts and _close(attempts.row(answer[::-1]), right, rtol):
        return "the parts are right, and their order is not"
    turned = np.asarray(answer).T if isinstance(answer, np.ndarray) and answer.ndim == 2 else None
    if turned is not None and _close(turned.ravel(), right, rtol):
        return "rows and columns have changed places"
    dtype = answer.dtype if isinstance(answer, np.ndarray | np.generic) else np.dtype(float)
    if dtype in (np.float16, np.float32) and _close(came, right, 20 * np.finfo(dtype).eps):
        return f"right, but only to the digits of {dtype}: where does it lose the others?"
    whole = (came == np.round(came)).all() and not (right == np.round(right)).all()
    if whole and np.abs(came - right).max() < 1:
        return "whole numbers only: was something rounded, or divided with `//`?"
    return ""


def _size_of_error(came: np.ndarray, expected: np.ndarray) -> str:
    ratio = np.dot(came, expected) / max(np.dot(expected, expected), 1e-300)
    if _close(came, ratio * expected, 1e-6) and ratio != 0:
        other_way = "; which sign is it to have?" if ratio < 0 else ""
        return f"it is {ratio:.3g} times what is expected{other_way}"
    off = np.abs(came - expected).max() / max(np.abs(expected).max(), 1e-300)
    return f"it is off by {off:.2g} of the largest expected number"


def _close(came: np.ndarray, expected: np.ndarray, rtol: float) -> bool:
    if came.shape != expected.shape:
        return False
    off = np.abs(came - expected).max(initial=0.0)
    return bool(off <= rtol * np.abs(expected).max(initial=0.0))
