"""The exercises of every lab: right answers, the wrong ones of learners, what they are told."""

import ast
import inspect
import json
import re
import textwrap

import numpy as np
import pytest

from labkit import reference
from labkit.errors import InputError
from labkit.labs.exercises import accumulation, adasum, migration, subspace, thor
from tests.exercises import (
    accumulation_answers,
    adasum_answers,
    migration_answers,
    subspace_answers,
    thor_answers,
)

LABS = {
    "01_gradient_accumulation": (accumulation, accumulation_answers),
    "02_resnet50_migration": (migration, migration_answers),
    "03_thor": (thor, thor_answers),
    "04_adasum": (adasum, adasum_answers),
    "05_dimension_reduction": (subspace, subspace_answers),
}
ASKED = [(lab, name) for lab, (_, answers) in LABS.items() for name in answers.SOLUTIONS]
WRONG = [(lab, *wrong) for lab, (_, answers) in LABS.items() for wrong in answers.WRONG]


@pytest.mark.parametrize("lab", LABS)
def test_every_exercise_has_a_solution_here(lab):
    exercises, answers = LABS[lab]
    assert {exercise.name for exercise in exercises.EXERCISES} == answers.SOLUTIONS.keys()
    assert len(exercises.EXERCISES) >= 4


@pytest.mark.parametrize(("lab", "name"), ASKED)
def test_a_right_solution_passes(lab, name, capsys):
    exercises, answers = LABS[lab]
    assert exercises.check(name, answers.SOLUTIONS[name])
    assert re.fullmatch(rf"{name}: passed \((\d+) of \1 public checks\)\n", capsys.readouterr().out)


@pytest.mark.parametrize(("lab", "name", "attempt", "message"), WRONG)
def test_a_wrong_solution_is_told_what_is_wrong(lab, name, attempt, message, capsys):
    assert not LABS[lab][0].check(name, attempt)
    assert re.search(message, capsys.readouterr().out)


def _exercise(lab, name):
    return next(one for one in LABS[lab][0].EXERCISES if one.name == name)


def _told(lab, name, capsys):
    """What the wrong answers of this exercise are told, a message each."""
    capsys.readouterr()
    for at, asked, attempt, _ in WRONG:
        if (at, asked) == (lab, name):
            LABS[lab][0].check(name, attempt)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(("lab", "name"), ASKED)
def test_four_mistakes_or_more_have_a_message_of_their_own(lab, name, capsys):
    """Every message is reached by an answer that was written without looking at the hint's own."""
    hints = [hint for _, hint in _exercise(lab, name).hints]
    assert len(set(hints)) == len(hints) >= 4
    told = _told(lab, name, capsys)
    unreached = [hint for hint in hints if not any(line.endswith("; " + hint) for line in told)]
    assert not unreached


@pytest.mark.parametrize(("lab", "name"), ASKED)
def test_no_message_holds_an_expression_or_a_number_of_the_answer(lab, name, capsys):
    exercise = _exercise(lab, name)
    answers = [_numbers(exercise.spec(*case)) for case in exercise.cases]
    fractions = {f"{x:.4g}" for x in np.concatenate(answers) if x != round(x)}
    for line in _told(lab, name, capsys):
        message = re.sub(r", at `.*`$", "", line.split("; ", 1)[-1])  # the learner's own line
        packed = re.sub(r"\s", "", message)
        assert not [code for code in _expressions(exercise.spec) if code in packed], message
        assert not FORMULA.search(message), message
        assert not fractions & set(re.findall(r"-?\d[\d.e-]*\d", message)), message


# A name or number, an operator, and another: "1 - gamma", "n / k", "a @ b", "y = s".
FORMULA = re.compile(
    r"[\w)\]]\s*(?:\*\*?|//?|[-+]|@|=|<|>)\s+[\w(]|[\w)\]](?:\*\*?|//?|\+|@|=)[\w(]"
)


def _expressions(spec):
    """Source of every calculation, call, comparison and index in ``spec`` and what it calls."""
    found, functions = set(), [spec]
    for function in functions:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp | ast.Compare | ast.Call | ast.Subscript | ast.IfExp):
                found.add(re.sub(r"\s", "", ast.unparse(node)))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called = inspect.getmodule(function).__dict__.get(node.func.id)
                if inspect.isfunction(called) and called not in functions:
                    functions.append(called)
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("reference."):
                called = getattr(reference, node.func.attr)
                functions += [called] if called not in functions else []
    assert found, spec
    return found


def test_the_search_for_an_answer_given_away_finds_one():
    found = _expressions(accumulation.EXERCISES[1].spec)
    assert any("0.1307)/0.3081" in code for code in found)
    assert "np.linalg.norm(mean)" in _expressions(accumulation.EXERCISES[3].spec)
    for leak in ("it is n // k", "divide: a/b", "take (x - mean) first", "then y = s", "1 - gamma"):
        assert FORMULA.search(leak), leak
    for fine in ("3.5e-05 of the largest", "why `-`, not `/`?", "one-sided", "that is -1 times"):
        assert not FORMULA.search(fine), fine


@pytest.mark.parametrize(("lab", "name"), ASKED)
def test_an_unsolved_exercise_is_no_error(lab, name, capsys):
    def unsolved(*arguments):
        raise NotImplementedError

    assert not LABS[lab][0].check(name, unsolved)
    assert capsys.readouterr().out == f"{name}: not attempted yet\n"


@pytest.mark.parametrize("lab", LABS)
def test_a_hint_never_gives_the_specification_away(lab):
    for exercise in LABS[lab][0].EXERCISES:
        for wrong, _ in exercise.hints:
            assert not _agrees(exercise, wrong), exercise.name


def _agrees(exercise, function):
    return all(
        np.allclose(_numbers(function(*case)), _numbers(exercise.spec(*case)), rtol=1e-9)
        for case in exercise.cases
    )


def _numbers(answer):
    parts = answer if isinstance(answer, list | tuple) else [answer]
    return np.concatenate([np.ravel(part) for part in parts])


def test_an_unknown_exercise_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="Did you mean 'normalise'"):
        accumulation.check("normalize", accumulation_answers.right_normalise)


@pytest.mark.parametrize("lab", LABS)
def test_the_notebook_asks_each_exercise_and_leaves_it_unsolved(lab, root):
    notebook = json.loads((root / "notebooks" / f"{lab}.ipynb").read_text())
    code = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    for name in LABS[lab][1].SOLUTIONS:
        asking = [cell for cell in code if f'check("{name}"' in cell]
        assert len(asking) == 1 and "raise NotImplementedError" in asking[0], name
