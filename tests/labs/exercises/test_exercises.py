"""The exercises of every lab: right answers, the wrong ones of learners, the hints these get."""

import ast
import inspect
import json
import re
import textwrap

import numpy as np
import pytest

from labkit import reference
from labkit.errors import InputError
from tests.support.answers import LABS

EXERCISES = [(lab, one) for lab, (exercises, _) in LABS.items() for one in exercises.EXERCISES]
WRONG = [(lab, *wrong) for lab, (_, answers) in LABS.items() for wrong in answers.WRONG]
each_exercise = pytest.mark.parametrize(
    ("lab", "exercise"), EXERCISES, ids=[exercise.name for _, exercise in EXERCISES]
)


def hints_of(lab, exercise):
    module = LABS[lab][0].__name__.rpartition(".")
    mistakes = __import__(f"{module[0]}.mistakes.{module[2]}", fromlist=["HINTS"])
    return mistakes.HINTS[exercise.name]


@each_exercise
def test_a_right_solution_passes(lab, exercise, capsys):
    exercises, answers = LABS[lab]
    assert exercises.check(exercise.name, getattr(answers, exercise.name))
    printed = capsys.readouterr().out
    assert re.fullmatch(rf"{exercise.name}: passed \((\d+) of \1 public checks\)\n", printed)


@pytest.mark.parametrize(("lab", "name", "attempt", "message"), WRONG)
def test_a_wrong_solution_gets_its_hint(lab, name, attempt, message, capsys):
    assert not LABS[lab][0].check(name, attempt)
    assert re.search(message, capsys.readouterr().out)


def messages(lab, name, capsys):
    """What is printed for the wrong answers of this exercise, a message each."""
    capsys.readouterr()
    for at, asked, attempt, _ in WRONG:
        if (at, asked) == (lab, name):
            LABS[lab][0].check(name, attempt)
    return capsys.readouterr().out.splitlines()


@each_exercise
def test_four_mistakes_or_more_have_a_hint_of_their_own(lab, exercise, capsys):
    """Every hint is reached by an answer that was written without looking at the hint's own."""
    hints = [hint for _, hint in hints_of(lab, exercise)]
    assert len(set(hints)) == len(hints) >= 4
    printed = messages(lab, exercise.name, capsys)
    assert not [hint for hint in hints if not any(line.endswith("; " + hint) for line in printed)]


@each_exercise
def test_no_hint_gives_the_specification_away(lab, exercise):
    expected = exercise.answers(exercise.spec)
    for wrong, hint in hints_of(lab, exercise):
        pairs = zip(exercise.answers(wrong), expected, strict=True)
        assert not all(np.allclose(flat(a), flat(b), rtol=1e-9) for a, b in pairs), hint


@each_exercise
def test_no_message_holds_an_expression_or_a_number_of_the_answer(lab, exercise, capsys):
    answers = np.concatenate([flat(answer) for answer in exercise.answers(exercise.spec)])
    fractions = {f"{x:.4g}" for x in answers if x != round(x)}
    expressions = expressions_of(exercise.spec)
    for line in messages(lab, exercise.name, capsys):
        message = re.sub(r", at `.*`$", "", line.split("; ", 1)[-1])  # the learner's own line
        packed = re.sub(r"\s", "", message)
        assert not [code for code in expressions if code in packed], message
        assert not FORMULA.search(message), message
        assert not fractions & set(re.findall(r"-?\d[\d.e-]*\d", message)), message


def flat(answer):
    parts = answer if isinstance(answer, list | tuple) else [answer]
    return np.concatenate([np.ravel(part) for part in parts])


# A name or number, an operator, and another: "1 - gamma", "n / k", "a @ b", "y = s".
FORMULA = re.compile(
    r"[\w)\]]\s*(?:\*\*?|//?|[-+]|@|=|<|>)\s+[\w(]|[\w)\]](?:\*\*?|//?|\+|@|=)[\w(]"
)


def expressions_of(spec):
    """Source of every calculation, call, comparison and index in ``spec`` and what it calls."""
    found, functions = set(), [spec]
    for function in functions:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        for node in ast.walk(ast.Module(definition.body, [])):
            if isinstance(node, ast.BinOp | ast.Compare | ast.Call | ast.Subscript | ast.IfExp):
                found.add(re.sub(r"\s", "", ast.unparse(node)))
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                called = inspect.getmodule(function).__dict__.get(name)
                if name.startswith("reference."):
                    called = getattr(reference, node.func.attr)
                if inspect.isfunction(called) and called not in functions:
                    functions.append(called)
    assert found, spec
    return found


def test_the_search_for_an_answer_given_away_finds_one():
    specs = {exercise.name: exercise.spec for _, exercise in EXERCISES}
    assert any("0.1307)/0.3081" in code for code in expressions_of(specs["normalise"]))
    assert "np.linalg.norm(mean)" in expressions_of(specs["clipped_update"])
    for leak in ("it is n // k", "divide: a/b", "take (x - mean) first", "then y = s", "1 - gamma"):
        assert FORMULA.search(leak), leak
    for fine in ("3.5e-05 of the largest", "why `-`, not `/`?", "one-sided", "that is -1 times"):
        assert not FORMULA.search(fine), fine


def test_an_unknown_exercise_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="Did you mean 'normalise'"):
        LABS["01_gradient_accumulation"][0].check("normalize", len)


@pytest.mark.parametrize("lab", LABS)
def test_the_notebook_asks_each_exercise_and_leaves_it_unsolved(lab, root):
    notebook = json.loads((root / "notebooks" / f"{lab}.ipynb").read_text())
    code = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    exercises = LABS[lab][0].EXERCISES
    assert len(exercises) >= 4
    for exercise in exercises:
        asking = [cell for cell in code if f'check("{exercise.name}"' in cell]
        assert len(asking) == 1 and "raise NotImplementedError" in asking[0], exercise.name
