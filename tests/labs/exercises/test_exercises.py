"""The exercises of every lab: right answers, wrong answers of learners, and the hints for them."""

import ast
import inspect
import re
import textwrap

import numpy as np
import pytest

from labkit import reference
from labkit.errors import InputError
from labkit.labs.exercises.advice import Advice
from labkit.labs.exercises.check import LEVELS
from tests.support.answers import LABS
from tests.support.solutions import FOLDER, code, solved

pytestmark = pytest.mark.usefixtures("runtime")  # two exercises compute in MindSpore
EXERCISES = [(lab, each) for lab, (exercises, _) in LABS.items() for each in exercises.EXERCISES]
each_exercise = pytest.mark.parametrize(
    ("lab", "exercise"), EXERCISES, ids=[exercise.name for _, exercise in EXERCISES]
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
    """Wrong are labkit's known mistakes, four or more, and answers written independently."""
    exercises, answers = LABS[lab]
    hints = exercises.HINTS[exercise.name]
    assert len({hint for _, hint in hints}) == len(hints) >= 4
    right = exercise.known(exercise.spec)
    secrets = expressions_of(exercise.spec)
    fractions = {f"{x:.4g}" for answer in right for x in flat(answer) if x != round(x)}
    with np.errstate(all="ignore"):  # a mistake may divide by zero in some cases
        wrong = [(again(exercise.known(mistake)), f"; {hint}\n") for mistake, hint in hints]
    wrong += [(attempt, part) for name, attempt, part in answers.WRONG if name == exercise.name]
    for attempt, hint in wrong:
        with np.errstate(all="ignore"):
            assert not exercises.check(exercise.name, attempt)
        printed = capsys.readouterr().out
        assert hint in printed
        message = printed.split("; ", 1)[-1]
        assert not [code for code in secrets if code in re.sub(r"\s", "", message)], message
        assert not FORMULA.search(message), message
        assert not fractions & set(re.findall(r"-?\d[\d.e-]*\d", message)), message


def again(answers):
    """Return an attempt that repeats these answers: MindSpore takes a second to compute them."""
    left = iter(answers)
    return lambda *case: next(left)


def flat(answer):
    parts = answer if isinstance(answer, list | tuple) else [answer]
    return np.concatenate([np.ravel(part) for part in parts])


# A name or number, an operator and a name or number: "1 - gamma", "n / k", "a @ b", "y = s".
FORMULA = re.compile(
    r"[\w)\]]\s*(?:\*\*?|//?|[-+]|@|=|<|>)\s+[\w(]|[\w)\]](?:\*\*?|//?|\+|@|=)[\w(]"
)


def expressions_of(spec):
    """Return the source of calculations, calls, comparisons and indices in ``spec`` and callees."""
    sources, functions = set(), [spec]
    for function in functions:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        for node in ast.walk(ast.Module(definition.body, [])):
            if isinstance(node, ast.BinOp | ast.Compare | ast.Call | ast.Subscript | ast.IfExp):
                sources.add(re.sub(r"\s", "", ast.unparse(node)))
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                called = inspect.getmodule(function).__dict__.get(name)
                if name.startswith("reference."):
                    called = getattr(reference, node.func.attr)
                if inspect.isfunction(called) and called not in functions:
                    functions.append(called)
    assert sources, spec
    return sources


def test_the_search_for_an_answer_given_away_finds_one():
    specs = {exercise.name: exercise.spec for _, exercise in EXERCISES}
    assert any("0.1307)/0.3081" in code for code in expressions_of(specs["normalise"]))
    assert "np.linalg.norm(gradient)" in expressions_of(specs["clipped_update"])
    for leak in ("it is n // k", "divide: a/b", "take (x - mean) first", "then y = s", "1 - gamma"):
        assert FORMULA.search(leak), leak
    for fine in ("3.5e-05 of the largest", "why `-`, not `/`?", "one-sided", "that is -1 times"):
        assert not FORMULA.search(fine), fine


def test_an_unknown_exercise_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="Did you mean 'normalise'"):
        LABS["01_gradient_accumulation"][0].check("normalize", len)


@each_exercise
def test_two_hints_on_demand_and_no_answer_in_them(lab, exercise, capsys):
    exercises, _ = LABS[lab]
    first, second = exercises.hint.hints[exercise.name]
    assert first != second and not FORMULA.search(first + second)
    secrets = expressions_of(exercise.spec)
    given = re.sub(r"\s", "", first + second)
    assert not [code for code in secrets if code in given and "micro_batches" not in code]
    ask = Advice(exercises.hint.hints)
    ask(exercise.name)
    assert capsys.readouterr().out == f"{exercise.name}, hint 1 of 2: {first}\n"
    for _ in range(2):
        ask(exercise.name)
        lines = capsys.readouterr().out.splitlines()
        assert lines[1:] == [f"{exercise.name}, hint 2 of 2: {second}"]


def test_a_hint_for_no_exercise_is_refused():
    with pytest.raises(InputError, match="Did you mean 'mean'"):
        Advice({"mean": ("a", "b")})("means")


@pytest.mark.parametrize("lab", LABS)
def test_the_notebook_asks_each_exercise_with_its_mark_and_leaves_it_unsolved(lab, root):
    exercises = LABS[lab][0]
    levels = {exercise.name: exercise.level for exercise in exercises.EXERCISES}
    few = lab == "00_start_here"
    assert len(levels) >= (2 if few else 4) and set(exercises.hint.hints) == set(levels)
    assert set(levels.values()) == set(LEVELS[:2] if few else LEVELS)
    cells = code(root / "notebooks" / f"{lab}.ipynb")
    for name, level in levels.items():
        (cell,) = (cell for cell in cells if f'check("{name}"' in cell)
        assert re.search(rf"^# Exercise \d+ · {level}\. .*hint\(\"{name}\"\)", cell, re.M), name
        assert "Example: " in cell and "raise NotImplementedError" in cell, name
