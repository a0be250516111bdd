"""Check a learner's function against a slow specification; report what is wrong, not the answer.

The function is tried on public cases. An unsolved exercise (``raise NotImplementedError``) is
reported and does not stop a notebook.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from labkit.errors import refuse_unknown
from labkit.labs.exercises import attempts
from labkit.labs.exercises.attempts import Attempt

Hints = Sequence[tuple[Callable, str]]
LEVELS = ("easy", "medium", "hard")
_SHOWN_LINES = 5  # the most lines of a learner's output that are shown
_TINY = 1e-300  # for the squared norm of a specification's answer, if it underflows to zero


@dataclass(frozen=True)
class Exercise:
    """An exercise, named after its specification.

    Attributes:
        spec: the slow specification; it takes the same arguments as the learner's function
        cases: argument tuples
        rtol: tolerance, relative to the largest entry of the specification's answer
        level: one of ``LEVELS``
    """

    spec: Callable
    cases: Sequence[tuple]
    rtol: float = 1e-6
    level: str = ""
    _known: dict[Callable, list] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name that the notebook uses."""
        return self.spec.__name__

    def answers(self, function: Callable) -> list[Any]:
        """Return the answer of ``function`` to each case."""
        return [function(*copy.deepcopy(case)) for case in self.cases]

    def known(self, function: Callable) -> list[Any]:
        """Return ``answers`` of the specification or a known mistake, computed once.

        Those that train LeNet take a second each, and a wrong attempt is compared with seven.
        """
        if function not in self._known:
            self._known[function] = self.answers(function)
        return self._known[function]


def check(
    exercises: Sequence[Exercise],
    name: str,
    attempt: Callable,
    hints: Mapping[str, Hints] = MappingProxyType({}),
) -> bool:
    """Try ``attempt`` on all cases of an exercise and print what was wrong, if anything.

    Exceptions and other faults are reported; a call is stopped after ``attempts.SECONDS``.

    Args:
        exercises: the exercises of a lab
        name: name of the exercise
        attempt: the learner's function
        hints: exercise -> wrong functions, each with a hint for attempts that agree with it

    Returns:
        Whether all cases passed.

    Raises:
        InputError: if the exercise is unknown.
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
    expected = [attempts.row(answer) for answer in exercise.known(exercise.spec)]
    right = [
        _agrees(call, numbers, exercise.rtol)
        for call, numbers in zip(calls, expected, strict=False)  # no calls follow an endless one
    ]
    if all(right):
        print(f"{name}: passed ({len(right)} of {len(right)} public checks)")
        _show_printed(calls[0].printed)
        return True
    first = right.index(False)
    complaint = calls[first].fault or _complaint(exercise, hints.get(name, ()), calls, first)
    print(f"{name}: {sum(right)} of {len(exercise.cases)} public checks passed; {complaint}")
    _show_printed(calls[first].printed)
    return False


def checker(
    exercises: Sequence[Exercise], hints: Mapping[str, Hints]
) -> Callable[[str, Callable], bool]:
    """Return ``check`` for the exercises and hints of one lab, as its notebook calls it."""

    def check_exercise(name: str, attempt: Callable) -> bool:
        """Try ``attempt`` at an exercise of this lab and print what was wrong, if anything.

        Args:
            name: name of the exercise
            attempt: the learner's function

        Returns:
            Whether all cases passed.

        Raises:
            InputError: if the exercise is unknown.
        """
        return check(exercises, name, attempt, hints)

    return check_exercise


def draw(seed: int, *shape: int) -> np.ndarray:
    """Return standard normal numbers for the cases of an exercise."""
    return np.random.default_rng(seed).normal(size=shape)


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


def _complaint(exercise: Exercise, hints: Hints, calls: list[Attempt], first: int) -> str:
    """Return what is wrong with the numbers of ``calls[first]``, the first that does not agree."""
    answer = calls[first].answer
    right_answer = exercise.known(exercise.spec)[first]
    numbers, right = attempts.row(answer), attempts.row(right_answer)
    if numbers.shape != right.shape:
        return f"it returned {numbers.size} numbers; expected {right.size}"
    if not np.isfinite(numbers).all():
        return "it returned numbers that are not finite"
    hint = _hint(exercise, hints, calls, first)
    if hint or not numbers.any():
        return hint or "it returned zeros only"
    in_parts = isinstance(answer, list | tuple) or (isinstance(answer, np.ndarray) and answer.ndim)
    if in_parts and isinstance(right_answer, list | tuple):
        if _close(attempts.row(answer[::-1]), right, exercise.rtol):
            return "the parts are right, and their order is not"
    if isinstance(answer, np.ndarray) and answer.ndim == 2:
        if _close(answer.T.ravel(), right, exercise.rtol):
            return "rows and columns have changed places"
    return _rounded(answer, numbers, right) or _size_of_error(numbers, right)


def _hint(exercise: Exercise, hints: Hints, calls: list[Attempt], first: int) -> str:
    """Return the hint for the mistake that agrees with most answers, the first wrong one included.

    Two mistakes may give the same answer in one case, and only one of them in all cases.
    """
    best, most = "", 0
    for mistake, hint in hints:
        with np.errstate(all="ignore"):  # a mistake may divide by zero in some cases
            answers = exercise.known(mistake)
        pairs = zip(calls, answers, strict=False)
        agrees = [_agrees(call, attempts.row(answer), exercise.rtol) for call, answer in pairs]
        if agrees[first] and sum(agrees) > most:
            best, most = hint, sum(agrees)
    return best


def _rounded(answer: Any, numbers: np.ndarray, right: np.ndarray) -> str:
    """Return a complaint about lost digits; empty if rounding is not what is wrong."""
    dtype = answer.dtype if isinstance(answer, np.ndarray | np.generic) else np.dtype(float)
    for short in (np.float16, np.float32):
        if dtype == short and _close(numbers, right, 20 * float(np.finfo(short).eps)):
            return f"right, but only to the digits of {dtype}: where does it lose the others?"
    whole = (numbers == np.round(numbers)).all() and not (right == np.round(right)).all()
    if whole and np.abs(numbers - right).max() < 1:
        return "whole numbers only: was something rounded, or divided with `//`?"
    return ""


def _size_of_error(numbers: np.ndarray, right: np.ndarray) -> str:
    if not right.any():
        return "it is not zero where it should be"
    ratio = np.dot(numbers, right) / max(np.dot(right, right), _TINY)
    if _close(numbers, ratio * right, 1e-6) and ratio != 0:
        other_way = "; which sign should it have?" if ratio < 0 else ""
        return f"it is {ratio:.3g} times what is expected{other_way}"
    off = np.abs(numbers - right).max() / np.abs(right).max()
    return f"it is off by {off:.2g} of the largest expected number"


def _agrees(call: Attempt, expected: np.ndarray, rtol: float) -> bool:
    return not call.fault and _close(attempts.row(call.answer), expected, rtol)


def _close(numbers: np.ndarray, expected: np.ndarray, rtol: float) -> bool:
    if numbers.shape != expected.shape:
        return False
    off = np.abs(numbers - expected).max(initial=0.0)
    return bool(off <= rtol * np.abs(expected).max(initial=0.0))
