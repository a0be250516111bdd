"""Whatever a learner's function does, the check says in one line what is wrong, and continues."""

import re
import signal
import time

import numpy as np
import pytest

from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Exercise


def squared(rows, scale):
    """The specification of the exercise in these tests: scale * rows^2, for rows (N, 2)."""
    return scale * rows**2


ROWS = np.array([[1.5, 2.5], [3.0, 0.7]])
MISTAKES = {
    "rows**2": "the scale is forgotten",
    "scale * rows": "the square is forgotten",
    "1 / (rows - 1)": "never said: it divides by zero",
    "right + 1 if len(rows) == 1 else -right - 1": "the nearer",
    "right + 1": "the other",
}
SQUARED = Exercise(squared, [(ROWS, 2.0), (ROWS[:1], 1.0), (np.ones((2, 2)), 3.0)], MISTAKES)


def said(attempt, capsys, exercise=SQUARED):
    passed = checks.of_lab([exercise])[0](exercise.name, attempt)
    name, printed = capsys.readouterr().out.split(": ", 1)
    assert name == exercise.name and passed == printed.startswith("passed")
    return printed


def _changes(rows, scale):
    rows *= rows
    return scale * rows


def _endless(rows, scale):
    try:
        while True:
            time.sleep(0.01)
    except:  # noqa: E722  (a learner's bare except takes the first alarm)
        while True:
            pass


def _recursive(rows, scale):
    return _recursive(rows, scale)


def _raising(rows, scale):
    return rows.sqare() * scale


def _total(parts):
    return sum(parts)


def _in_place(parts):
    for part in parts[1:]:
        parts[0] += part
    return parts[0]


def _halves(n):
    return n // 2, n - n // 2


TOTAL = Exercise(_total, [([np.ones(2), np.ones(2)],)] * 2, {})
HALVES = Exercise(_halves, [(3,), (8,)], {})
ATTEMPTS = [
    (SQUARED, lambda rows, scale: print(scale * rows**2), "0 of 3 .*a `print` for a `return`"),
    (SQUARED, _changes, "1 of 3 .*changes its argument `rows`.*work on a copy"),
    (SQUARED, _recursive, ".*calls itself without end"),
    (SQUARED, _raising, r".*AttributeError: .*'sqare', at `return rows\.sqare\(\) \* scale`"),
    (SQUARED, lambda rows, scale: None, ".*is the `return` missing"),
    (SQUARED, lambda rows, scale: rows * np.nan, ".*numbers that are not finite"),
    (SQUARED, lambda rows, scale: {1, 2}, ".*returned a set of object; expected numbers"),
    (SQUARED, lambda rows, scale: [[1, 2], [[3], 4]], ".*lists of different lengths"),
    (SQUARED, lambda rows, scale: rows[0], ".*returned 2 numbers; expected 4"),
    (SQUARED, lambda rows, scale: [], ".*returned 0 numbers; expected 4"),
    (SQUARED, lambda rows, scale: (scale * rows**2).T, ".*rows and columns have changed places"),
    (SQUARED, lambda rows, scale: scale * rows**2 // 1, ".*whole numbers only"),
    (SQUARED, lambda rows, scale: np.float16(scale * rows**2), ".*only to the digits of float16"),
    (SQUARED, lambda rows, scale: 0 * rows, ".*zeros only"),
    (SQUARED, lambda rows, scale: -scale * rows**2, ".*-1 times what is expected; which sign"),
    (SQUARED, lambda rows, scale: scale * rows**2 * 1.01, ".*it is 1.01 times what is expected"),
    (SQUARED, lambda rows, scale: scale * rows**2 * 1.004, ".*off by 0.004 of the largest"),
    (SQUARED, lambda rows, scale: scale * rows**2 * (1 - 2e-6), ".*off by 2e-06 of the largest"),
    (SQUARED, lambda rows, scale: scale * rows**2 + [[1, 0], [0, 0]], ".*off by 0.056 of the"),
    (SQUARED, lambda rows, scale: rows**2, "1 of 3 .*the scale is forgotten"),
    (SQUARED, lambda rows, scale: scale * rows, "1 of 3 .*the square is forgotten"),
    # Two mistakes agree with the first wrong answer, one of them with the others too.
    (SQUARED, lambda rows, scale: scale * rows**2 + 1, "0 of 3 .*the other"),
    (SQUARED, lambda rows: rows, ".*TypeError: .* 1 positional argument but 2 were given"),
    (SQUARED, ROWS, ".*it raised TypeError: 'numpy.ndarray' object is not callable"),
    (Exercise(squared, [(ROWS, 0.0)], {}), lambda rows, scale: rows**3,
     "0 of 1 .*; it is not zero where it should"),
    (TOTAL, _in_place, "0 of 2 public checks passed; it changes its argument `parts`"),
    *[(HALVES, lambda n, kind=kind: kind([n - n // 2, n // 2]),
       "1 of 2 public checks passed; the parts are right, and their order")
      for kind in (tuple, list, np.array)],
]  # fmt: skip


@pytest.mark.parametrize(("exercise", "attempt", "message"), ATTEMPTS,
                         ids=[message for *_, message in ATTEMPTS])  # fmt: skip
def test_one_line_says_what_is_wrong(exercise, attempt, message, capsys):
    """Also of exercises with zeros, lists as arguments, or answers in parts of different sizes."""
    assert "passed" in said(exercise.spec, capsys, exercise)
    printed = said(attempt, capsys, exercise)
    assert re.match(message, printed), printed


def test_the_cases_are_the_same_for_the_next_one(capsys):
    before = [rows.copy() for rows, _ in SQUARED.cases]
    said(_changes, capsys)
    assert all((a == b).all() for a, (b, _) in zip(before, SQUARED.cases, strict=True))
    assert "passed (3 of 3" in said(squared, capsys)


def test_a_loop_without_end_is_stopped(capsys, monkeypatch):
    monkeypatch.setattr(checks, "SECONDS", 0.5)
    before = signal.getsignal(signal.SIGALRM)
    assert "0 of 3 public checks passed; it had not ended after 0.5 s" in said(_endless, capsys)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_what_it_prints_is_shown_and_an_unsolved_exercise_is_no_error(capsys):
    def talking(rows, scale):
        for i in range(8):
            print("row", i)
        return scale * rows**2

    def unsolved(rows, scale):
        raise NotImplementedError

    printed = said(talking, capsys).splitlines()
    assert printed[0] == "passed (3 of 3 public checks)"
    assert printed[1:] == [f"    it printed: row {i}" for i in range(5)] + ["    and 3 lines more"]
    assert said(unsolved, capsys) == "not attempted yet\n"
