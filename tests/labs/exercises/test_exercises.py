"""The exercises of every lab: right answers, wrong answers of learners, and their hints."""

import re

import numpy as np
import pytest

from labkit.errors import InputError
from tests.support.answers import FOLDER, LABS, code, solved

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
    assert len(exercise.wrong) == len(exercise.mistakes) >= 3, "two mistakes share a message"
    # MindSpore takes a second for an answer, so those of the mistakes are not computed again.
    wrong = [(again(own), f"; {meaning}\n") for meaning, own in exercise.wrong.items()]
    wrong += [(attempt, part) for name, attempt, part in answers.WRONG if name == exercise.name]
    for attempt, meaning in wrong:
        assert not exercises.check(exercise.name, attempt)
        printed = capsys.readouterr().out
        assert meaning in printed and not FORMULA.search(printed.split("; ", 1)[-1]), printed


def test_clipping_by_pytorch_s_formula_is_right():
    def clipped(gradients, sizes, norm):
        mean = np.average(gradients, axis=0, weights=sizes)
        return mean * min(1, norm / (np.linalg.norm(mean) + 1e-6))

    assert LABS["01_gradient_accumulation"][0].check("clipped_update", clipped)


def again(answers):
    """Return an attempt that repeats these answers."""
    left = iter(answers)
    return lambda *case: next(left)


@pytest.mark.parametrize("lab", LABS)
def test_each_exercise_stands_unsolved_in_the_notebook_with_two_hints_on_demand(lab, root, capsys):
    cells = code(root / "notebooks" / f"{lab}.ipynb")
    for name in (exercise.name for exercise in LABS[lab][0].EXERCISES):
        for shown in (1, 2, 2):
            LABS[lab][0].hint(name)
            lines = capsys.readouterr().out.splitlines()
            assert [line.startswith(f"{name}, hint ") for line in lines] == [True] * shown
        (cell,) = (cell for cell in cells if f'check("{name}"' in cell)
        assert f'hint("{name}")' in cell and "raise NotImplementedError" in cell, name


@pytest.mark.parametrize(
    ("ask", "given"), [("check", ("token_lost", len)), ("hint", ("token_lost",))]
)
def test_an_unknown_exercise_is_refused_with_the_nearest_name(ask, given):
    with pytest.raises(InputError, match="Did you mean 'token_loss'"):
        getattr(LABS["01_gradient_accumulation"][0], ask)(*given)
