"""The race's program: its plan, the cosines that it records, and the quick form end to end."""

import numpy as np
import pytest
from _adasum_plan import PLANS, best, changed, check, planned
from _adasum_training import cosines_of, make_step

from labkit.errors import InputError
from labkit.labs.results.races import LAYERS
from labkit.labs.results.races import adasum_setting as setting_of
from labkit.reference import cosine
from tests.support.races import quick_twice


@pytest.mark.parametrize("name", ["all", "quick"])
def test_no_training_is_planned_twice(name):
    trainings = planned(PLANS[name], {"Momentum": 0.03})
    assert len({repr(training) for training in trainings}) == len(trainings)
    assert trainings[0] == ("tune", setting_of(PLANS[name]["single"]["Momentum"][0], 1), 100)
    assert changed({"Momentum": 0.03}, 8, reduction="mean")["learning_rate"] == 0.24


def test_the_best_is_accurate_then_sure_and_has_not_failed():
    figures = [(0.9, 0.3, None), (0.95, 0.4, None), (0.95, 0.2, None), (0.99, 0.1, "E")]
    rows = [dict(zip(("last_accuracy", "last_loss", "failure"), f, strict=True)) for f in figures]
    assert best(rows) is rows[2]
    with pytest.raises(InputError, match="every training of a tuning failed"):
        best(rows[3:])


def test_the_cosines_are_the_mean_over_pairs():
    random = np.random.default_rng(0)
    vectors = {
        f"{name}.weight": (random.normal(size=(5, 30)) + 0.5).astype(np.float32) for name in LAYERS
    }
    vectors["fc1.weight"][2] = 0
    vectors["fc2.weight"][1, 3] = np.nan
    cosines = cosines_of(vectors)
    assert set(cosines) == set(LAYERS) - {"fc1", "fc2"}
    for name, value in cosines.items():
        rows = vectors[f"{name}.weight"]
        pairs = [cosine(rows[i], rows[j]) for i in range(5) for j in range(i)]
        assert value == pytest.approx(np.mean(pairs), abs=1e-12)


def test_the_rate_warms_up_and_ends_at_zero():
    _, step = make_step(setting_of(0.03, 2), 100, seed=1)
    rates = step.optimizer.learning_rate.learning_rate.asnumpy()
    assert rates.shape == (100,) and rates.argmax() == 17
    assert rates[17] == pytest.approx(0.03) and rates[0] == 0 and rates[-1] < 0.03 / 80
    assert step.total_workers == 2 and step.update.on_updates


@pytest.mark.long
def test_the_quick_race_runs_and_resumes(programs, root, mnist, tmp_path):
    printed, stored = quick_twice("adasum_race", programs, root, mnist, tmp_path)
    check(stored)
    assert "required, at the single-worker rate" in printed
    for row in stored.rows:
        (*_, last) = stored.curves[row["run"]]
        assert (last["cosine_fc1"] is None) == (row["workers"] == 1)
