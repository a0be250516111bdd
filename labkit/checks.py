"""Check a learner's function against a slow specification; say what is wrong, not what is right.

A check is found by the exercise's name. It tries the function on public cases; an unsolved exercise
(``raise NotImplementedError``) is reported and does not stop a notebook.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from labkit.errors import refuse_unknown


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

    Raises ``InputError`` for an unknown exercise; whatever ``attempt`` raises is reported.
    """
    by_name = {exercise.name: exercise for exercise in exercises}
    refuse_unknown("exercise", name, by_name)
    exercise = by_name[name]
    passed, complaint = 0, ""
    for case in exercise.cases:
        try:
            answer = attempt(*_copy(case))
        except NotImplementedError:
            print(f"{name}: not attempted yet")
            return False
        except Exception as error:  # the learner's code may raise anything
            complaint = complaint or f"it raised {type(error).__name__}: {error}"
            continue
        fault = _fault(exercise, case, answer)
        passed += not fault
        complaint = complaint or fault
    if complaint:
        print(f"{name}: {passed} of {len(exercise.cases)} public checks passed; {complaint}")
        return False
    print(f"{name}: passed ({passed} of {passed} public checks)")
    return True


def _fault(exercise, case, answer):
    """Return what is wrong with ``answer``, or an empty string."""
    expected = _flat(exercise.spec(*_copy(case)))
    if answer is None:
        return "it returned None: is the `return` missing?"
    try:
        came = _flat(answer)
    except (TypeError, ValueError):
        return f"it returned a {type(answer).__name__}; expected numbers"
    if came.shape != expected.shape:
        return f"it returned {came.size} numbers; expected {expected.size}"
    if not np.isfinite(came).all():
        return "it returned numbers that are not finite"
    if _close(came, expected, exercise.rtol):
        return ""
    for wrong, hint in exercise.hints:
        if _close(came, _flat(wrong(*_copy(case))), exercise.rtol):
            return hint
    return _size_of_error(came, expected)


def _size_of_error(came, expected):
    ratio = np.dot(came, expected) / max(np.dot(expected, expected), 1e-300)
    if _close(came, ratio * expected, 1e-6) and ratio != 0:
        return f"it is {ratio:.3g} times what is expected"
    off = np.abs(came - expected).max() / max(np.abs(expected).max(), 1e-300)
    return f"it is off by {off:.2g} of the largest expected number"


def _close(came, expected, rtol):
    if came.shape != expected.shape:
        return False
    off = np.abs(came - expected).max(initial=0.0)
    return bool(off <= rtol * np.abs(expected).max(initial=0.0))


def _copy(case):
    return tuple(part.copy() if isinstance(part, np.ndarray) else part for part in case)


def _flat(answer):
    parts = answer if isinstance(answer, list | tuple) else [answer]
    return np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in parts])
