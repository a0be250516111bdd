"""Call a learner's function once, even if it raises, prints, loops or changes its arguments."""

import contextlib
import copy
import inspect
import io
import linecache
import numbers
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

# A case takes milliseconds; one on a ResNet half a second, and more than 5 s on a busy machine.
SECONDS = 20.0


@dataclass(frozen=True)
class Attempt:
    """The outcome of one call: its answer and output, and any fault other than wrong numbers.

    Attributes:
        answer: the returned value; None if nothing was returned
        fault: a sentence that describes the fault; empty if the answer can be compared
        printed: what the function wrote to standard output
        unsolved: whether it raised ``NotImplementedError``, as the stub in the notebook does
        endless: whether it was stopped when its time was up
    """

    answer: Any = None
    fault: str = ""
    printed: str = ""
    unsolved: bool = False
    endless: bool = False


class _Endless(BaseException):
    """Time is up. Not an ``Exception``: a learner's ``except Exception`` must not catch it."""


def call(function: Callable, case: tuple, names: list[str], seconds: float = SECONDS) -> Attempt:
    """Call ``function`` with copies of the arguments ``case``, whose names are ``names``."""
    arguments = copy.deepcopy(case)
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), _limit(seconds):
            answer = function(*arguments)
    except NotImplementedError:
        return Attempt(unsolved=True)
    except _Endless:
        fault = f"it had not ended after {seconds:g} s: does every loop stop?"
        return Attempt(fault=fault, printed=output.getvalue(), endless=True)
    except (Exception, SystemExit) as error:  # the learner's code may raise anything
        return Attempt(fault=_raised(function, error), printed=output.getvalue())
    printed = output.getvalue()
    for name, argument, before in zip(names, arguments, case, strict=False):
        if not _same(argument, before):
            fault = (
                f"it changes its argument `{name}`, and so the caller's data: "
                "work on a copy, or make a new array"
            )
            return Attempt(answer, fault, printed)
    return Attempt(answer, _fault(answer, printed), printed)


def refusal(function: Any, names: list[str]) -> str:
    """Return why ``function`` cannot be called with arguments ``names``; empty if it can."""
    if not callable(function):
        return f"this is a {_kind(function)}, not a function: pass its name without calling it"
    with contextlib.suppress(ValueError):  # a built-in without a signature: the call decides
        try:
            inspect.signature(function).bind(*names)
        except TypeError:
            return f"it does not take the exercise's {len(names)} arguments: {', '.join(names)}"
    return ""


def row(answer: Any) -> np.ndarray:
    """Return the numbers of an answer in one row, float64.

    Raises:
        TypeError: if it contains anything other than numbers.
    """
    parts = answer if isinstance(answer, list | tuple) else [answer]
    return np.concatenate([np.empty(0), *(_part(part, answer).ravel() for part in parts)])


def _part(part: Any, answer: Any) -> np.ndarray:
    if not isinstance(part, numbers.Number | np.ndarray | np.generic | list | tuple):
        inside = "" if part is answer else f" with a {_kind(part)} in it"
        expected = "numbers"
        if hasattr(part, "asnumpy") or hasattr(part, "numpy"):
            expected = "NumPy arrays or numbers: convert it before it is returned"
        raise TypeError(f"it returned a {_kind(answer)}{inside}; expected {expected}")
    try:
        array = np.asarray(part)
    except ValueError:
        raise TypeError("it returned lists of different lengths in one; expected arrays") from None
    if array.dtype.kind not in "biuf":
        kind = {"c": "complex numbers", "O": "objects"}.get(array.dtype.kind, "text")
        raise TypeError(f"it returned {kind}; expected numbers")
    return array.astype(np.float64)


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


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise ``_Endless`` after ``seconds``; outside the main thread there is no limit.

    It is raised again every second: a bare ``except`` in the learner's loop catches the first.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _Endless

    before = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)


def _raised(function: Callable, error: BaseException) -> str:
    """Describe the exception and the line of the learner's code that it came from."""
    if isinstance(error, RecursionError):
        return "it calls itself without end: where does it stop?"
    fault = f"it raised {type(error).__name__}: {error}"
    code = getattr(function, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if code and frame.filename == code.co_filename]
    if not own or own[-1].lineno is None:
        return fault
    line = linecache.getline(own[-1].filename, own[-1].lineno).strip()
    return f"{fault}, at `{line}`" if line else fault


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(value, other, equal_nan=True)
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_same, value, other))
    return value is other or bool(value == other)


def _kind(value: Any) -> str:
    """Return the type's name, after its package's unless it is built in or from the notebook."""
    package = type(value).__module__.split(".")[0]
    name = type(value).__name__
    return name if package in ("builtins", "__main__") else f"{package} {name}"
