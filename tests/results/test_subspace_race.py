"""The stored race is what its plan says, and shows what the lab says of it."""

import copy
import statistics

import pytest

from labkit.errors import InputError
from labkit.labs import results
from labkit.labs.results import subspace_race as race
from tests.support.races import assert_it_says_how_it_was_made, assert_planned, assert_small

SEEDS = [1, 2, 3]


@pytest.fixture(scope="module")
def stored():
    return race.load()


@pytest.fixture
def damaged(stored):
    """A copy to be damaged."""
    return copy.deepcopy(stored)


def mean(stored, method, epochs=2, **which):
    return statistics.mean(race.accuracies(stored, method, epochs, **which))


def test_it_says_how_it_was_made(stored, root):
    assert_it_says_how_it_was_made(stored, root)


def test_its_plan_is_that_of_the_program(stored, root, monkeypatch):
    assert_planned(stored, "all", "_subspace_plan", root, monkeypatch)


def test_it_is_small():
    assert_small("subspace_race", 150_000)


def test_the_setting_is_the_issues(stored):
    """5 000 images, three seeds; after stage one, two epochs: 40 updates at batch 250."""
    plan = stored.head["plan"]
    assert plan["images"]["train"] == 5000 and plan["images"]["test"] is None
    assert plan["epochs"] == 2 and plan["seeds"] == SEEDS
    for setting, updates in (("batch 8", 6 * 625), ("batch 32", 14 * 156)):
        rows = race.rows_of(stored, "stage_one", setting=setting)
        assert [row["seed"] for row in rows] == SEEDS
        assert [row["updates"] for row in rows] == [updates] * 3
    for row in race.rows_of(stored, "projected_bfgs"):
        assert (row["updates"], row["components"], row["trials"]) == (40, 32, 20)
        assert row["searches"] == 40 and row["explained"] > 0.99


@pytest.mark.parametrize(
    ("setting", "noise"), [("batch 8", 0.0), ("batch 32", 0.0), ("batch 8", 0.3), ("batch 32", 0.3)]
)
def test_every_control_is_beside_it(stored, setting, noise):
    lines = race.compared(stored, setting, noise)
    assert [line["method"] for line in lines if line["method"] != "stage_one"]
    assert {line["method"] for line in lines} == set(race.METHODS)
    own = stored.head["plan"]["settings"][setting]["learning_rate"]
    rates = [line["learning_rate"] for line in lines if line["method"] == "large_batch"]
    assert rates[0] == own and len(rates) == 3
    for line in lines:
        for name in ("one_epoch", "two_epochs", "loss", "seconds"):
            assert len(line[name]) == 3
        assert min(line["seconds"]) > 0


def test_one_epoch_gains_two_points(stored):
    """The issue's requirement, on its three seeds; and with five more, whose stages one end better
    or worse by chance."""
    gains = race.gains(stored, "projected_bfgs", 1)
    assert len(gains) == 3 and statistics.mean(gains) >= 0.02 and min(gains) > 0
    more = race.gains(stored, "projected_bfgs", 1, more=True)
    assert len(more) == 8 and more[:3] == gains
    assert statistics.mean(more) >= 0.02 and min(more) > 0


def test_the_controls_gain_as_much(stored):
    """What costs less is not behind by more than the seeds differ; the same rate goes nowhere."""
    for setting in ("batch 8", "batch 32"):
        subspace = mean(stored, "projected_bfgs", setting=setting)
        for control in ("tenth", "to_zero", "average"):
            assert mean(stored, control, setting=setting) > subspace - 0.001
    assert abs(statistics.mean(race.gains(stored, "same_rate", 1, more=True))) < 0.005


def test_the_average_is_as_good_on_eight_seeds(stored):
    average = race.gains(stored, "average", more=True)
    one_epoch = race.gains(stored, "projected_bfgs", 1, more=True)
    assert sum(a > b for a, b in zip(average, one_epoch, strict=True)) >= 6


def test_the_number_of_trials_matters_little_and_failures_fall_with_it(stored):
    trials = {n: statistics.mean(found) for n, found in race.by(stored, "trials", 1).items()}
    assert max(trials.values()) - min(trials.values()) < 0.003
    failed = [statistics.mean(race.searches(stored, trials=n)["failed"]) for n in (1, 2, 5, 20)]
    assert failed == sorted(failed, reverse=True) and failed[0] > 0.1 and failed[-1] < 0.02


def test_few_components_and_early_starts_are_worse(stored):
    components = race.by(stored, "components")
    assert statistics.mean(components[8]) < statistics.mean(components[32]) - 0.003
    starts = {name: statistics.mean(found) for name, found in race.by(stored, "start", 1).items()}
    assert starts["initial"] < starts["first"] - 0.02 < starts["last"] - 0.03


def test_random_labels_learnt_by_heart_are_the_averages_to_forget(stored):
    """14 epochs with 30 % random labels: the average helps, the search little. 6 noisy epochs have
    not learnt them yet: there both help alike."""
    late = {"setting": "batch 32", "noise": 0.3}
    assert min(race.gains(stored, "average", **late)) > 0.03
    assert statistics.mean(race.gains(stored, "projected_bfgs", **late)) < 0.02
    early = {"setting": "batch 8", "noise": 0.3}
    assert min(race.gains(stored, "projected_bfgs", **early)) > 0.01
    difference = mean(stored, "projected_bfgs", **early) - mean(stored, "average", **early)
    assert abs(difference) < 0.003


def test_the_leaking_loss_scale_diverges(stored):
    """alpha is 1.024 where 0.001 is multiplied by a loss scale of 1024 that is not taken out."""
    rows = race.rows_of(stored, "projected_bfgs", alpha=1.024)
    assert len(rows) == 3
    assert all(row["stopped"] == "the loss is not finite" for row in rows)


def plant(stored, planted):
    next(row for row in stored.rows if row["method"] == "projected_bfgs").update(planted)


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ({"last_accuracy": 0.999}, "by its curve"),
        ({"one_epoch_accuracy": 0.999}, "by its curve"),
        ({"one_epoch_loss": 0.001}, "by its curve"),
        ({"updates": 39}, "by its curve"),
        ({"seconds": 1e-3}, "seconds of run"),
        ({"learning_rate": 0.02}, "row .* is .*0.02"),
        ({"seed": 4}, "row .*'seed': 4"),
        ({"stage": "sweep"}, "row .*sweep"),
        ({"trials": 2}, "row .*'trials': 2"),
        ({"method": "average"}, "row .*average"),
        ({"run": 999}, "row .*999"),
    ],
)
def test_a_planted_row_is_refused(damaged, planted, said):
    plant(damaged, planted)
    with pytest.raises(InputError, match=said):
        race.check(damaged)


def test_other_damage_is_refused(damaged, tmp_path):
    race.check(damaged)
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
    row = next(row for row in damaged.rows if row["method"] == "same_rate")
    curve = damaged.curves[row["run"]]
    curve.pop()
    row.update(race.from_curve(curve, 625, "same_rate"))
    with pytest.raises(InputError, match=f"run {row['run']}, updates"):
        race.check(damaged)


def test_an_accuracy_that_is_none_is_refused(damaged):
    row = next(row for row in damaged.rows if row["method"] == "average")
    damaged.curves[row["run"]][-1]["accuracy"] = row["last_accuracy"] = 1.5
    with pytest.raises(InputError, match=r"accuracy 1\.5; expected 0 to 1"):
        race.check(damaged)


def test_figures_are_those_of_the_rows(stored):
    """Two ways to the same numbers: the rows read by hand."""
    rows = [
        row
        for row in stored.rows
        if (row["setting"], row["noise"], row["method"]) == ("batch 8", 0.0, "projected_bfgs")
        and row["stage"] == "compare"
    ]
    one = [row["one_epoch_accuracy"] for row in rows]
    assert race.accuracies(stored, "projected_bfgs", 1) == one
    ends = [
        row["last_accuracy"]
        for row in stored.rows
        if (row["setting"], row["noise"], row["method"]) == ("batch 8", 0.0, "stage_one")
        and row["stage"] == "compare"
    ]
    gains = race.gains(stored, "projected_bfgs", 1)
    assert gains == [a - b for a, b in zip(one, ends, strict=True)]
    failed = [row["failed_searches"] / row["searches"] for row in rows]
    assert race.searches(stored)["failed"] == failed
    assert race.by(stored, "trials")[20] == [row["last_accuracy"] for row in rows]
    assert race.accuracies(stored, "average", 1) == race.accuracies(stored, "average", 2)


def test_sweeps_have_their_values(stored):
    assert list(race.by(stored, "trials")) == [1, 2, 5, 20]
    assert list(race.by(stored, "components")) == [8, 16, 32, 38]
    assert set(race.by(stored, "start")) == set(race.STARTS)
    assert list(race.by(stored, "alpha")) == [0.001, 1.024]
    assert set(race.by(stored, "failure", batch=32)) == {"reset", "rollback"}
    assert list(race.by(stored, "batch")) == [32, 250]
    for field in ("trials", "components", "start", "alpha", "batch"):
        assert all(len(found) == 3 for found in race.by(stored, field).values())


def test_what_was_not_raced_is_refused(stored):
    with pytest.raises(InputError, match="unknown method 'bfgs'"):
        race.accuracies(stored, "bfgs")
    with pytest.raises(InputError, match="unknown field 'trial'.*Did you mean 'trials'"):
        race.accuracies(stored, "projected_bfgs", trial=2)
    with pytest.raises(InputError, match="unknown setting 'batch 9'"):
        race.accuracies(stored, "tenth", setting="batch 9")
    with pytest.raises(InputError, match="trials came with tenth; it has none"):
        race.accuracies(stored, "tenth", trials=2)
    with pytest.raises(InputError, match="trials': 7.* was not raced"):
        race.accuracies(stored, "projected_bfgs", trials=7)
    with pytest.raises(InputError, match="epochs is 3; expected 1 or 2"):
        race.accuracies(stored, "tenth", 3)
    with pytest.raises(InputError, match="'batch 32' with noise 0.1 was not raced"):
        race.compared(stored, "batch 32", 0.1)
    with pytest.raises(InputError, match="unknown field 'moments'"):
        race.by(stored, "moments")
