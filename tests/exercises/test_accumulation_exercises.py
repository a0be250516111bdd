"""Every exercise of lab 01, solved rightly, and wrongly in the ways learners do."""

import json
import re

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.exercises.accumulation import EXERCISES, check


def right_mean_gradient(gradients, sizes):
    total = np.zeros_like(gradients[0])
    for gradient, size in zip(gradients, sizes, strict=True):
        total += size * gradient
    return total / np.sum(sizes)


def right_normalise(pixels):
    return (pixels / 255 - 0.1307) / 0.3081


def right_updates_per_epoch(micro_batches, micro_steps, tail):
    updates = 0
    for start in range(0, micro_batches, micro_steps):
        updates += tail == "flush" or start + micro_steps <= micro_batches
    return updates


def right_clipped_update(gradients, sizes, clip_norm):
    mean = np.average(gradients, axis=0, weights=sizes)
    norm = np.sqrt((mean**2).sum())
    return mean if norm <= clip_norm else mean * clip_norm / norm


def right_token_loss(losses, is_token):
    losses, is_token = np.concatenate(losses), np.concatenate(is_token)
    return losses[is_token == 1].mean()


SOLUTIONS = {
    "mean_gradient": right_mean_gradient,
    "normalise": right_normalise,
    "updates_per_epoch": right_updates_per_epoch,
    "clipped_update": right_clipped_update,
    "token_loss": right_token_loss,
}
WRONG = [
    ("mean_gradient", lambda gradients, sizes: sum(gradients), "the plain sum"),
    ("mean_gradient", lambda gradients, sizes: np.mean(gradients, axis=0), "same size"),
    ("mean_gradient", lambda g, n: 3 * right_mean_gradient(g, n), "3 times what is expected"),
    ("mean_gradient", lambda g, n: -right_mean_gradient(g, n), "-1 times what is expected"),
    ("mean_gradient", lambda g, n: None, "is the `return` missing?"),
    ("mean_gradient", lambda g, n: "half", "expected numbers"),
    ("mean_gradient", lambda g, n: right_mean_gradient(g, n)[:3], "3 numbers; expected 6"),
    ("mean_gradient", lambda g, n: g[0] * np.nan, "not finite"),
    ("mean_gradient", lambda g, n: 1 / 0, "ZeroDivisionError: division by zero"),
    ("normalise", lambda pixels: (pixels / 0.3081 - 0.1307 / 0.3081) / 255, "which step is first"),
    ("normalise", lambda pixels: pixels / 255, "off by"),
    ("updates_per_epoch", lambda n, k, tail: n // k, "is an update too"),
    ("updates_per_epoch", lambda n, k, tail: -(-n // k), "only `flush`"),
    ("clipped_update", lambda g, n, norm: right_mean_gradient(g, n), "off by|times"),
    ("clipped_update", lambda g, n, norm: right_clipped_update(
        [right_clipped_update([one], [1], norm) for one in g], n, np.inf), "on its own"),
    ("clipped_update", lambda g, n, norm: right_mean_gradient(g, n) * norm
        / np.linalg.norm(right_mean_gradient(g, n)), "made longer"),
    ("token_loss", lambda losses, masks: np.mean(
        [losses[i][masks[i] == 1].mean() for i in range(len(losses))]), "count as much"),
    ("token_loss", lambda losses, masks: (
        np.concatenate(losses) * np.concatenate(masks)).mean(), "padding was counted"),
]  # fmt: skip


def test_every_exercise_has_a_solution_here():
    assert {exercise.name for exercise in EXERCISES} == SOLUTIONS.keys()
    assert len(EXERCISES) >= 4


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_right_solution_passes(name, capsys):
    assert check(name, SOLUTIONS[name])
    assert re.fullmatch(rf"{name}: passed \((\d+) of \1 public checks\)\n", capsys.readouterr().out)


@pytest.mark.parametrize(("name", "attempt", "message"), WRONG)
def test_a_wrong_solution_is_told_what_is_wrong(name, attempt, message, capsys):
    assert not check(name, attempt)
    assert re.search(message, capsys.readouterr().out)


@pytest.mark.parametrize("name", SOLUTIONS)
def test_an_unsolved_exercise_is_no_error(name, capsys):
    def unsolved(*arguments):
        raise NotImplementedError

    assert not check(name, unsolved)
    assert capsys.readouterr().out == f"{name}: not attempted yet\n"


def test_a_hint_never_gives_the_specification_away():
    for exercise in EXERCISES:
        for wrong, _ in exercise.hints:
            assert not _agrees(exercise, wrong), exercise.name


def _agrees(exercise, function):
    return all(
        np.allclose(np.ravel(function(*case)), np.ravel(exercise.spec(*case)), rtol=1e-9)
        for case in exercise.cases
    )


def test_an_unknown_exercise_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="Did you mean 'normalise'"):
        check("normalize", right_normalise)


def test_the_notebook_asks_each_exercise_and_leaves_it_unsolved(root):
    notebook = json.loads((root / "notebooks/01_gradient_accumulation.ipynb").read_text())
    code = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    for name in SOLUTIONS:
        asking = [cell for cell in code if f'check("{name}"' in cell]
        assert len(asking) == 1 and "raise NotImplementedError" in asking[0], name
