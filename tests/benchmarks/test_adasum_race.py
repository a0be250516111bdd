"""The race's program: what it plans, the cosines that it notes, and the quick form end to end."""

import sys

import numpy as np
import pytest

from labkit.labs.results import adasum_race as race
from labkit.labs.results.stored import LAYERS
from labkit.reference import cosine
from tests.support.races import quick_twice


@pytest.fixture(scope="module")
def programs(root):
    sys.path.insert(0, str(root / "benchmarks"))
    yield root / "benchmarks"
    sys.path.remove(str(root / "benchmarks"))


@pytest.mark.parametrize("name", ["full", "quick"])
def test_no_training_is_planned_twice(programs, name):
    from _adasum_plan import PLANS

    planned = race.planned(PLANS[name], {"Momentum": 0.03})
    assert len({repr(one) for one in planned}) == len(planned)
    assert planned[0] == ("tune", race.setting_of(PLANS[name]["single"]["Momentum"][0], 1), 100)


def test_the_cosines_are_the_mean_over_pairs(programs):
    from _adasum_training import cosines_of

    random = np.random.default_rng(0)
    vectors = {
        f"{name}.weight": (random.normal(size=(5, 30)) + 0.5).astype(np.float32) for name in LAYERS
    }
    vectors["fc1.weight"][2] = 0
    vectors["fc2.weight"][1, 3] = np.nan
    found = cosines_of(vectors)
    assert set(found) == set(LAYERS) - {"fc1", "fc2"}
    for name, value in found.items():
        rows = vectors[f"{name}.weight"]
        pairs = [cosine(rows[i], rows[j]) for i in range(5) for j in range(i)]
        assert value == pytest.approx(np.mean(pairs), abs=1e-12)


def test_the_rate_warms_up_and_ends_at_zero(programs):
    from _adasum_training import make_step

    _, step = make_step(race.setting_of(0.03, 2), 100, seed=1)
    rates = step.optimizer.learning_rate.learning_rate.asnumpy()
    assert rates.shape == (100,) and rates.argmax() == 17
    assert rates[17] == pytest.approx(0.03) and rates[0] == 0 and rates[-1] < 0.03 / 80
    assert step.total_workers == 2 and step.update.on_updates


@pytest.mark.slow
def test_the_quick_race_runs_and_resumes(programs, root, mnist, tmp_path):
    """Everything that is planned has its row, and a second run trains nothing again."""
    printed, stored = quick_twice("adasum_race", race.load, programs, root, mnist, tmp_path)
    assert "required, at the single-worker rate" in printed
    for row in stored.rows:
        (*_, last) = stored.curves[row["run"]]
        assert (last["cosine_fc1"] is None) == (row["workers"] == 1)
