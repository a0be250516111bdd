"""Check a learner's function against a slow specification; report what is wrong, not the answer.

The function is called on public cases, with copies of their arguments. An unsolved exercise
(``raise NotImplementedError``) is reported and does not stop a notebook.
"""

import contextlib
import copy
import inspect
import io
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from labkit.base.machine import time_limit
from labkit.errors import refuse_unknown
from labkit.labs.language import said

# A case takes milliseconds; one on a ResNet half a second, and more than 5 s on a busy machine.
SECONDS = 20.0
_SHOWN_LINES = 5  # the most lines of a learner's output that are shown


@dataclass(eq=False)
class Exercise:
    """An exercise, named after its slow specification.

    Attributes:
        spec: the specification; its keyword-only arguments are for mistakes.
        cases: argument tuples of ``spec`` and of the learner's function.
        mistakes: wrong formula -> what to say of an attempt that agrees with it. A formula is
            written in the arguments of ``spec``, the names of its module, and ``right``, the answer
            of ``spec``.
        rtol: tolerance, relative to the largest entry of the specification's answer.
    """

    spec: Callable
    cases: Sequence[tuple]
    mistakes: Mapping[str, str]
    rtol: float = 1e-6

    def __post_init__(self) -> None:
        self.name = self.spec.__name__
        parameters = inspect.signature(self.spec).parameters
        self.arguments = [n for n, each in parameters.items() if each.kind != each.KEYWORD_ONLY]

    @cached_property
    def right(self) -> list[Any]:
        """The specification's answers, one for each case."""
        return [self.spec(*case) for case in copy.deepcopy(self.cases)]

    @cached_property
    def wrong(self) -> dict[str, list[Any]]:
        """What is said of each mistake -> its answers; those that train LeNet take a second."""
        made = {}
        for formula, meaning in self.mistakes.items():
            arguments = ", ".join(["right", *self.arguments])
            mistaken = eval(f"lambda {arguments}: {formula}", self.spec.__globals__)
            both = zip(*copy.deepcopy((self.right, self.cases)), strict=True)
            with np.errstate(all="ignore"):  # a mistake may divide by zero in some cases
                made[meaning] = [mistaken(right, *case) for right, case in both]
        return made


def of_lab(exercises: Sequence[Exercise]) -> tuple[Callable, Callable]:
    """Return ``check`` and ``hint`` for a lab's notebook.

    ``check(name, attempt)`` tries a learner's function on all cases of an exercise, prints what was
    wrong, if anything, and returns whether all passed. Exceptions and other faults are reported; a
    call is stopped after ``SECONDS``. ``hint(name)`` prints where to look when it is called first,
    and when it is called again also what to do; the texts are in hints.yaml. Both raise
    ``InputError`` for an unknown exercise.
    """
    by_name = {exercise.name: exercise for exercise in exercises}
    texts = yaml.safe_load(Path(__file__).with_name("hints.yaml").read_text(encoding="utf-8"))
    asked: set[str] = set()

    def check(name: str, attempt: Callable) -> bool:
        refuse_unknown("exercise", name, by_name)
        exercise, calls = by_name[name], []
        try:
            for case in exercise.cases:
                calls.append(_call(attempt, case, exercise.arguments))
                if calls[-1].endless:  # the others would not end either
                    break
        except NotImplementedError:
            print(f"{name}:", said("not attempted yet"))
            return False
        right = _agreeing(calls, exercise.right, exercise.rtol)
        passed, first = all(right), int(np.argmin(right))  # the first that does not agree, or 0
        line = said("passed ({all} of {all} public checks)", all=len(right))
        if not passed:
            counts = {"passed": sum(right), "all": len(exercise.cases)}
            line = said("{passed} of {all} public checks passed; ", **counts)
            line += calls[first].fault or _complaint(exercise, calls, first)
        print(f"{name}: {line}")
        printed = calls[first].printed.splitlines()
        for shown in printed[:_SHOWN_LINES]:
            print("   ", said("it printed: {line}", line=shown[:100]))
        if len(printed) > _SHOWN_LINES:
            print("   ", said("and {count} lines more", count=len(printed) - _SHOWN_LINES))
        return passed

    def hint(name: str) -> None:
        refuse_unknown("exercise", name, by_name)
        for number, text in enumerate(texts[name][: 2 if name in asked else 1], start=1):
            print(name + said(", hint {number} of 2: ", number=number) + said(text))
        asked.add(name)

    return check, hint


def draw(seed: int, *shape: int) -> np.ndarray:
    """Return standard normal numbers for the cases of an exercise."""
    return np.random.default_rng(seed).normal(size=shape)


class _Call(NamedTuple):
    """One call of a learner's function: its answer, any fault but wrong numbers, its output."""

    answer: Any
    fault: str
    printed: str
    endless: bool


class _Endless(BaseException):
    """Time is up. Not an ``Exception``: a learner's ``except Exception`` must not catch it."""


def _call(function: Callable, case: tuple, names: list[str]) -> _Call:
    """Call ``function`` with copies of the arguments ``case``, whose names are ``names``."""
    arguments, output = copy.deepcopy(case), io.StringIO()
    answer, fault, endless = None, "", False
    try:
        with contextlib.redirect_stdout(output), time_limit(SECONDS, _Endless):
            answer = function(*arguments)
    except NotImplementedError:
        raise
    except _Endless:
        endless = True
        fault = said("it had not ended after {seconds:g} s: does every loop stop?", seconds=SECONDS)
    except (Exception, SystemExit) as error:  # the learner's code may raise anything
        fault = _raised(function, error)
    else:
        kept = list(map(_same, arguments, case))
        if not all(kept):
            fault = said(
                "it changes its argument `{name}`, and so the caller's data: work on a copy, or "
                "make a new array",
                name=names[kept.index(False)],
            )
        elif answer is None and output.getvalue():
            fault = said(
                "it printed something and returned None: is there a `print` for a `return`?"
            )
        elif answer is None:
            fault = said("it returned None: is the `return` missing?")
        else:
            fault = _not_numbers(answer)
    return _Call(answer, fault, output.getvalue(), endless)


def _raised(function: Callable, error: BaseException) -> str:
    """Describe the exception and the line of the learner's code that it came from."""
    if isinstance(error, RecursionError):
        return said("it calls itself without end: where does it stop?")
    own = getattr(getattr(function, "__code__", None), "co_filename", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.line for frame in frames if frame.filename == own and frame.line]
    raised = said("it raised {error}", error=f"{type(error).__name__}: {error}")
    return raised + (said(", at `{line}`", line=lines[-1]) if lines else "")


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(_same, value, other))
    if isinstance(value, np.ndarray):
        return np.array_equal(value, other, equal_nan=True)
    # Training LeNet or loading a ResNet is no change of an argument: each copy has its own network.
    return not isinstance(value, int | float | str) or value == other


def _not_numbers(answer: Any) -> str:
    for part in _parts(answer):
        try:
            dtype = np.asarray(part).dtype
        except ValueError:
            return said("it returned lists of different lengths in one; expected arrays")
        if dtype.kind not in "biuf":
            kinds = {"type": type(part).__name__, "dtype": dtype.name}
            return said("it returned a {type} of {dtype}; expected numbers", **kinds)
    return ""


def _parts(answer: Any) -> Sequence[Any]:
    return answer if isinstance(answer, list | tuple) else [answer]


def _row(answer: Any) -> np.ndarray:
    """Return the numbers of an answer in one row, float64."""
    parts = [np.asarray(part, np.float64).ravel() for part in _parts(answer)]
    return np.concatenate([np.empty(0), *parts])


def _close(numbers: np.ndarray, expected: np.ndarray, rtol: float) -> bool:
    if numbers.shape != expected.shape:
        return False
    off = np.abs(numbers - expected).max(initial=0.0)
    return bool(off <= rtol * np.abs(expected).max(initial=0.0))


def _agreeing(calls: list[_Call], answers: list[Any], rtol: float) -> list[bool]:
    """Return, for each call, whether its answer is the one in ``answers``."""
    pairs = zip(calls, answers, strict=False)  # no calls follow an endless one
    return [not call.fault and _close(_row(call.answer), _row(own), rtol) for call, own in pairs]


def _complaint(exercise: Exercise, calls: list[_Call], first: int) -> str:
    """Return what is wrong with the numbers of ``calls[first]``, the first that does not agree."""
    answer = calls[first].answer
    numbers, right = _row(answer), _row(exercise.right[first])
    if numbers.shape != right.shape:
        sizes = {"got": numbers.size, "expected": right.size}
        return said("it returned {got} numbers; expected {expected}", **sizes)
    if not np.isfinite(numbers).all():
        return said("it returned numbers that are not finite")
    best, most = "", 0
    # Two mistakes may give the same answer in one case, and only one of them in all cases.
    for meaning, answers in exercise.wrong.items():
        agrees = _agreeing(calls, answers, exercise.rtol)
        if agrees[first] and sum(agrees) > most:
            best, most = meaning, sum(agrees)
    return said(best) if best else _difference(answer, exercise.right[first], exercise.rtol)


def _difference(answer: Any, right_answer: Any, rtol: float) -> str:
    """Return in which way an answer that agrees with no known mistake differs."""
    numbers, right = _row(answer), _row(right_answer)
    array = np.asarray(answer if isinstance(answer, np.ndarray | np.generic) else 0.0)
    if not numbers.any():
        return said("it returned zeros only")
    if isinstance(right_answer, list | tuple) and (array.ndim or isinstance(answer, list | tuple)):
        if _close(_row(answer[::-1]), right, rtol):
            return said("the parts are right, and their order is not")
    if array.ndim == 2 and _close(array.T.ravel(), right, rtol):
        return said("rows and columns have changed places")
    if array.dtype in (np.float16, np.float32):
        if _close(numbers, right, 20 * float(np.finfo(array.dtype).eps)):
            return said(
                "right, but only to the digits of {dtype}: where does it lose the others?",
                dtype=array.dtype,
            )
    whole = (numbers == np.round(numbers)).all() and not (right == np.round(right)).all()
    if whole and np.abs(numbers - right).max() < 1:
        return said("whole numbers only: was something rounded, or divided with `//`?")
    if not right.any():
        return said("it is not zero where it should be")
    ratio = numbers @ right / (right @ right)
    if _close(numbers, ratio * right, 1e-6) and f"{ratio:.3g}" != "1":
        other_way = said("; which sign should it have?") if ratio < 0 else ""
        return said("it is {ratio:.3g} times what is expected", ratio=ratio) + other_way
    off = np.abs(numbers - right).max() / np.abs(right).max()
    return said("it is off by {off:.2g} of the largest expected number", off=off)
