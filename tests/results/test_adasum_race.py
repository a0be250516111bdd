"""The stored race is what its plan says, and shows what the lab says of it."""

import copy
import statistics

import pytest

from labkit.errors import InputError
from labkit.labs import results
from labkit.labs.results import adasum_race as race
from tests.support.races import assert_it_says_how_it_was_made, assert_planned, assert_small

SEEDS = [1, 2, 3]


@pytest.fixture(scope="module")
def stored():
    return race.load()


@pytest.fixture
def damaged(stored):
    """A copy to be damaged."""
    return copy.deepcopy(stored)


def test_it_says_how_it_was_made(stored, root):
    assert_it_says_how_it_was_made(stored, root)
    assert '"--all"' in (root / "benchmarks" / "adasum_race.py").read_text()


def test_its_plan_is_that_of_the_program(stored, root, monkeypatch):
    assert_planned(stored, "full", "_adasum_plan", root, monkeypatch)


def test_it_is_small():
    assert_small("adasum_race", 100_000)


def test_the_setting_is_the_issues(stored):
    """16 workers, 60 000 images, batch 32 a worker, two epochs: 234 updates."""
    plan = stored.head["plan"]
    assert plan["epochs"] == 2 and plan["images"]["train"] is None
    for row in stored.select(stage="race", workers=16):
        assert row["updates"] == 234 or row["failure"]
    assert race.updates_of(plan, "race", 16) == 234
    assert race.updates_of(plan, "race", 1) == 3750


def test_nothing_is_tuned_on_what_judges_the_race(stored):
    plan = stored.head["plan"]
    assert plan["images"]["held_out"] == 10_000
    assert plan["tuning_seed"] not in SEEDS
    for row in stored.select(stage="tune"):
        assert row["updates"] <= race.updates_of(plan, "tune", row["workers"])
        assert row["seed"] == plan["tuning_seed"]


def test_the_single_worker_rate_is_inside_its_grid(stored):
    """The best of a grid that goes on to both sides of it, with one worker."""
    rows = stored.select(stage="tune", workers=1, optimizer="Momentum")
    right = {row["learning_rate"]: row["last_accuracy"] for row in rows}
    single = stored.head["single"]["Momentum"]
    assert right[single] == max(right.values())
    assert min(right) < single < max(right)


def test_adasum_holds_the_single_worker_rate(stored):
    right = race.accuracies(stored)
    assert len(right) == 3 and statistics.mean(right) >= 0.975


def test_adasum_is_above_the_mean_at_every_rate(stored):
    """On average over seeds; the rates of the mean go beyond its best one."""
    adasum = statistics.mean(race.accuracies(stored))
    means = {rate: statistics.mean(found) for rate, found in race.by_rate(stored, "mean").items()}
    assert len(means) >= 3 and stored.head["single"]["Momentum"] in means
    assert all(len(found) == 3 for found in race.by_rate(stored, "mean").values())
    assert adasum > max(means.values())
    assert means[max(means)] < max(means.values())


def test_adasums_own_rate_is_raced_with_every_seed(stored):
    """Tuned on held-out images, it is no better on the test set; above the mean all the same."""
    own = stored.head["tuned"]["adasum"]
    right = race.accuracies(stored, learning_rate=own)
    means = race.by_rate(stored, "mean").values()
    assert len(right) == 3 and own != stored.head["single"]["Momentum"]
    best_mean = max(statistics.mean(found) for found in means)
    assert best_mean < statistics.mean(right) < statistics.mean(race.accuracies(stored))


def test_the_means_own_rate_of_the_tuning_does_not_hold(stored):
    """Best with the tuning's one seed; none of the race's three trains at it."""
    right = race.accuracies(stored, "mean", learning_rate=stored.head["tuned"]["mean"])
    assert len(right) == 3 and max(right) < 0.2


def test_the_sum_at_the_single_worker_rate_does_not_train(stored):
    right = race.accuracies(stored, "sum")
    assert len(right) == 3 and max(right) < 0.9


def test_the_workers_vectors_are_parallel_early_and_not_late(stored):
    """Of the moves that are combined; the last layer's are never as parallel as the others'."""
    for seed in SEEDS:
        for layer, points in race.cosines(stored, seed, on="updates").items():
            values = [value for _, value in points]
            most = 0.5 if layer == "fc3" else 0.7
            assert max(values[:3]) > most and values[-1] < 0.1, (seed, layer)


def test_so_are_their_gradients_in_part(stored):
    for layer, points in race.cosines(stored, 1, on="gradients").items():
        values = [value for _, value in points]
        assert max(values[:3]) > 0.25 and values[-1] < 0.1, layer


def test_the_sum_is_the_mean_at_16_times_the_rate(stored):
    """Until rounding parts them: at the first point that is judged."""
    rate = 4 * stored.head["single"]["Momentum"]
    first = {}
    for reduction, own in (("mean", rate), ("sum", rate / 16)):
        wanted = race.setting_of(own, reduction=reduction)
        (row,) = stored.select(stage="race", seed=1, **wanted)
        first[reduction] = stored.curves[row["run"]][0]["loss"]
    assert abs(first["mean"] - first["sum"]) < 1e-6 * first["mean"]


def plant(stored, **planted):
    row = next(r for r in stored.rows if r["stage"] == "race" and r["reduction"] == "adasum")
    row.update(planted)


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ({"last_accuracy": 0.999}, "last of its curve"),
        ({"updates": 233}, "last of its curve"),
        ({"learning_rate": 0.02}, "row .* is .*0.02"),
        ({"seed": 4}, "row .*'seed': 4"),
        ({"stage": "tune"}, "tuned learning rates|row"),
        ({"on": "gradients"}, "row .*gradients"),
        ({"run": 999}, "row .*999"),
    ],
)
def test_a_planted_row_is_refused(damaged, planted, said):
    plant(damaged, **planted)
    with pytest.raises(InputError, match=said):
        race.check(damaged)


def test_other_damage_is_refused(damaged, tmp_path):
    race.check(damaged)
    worst = min(
        (row for row in damaged.rows if row["stage"] == "tune"), key=lambda r: r["last_accuracy"]
    )
    changed = copy.deepcopy(damaged)
    changed.head["single"]["Momentum"] = worst["learning_rate"]
    with pytest.raises(InputError, match="single-worker learning rates"):
        race.check(changed)
    results.write(race.NAME, damaged, tmp_path)
    assert race.load(tmp_path) == damaged
    changed = copy.deepcopy(damaged)
    changed.rows.pop()
    results.write(race.NAME, changed, tmp_path)
    with pytest.raises(InputError, match="number of rows"):
        race.load(tmp_path)
    changed = copy.deepcopy(damaged)
    del changed.head["plan"]
    results.write(race.NAME, changed, tmp_path)
    with pytest.raises(InputError, match="damaged.*plan"):
        race.load(tmp_path)


def test_a_training_that_stopped_early_is_refused(damaged):
    number = next(row["run"] for row in damaged.rows if row["stage"] == "race")
    curve = damaged.curves[number]
    curve.pop()
    names = {"updates": "update", "last_accuracy": "accuracy", "last_loss": "loss"}
    damaged.rows[number - 1].update({mine: curve[-1][its] for mine, its in names.items()})
    with pytest.raises(InputError, match=f"run {number}, updates"):
        race.check(damaged)


def row(accuracy, loss, **fields):
    return {"last_accuracy": accuracy, "last_loss": loss, "failure": None} | fields


def test_the_best_is_accurate_then_sure_and_has_not_failed():
    rows = [row(0.9, 0.3), row(0.95, 0.4), row(0.95, 0.2), row(0.99, 0.1, failure="E")]
    assert race.best(rows) is rows[2]
    with pytest.raises(InputError, match="every training of a tuning failed"):
        race.best(rows[3:])


def test_a_single_worker_has_no_reduction():
    assert race.setting_of(0.1, 1) == race.setting_of(0.1, 1, "sum", scope="network")
    assert race.changed({"Momentum": 0.03}, 8, reduction="mean")["learning_rate"] == 0.24


def test_tables_for_figures_have_every_seed(stored):
    assert race.by_rate(stored, "adasum")[stored.head["single"]["Momentum"]] == race.accuracies(
        stored
    )
    counts = race.by_workers(stored, "adasum")
    assert {1, 8, 16, 32} <= set(counts) and len(counts[16]) == 3
    assert counts[1] == race.by_workers(stored, "mean")[1] == race.accuracies(stored, workers=1)


def test_what_was_not_raced_is_refused(stored):
    with pytest.raises(InputError, match="unknown reduction 'means'.*Did you mean 'mean'"):
        race.by_rate(stored, "means")
    with pytest.raises(InputError, match="unknown field 'worker'.*Did you mean 'workers'"):
        race.accuracies(stored, worker=16)
    with pytest.raises(InputError, match="was not raced"):
        race.accuracies(stored, learning_rate=7.0)
    with pytest.raises(InputError, match="seed 7 on 'updates' was not raced"):
        race.cosines(stored, 7, on="updates")
