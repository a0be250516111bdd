"""Check a learner's function against a slow specification; report what is wrong, not the answer.

The function is called on public cases, with copies of their arguments. An unsolved exercise
(``raise NotImplementedError``) is reported and does not stop a notebook.
"""

import contextlib
import copy
import inspect
import io
import linecache
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml

from labkit.errors import refuse_unknown

Hints = Sequence[tuple[Callable, str]]
# A case takes milliseconds; one on a ResNet half a second, and more than 5 s on a busy machine.
SECONDS = 20.0
_SHOWN_LINES = 5  # the most lines of a learner's output that are shown
_TINY = 1e-300  # for the squared norm of a specification's answer, if it underflows to zero


@dataclass(frozen=True)
class Exercise:
    """An exercise, named after its specification.

    Attributes:
        spec: the slow specification; it takes the same arguments as the learner's function
        cases: argument tuples
        rtol: tolerance, relative to the largest entry of the specification's answer
    """

    spec: Callable
    cases: Sequence[tuple]
    rtol: float = 1e-6
    _known: dict[Callable, list] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name that the notebook uses."""
        return self.spec.__name__

    def known(self, function: Callable) -> list[Any]:
        """Return the answers of the specification or of a known mistake, computed once.

        Those that train LeNet take a second each, and a wrong attempt is compared with seven.
        """
        if function not in self._known:
            self._known[function] = [function(*copy.deepcopy(case)) for case in self.cases]
        return self._known[function]


class Advice:
    """Prints an exercise's first hint when called with its name, and both when called again.

    Attributes:
        hints: exercise -> (where to look, what to do), from hints.yaml

    Args:
        exercises: the exercises of a lab
    """

    def __init__(self, exercises: Sequence[Exercise]):
        texts = yaml.safe_load(Path(__file__).with_name("hints.yaml").read_text(encoding="utf-8"))
        self.hints = {exercise.name: texts[exercise.name] for exercise in exercises}
        self._asked: set[str] = set()

    def __call__(self, name: str) -> None:
        """Print the hints of the exercise ``name``; raises ``InputError`` if it is unknown."""
        refuse_unknown("exercise", name, self.hints)
        shown = 2 if name in self._asked else 1
        self._asked.add(name)
        for number, text in enumerate(self.hints[name][:shown], start=1):
            print(f"{name}, hint {number} of 2: {text}")


def check(
    exercises: Sequence[Exercise],
    name: str,
    attempt: Callable,
    hints: Mapping[str, Hints] = MappingProxyType({}),
) -> bool:
    """Try ``attempt`` on all cases of an exercise and print what was wrong, if anything.

    Exceptions and other faults are reported; a call is stopped after ``SECONDS``. Each lab binds
    ``exercises`` and ``hints``, so that its notebook calls ``check(name, attempt)``.

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
    if refused := _refusal(attempt, names):
        print(f"{name}: {refused}")
        return False
    try:
        calls = _tried(attempt, exercise.cases, names)
    except NotImplementedError:
        print(f"{name}: not attempted yet")
        return False
    right = _agreeing(calls, exercise, exercise.spec)
    if all(right):
        print(f"{name}: passed ({len(right)} of {len(right)} public checks)")
        _show_printed(calls[0].printed)
        return True
    first = right.index(False)
    complaint = calls[first].fault or _complaint(exercise, hints.get(name, ()), calls, first)
    print(f"{name}: {sum(right)} of {len(exercise.cases)} public checks passed; {complaint}")
    _show_printed(calls[first].printed)
    return False


def draw(seed: int, *shape: int) -> np.ndarray:
    """Return standard normal numbers for the cases of an exercise."""
    return np.random.default_rng(seed).normal(size=shape)


@dataclass(frozen=True)
class _Call:
    """One call of a learner's function: its answer, its output, any fault but wrong numbers."""

    answer: Any = None
    fault: str = ""
    printed: str = ""
    ended: bool = True


class _Endless(BaseException):
    """Time is up. Not an ``Exception``: a learner's ``except Exception`` must not catch it."""


def _refusal(function: Any, names: list[str]) -> str:
    """Return why ``function`` cannot be called with arguments ``names``; empty if it can."""
    if not callable(function):
        kind = type(function).__name__
        return f"this is a {kind}, not a function: pass its name without calling it"
    try:
        inspect.signature(function).bind(*names)
    except TypeError:
        return f"it does not take the exercise's {len(names)} arguments: {', '.join(names)}"
    return ""


def _tried(attempt: Callable, cases: Sequence[tuple], names: list[str]) -> list[_Call]:
    calls: list[_Call] = []
    for case in cases:
        calls.append(_call(attempt, case, names))
        if not calls[-1].ended:
            break
    return calls


def _call(function: Callable, case: tuple, names: list[str]) -> _Call:
    """Call ``function`` with copies of the arguments ``case``, whose names are ``names``."""
    arguments, output = copy.deepcopy(case), io.StringIO()
    try:
        with contextlib.redirect_stdout(output), _limit():
            answer = function(*arguments)
    except NotImplementedError:
        raise
    except _Endless:
        fault = f"it had not ended after {SECONDS:g} s: does every loop stop?"
        return _Call(fault=fault, printed=output.getvalue(), ended=False)
    except (Exception, SystemExit) as error:  # the learner's code may raise anything
        return _Call(fault=_raised(function, error), printed=output.getvalue())
    printed = output.getvalue()
    for name, argument, before in zip(names, arguments, case, strict=False):
        if not _same(argument, before):
            fault = f"it changes its argument `{name}`, and so the caller's data: "
            return _Call(answer, fault + "work on a copy, or make a new array", printed)
    return _Call(answer, _fault(answer, printed), printed)


@contextlib.contextmanager
def _limit() -> Iterator[None]:
    """Raise ``_Endless`` after ``SECONDS``, and again every second.

    (A bare ``except`` in the learner's loop catches the first.)
    """

    def stop(*_: object) -> None:
        raise _Endless

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _raised(function: Callable, error: BaseException) -> str:
    """Describe the exception and the line of the learner's code that it came from."""
    if isinstance(error, RecursionError):
        return "it calls itself without end: where does it stop?"
    fault = f"it raised {type(error).__name__}: {error}"
    code = getattr(function, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if code and frame.filename == code.co_filename]
    line = linecache.getline(own[-1].filename, own[-1].lineno or 0).strip() if own else ""
    return f"{fault}, at `{line}`" if line else fault


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_same, value, other))
    if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(value, other, equal_nan=True)
    return value is other or bool(value == other)


def _fault(answer: Any, printed: str) -> str:
    if answer is None and printed:
        return "it printed something and returned None: is there a `print` for a `return`?"
    if answer is None:
        return "it returned None: is the `return` missing?"
    try:
        row(answer)
    except TypeError as error:
        return str(error)
    return ""


def row(answer: Any) -> np.ndarray:
    """Return the numbers of an answer in one row, float64.

    Raises:
        TypeError: if it contains anything other than numbers.
    """
    parts = answer if isinstance(answer, list | tuple) else [answer]
    return np.concatenate([np.empty(0), *(_part(part).ravel() for part in parts)])


def _part(part: Any) -> np.ndarray:
    kind = type(part).__name__
    if hasattr(part, "asnumpy") or hasattr(part, "numpy"):
        expected = "NumPy arrays or numbers: convert it before it is returned"
        raise TypeError(f"it returned a {kind}; expected {expected}")
    try:
        array = np.asarray(part)
    except ValueError:
        raise TypeError("it returned lists of different lengths in one; expected arrays") from None
    if array.dtype.kind not in "biuf":
        raise TypeError(f"it returned a {kind} of {array.dtype.name}; expected numbers")
    return array.astype(np.float64)


def _complaint(exercise: Exercise, hints: Hints, calls: list[_Call], first: int) -> str:
    """Return what is wrong with the numbers of ``calls[first]``, the first that does not agree."""
    answer = calls[first].answer
    right_answer = exercise.known(exercise.spec)[first]
    numbers, right = row(answer), row(right_answer)
    if numbers.shape != right.shape:
        return f"it returned {numbers.size} numbers; expected {right.size}"
    if not np.isfinite(numbers).all():
        return "it returned numbers that are not finite"
    hint = _hint(exercise, hints, calls, first)
    if hint or not numbers.any():
        return hint or "it returned zeros only"
    in_parts = isinstance(answer, list | tuple) or (isinstance(answer, np.ndarray) and answer.ndim)
    if in_parts and isinstance(right_answer, list | tuple):
        if _close(row(answer[::-1]), right, exercise.rtol):
            return "the parts are right, and their order is not"
    if isinstance(answer, np.ndarray) and answer.ndim == 2:
        if _close(answer.T.ravel(), right, exercise.rtol):
            return "rows and columns have changed places"
    return _rounded(answer, numbers, right) or _size_of_error(numbers, right)


def _hint(exercise: Exercise, hints: Hints, calls: list[_Call], first: int) -> str:
    """Return the hint for the mistake that agrees with most answers, the first wrong one included.

    Two mistakes may give the same answer in one case, and only one of them in all cases.
    """
    best, most = "", 0
    for mistake, hint in hints:
        with np.errstate(all="ignore"):  # a mistake may divide by zero in some cases
            agrees = _agreeing(calls, exercise, mistake)
        if agrees[first] and sum(agrees) > most:
            best, most = hint, sum(agrees)
    return best


def _agreeing(calls: list[_Call], exercise: Exercise, function: Callable) -> list[bool]:
    """Return, for each call, whether its answer is that of ``function``."""
    return [
        not call.fault and _close(row(call.answer), row(answer), exercise.rtol)
        # No calls follow an endless one.
        for call, answer in zip(calls, exercise.known(function), strict=False)
    ]


def _close(numbers: np.ndarray, expected: np.ndarray, rtol: float) -> bool:
    if numbers.shape != expected.shape:
        return False
    off = np.abs(numbers - expected).max(initial=0.0)
    return bool(off <= rtol * np.abs(expected).max(initial=0.0))


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


def _show_printed(printed: str) -> None:
    lines = printed.splitlines()
    for line in lines[:_SHOWN_LINES]:
        print(f"    it printed: {line[:100]}")
    if len(lines) > _SHOWN_LINES:
        print(f"    and {len(lines) - _SHOWN_LINES} lines more")
