"""The exercises of every lab: right answers, wrong answers of learners, and the hints for them."""

import re

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.labs.exercises.check import Advice
from tests.support.answers import LABS
from tests.support.solutions import FOLDER, code, solved

pytestmark = pytest.mark.usefixtures("runtime")  # some exercises compute in MindSpore
EXERCISES = [(lab, each) for lab, (exercises, _) in LABS.items() for each in exercises.EXERCISES]
each_exercise = pytest.mark.parametrize(
    ("lab", "exercise"), EXERCISES, ids=[exercise.name for _, exercise in EXERCISES]
)
# A name or number, an operator and a name or number: "1 - gamma", "n / k", "a @ b", "y = s".
FORMULA = re.compile(
    r"[\w)\]]\s*(?:\*\*?|//?|[-+]|@|=|<|>)\s+[\w(]|[\w)\]](?:\*\*?|//?|\+|@|=)[\w(]"
)


@each_exercise
def test_a_right_solution_passes(lab, exercise, capsys):
    """The solution is that of the solution notebook, which makes the same call."""
    calls = "\n".join(code(FOLDER / f"{lab}.ipynb"))
    assert f'\n\n\npassed = check("{exercise.name}", {exercise.name})\n' in calls + "\n"
    assert LABS[lab][0].check(exercise.name, getattr(solved(lab), exercise.name))
    printed = capsys.readouterr().out
    assert re.fullmatch(rf"{exercise.name}: passed \((\d+) of \1 public checks\)\n", printed)


@each_exercise
def test_a_wrong_solution_gets_its_hint_which_gives_nothing_away(lab, exercise, capsys):
    """Wrong are labkit's known mistakes, three or more, and answers written independently."""
    exercises, answers = LABS[lab]
    hints = exercises.HINTS[exercise.name]
    assert len({hint for _, hint in hints}) == len(hints) >= 3
    with np.errstate(all="ignore"):  # a mistake may divide by zero in some cases
        wrong = [(again(exercise.known(mistake)), f"; {hint}\n") for mistake, hint in hints]
        wrong += [(attempt, part) for name, attempt, part in answers.WRONG if name == exercise.name]
        for attempt, hint in wrong:
            assert not exercises.check(exercise.name, attempt)
            printed = capsys.readouterr().out
            assert hint in printed
            assert not FORMULA.search(printed.split("; ", 1)[-1]), printed


def again(answers):
    """Return an attempt that repeats these answers: MindSpore takes a second to compute them."""
    left = iter(answers)
    return lambda *case: next(left)


@pytest.mark.parametrize("lab", LABS)
def test_each_exercise_stands_unsolved_in_the_notebook_with_two_hints_on_demand(lab, root, capsys):
    exercises = LABS[lab][0].EXERCISES
    ask, cells = Advice(exercises), code(root / "notebooks" / f"{lab}.ipynb")
    for name, (first, second) in ask.hints.items():
        assert first != second and not FORMULA.search(first + second)
        for shown in ([first], [first, second], [first, second]):
            ask(name)
            lines = [f"{name}, hint {n} of 2: {text}" for n, text in enumerate(shown, 1)]
            assert capsys.readouterr().out.splitlines() == lines
        (cell,) = (cell for cell in cells if f'check("{name}"' in cell)
        assert f'hint("{name}")' in cell and "raise NotImplementedError" in cell, name


@pytest.mark.parametrize("ask", ["check", "hint"])
def test_an_unknown_exercise_is_refused_with_the_nearest_name(ask):
    called = getattr(LABS["01_gradient_accumulation"][0], ask)
    with pytest.raises(InputError, match="Did you mean 'normalise'"):
        called("normalize", len) if ask == "check" else called("normalize")
