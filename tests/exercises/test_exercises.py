"""The exercises of every lab: right answers, the wrong ones of learners, what they are told."""

import json
import re

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.exercises import accumulation, adasum, migration, subspace, thor
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
