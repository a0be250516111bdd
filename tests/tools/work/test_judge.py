"""The judge's verdict on one answer, without a separate process."""

import contextlib
import os
import signal

import pytest

from labkit.tools.work import judge

HEAD = "import sys\nfrom labkit.labs.exercises.accumulation import check\n"
RIGHT = "def normalise(pixels):\n    return (pixels / 255 - 0.1307) / 0.3081\n"
WRONG = "def normalise(pixels):\n    return (pixels / 0.3081 - 0.1307 / 0.3081) / 255\n"
OPEN = "def normalise(pixels):\n    raise NotImplementedError\n"


def judged(code, attempt="normalise", module="labkit.labs.exercises.accumulation"):
    answer = {"name": "normalise", "module": module, "code": HEAD + code, "attempt": attempt}
    out = judge._Tail()
    with contextlib.redirect_stdout(out):
        result = judge._attempt(answer)
        return result if isinstance(result, tuple) else judge._checked(answer, result, out)


@pytest.mark.parametrize(
    ("code", "state", "part"),
    [
        (RIGHT, "passed", " public checks"),
        ("print('normalise: passed (9 of 9 public checks)')\n" + WRONG, "wrong", "which step"),
        (OPEN, "not attempted", ""),
        ("def normalise(:\n", "error", "it raised SyntaxError: invalid syntax"),
        ("1 / 0\n" + RIGHT, "error", "it raised ZeroDivisionError: division by zero"),
        ("sys.exit(3)\n" + RIGHT, "error", "it raised SystemExit: 3"),
        ("", "error", "it raised NameError: name 'normalise' is not defined"),
    ],
)
def test_a_verdict_in_words(code, state, part):
    said = judged(code)
    assert said[0] == state and part in said[1], said
    assert bool(said[1]) == (state != "not attempted")


def test_a_check_that_raises_is_an_error():
    state, message = judged(RIGHT, module="labkit.labs.exercises.nowhere")
    assert state == "error" and message.startswith("it raised ModuleNotFoundError: No module named")


@pytest.mark.parametrize(
    "line", [b"{", b"3", b'["passed"]', b'["passed", 1]', b'["right", ""]', b"[" * 100_000]
)
def test_what_is_no_verdict(line):
    state, message = judge._verdict(line)
    assert (state, message) == ("error", "its process wrote something other than a verdict")


def test_of_endless_output_the_end_is_kept():
    tail = judge._Tail()
    for number in range(30_000):
        print(number, file=tail)
    kept = tail.getvalue()
    assert kept.endswith("29998\n29999\n") and len(kept) <= 2 * judge._KEPT


def test_a_signal_without_a_name_ends_an_answer_and_not_the_judge():
    if not (process := os.fork()):
        os.kill(os.getpid(), signal.SIGRTMIN + 3)
    said = f"its process was ended by signal {signal.SIGRTMIN + 3}"
    assert judge._ended(process) == ("error", said)
