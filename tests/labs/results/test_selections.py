"""What the notebooks ask of the stored races: the numbers of the rows, and what is no row's."""

import math
import statistics

import pytest

from labkit.errors import InputError
from labkit.labs import results
from labkit.labs.results import adasum_race, subspace_race


@pytest.fixture(scope="module")
def thor():
    return results.load("thor_race")


@pytest.fixture(scope="module")
def adasum():
    return adasum_race.load()


@pytest.fixture(scope="module")
def subspace():
    return subspace_race.load()


def column(stored, name, **fields):
    """The values of a field in the rows with these fields, read by hand, by seed."""
    rows = [row for row in stored.rows if all(row[n] == value for n, value in fields.items())]
    return [row[name] for row in sorted(rows, key=lambda row: row["seed"])]


def test_thor_and_momentum_are_compared_by_updates_and_seconds(thor):
    won = thor.head["tuned"]["LeNet"]
    for optimizer, side in results.compare(thor, "LeNet", 0.985).items():
        which = {"stage": "race", "net": "LeNet", "optimizer": optimizer}
        which["epochs"] = won[optimizer][0]["epochs"]
        assert side["setting"] == won[optimizer][0]
        assert side["steps"] == column(thor, "to_0.985", **which) and len(side["steps"]) == 3
        assert side["last"] == column(thor, "last_accuracy", **which)
        if None not in side["steps"]:
            assert side["mean"] == side["at_least"] == sum(side["steps"]) / 3
            assert math.isclose(side["seconds"], side["mean"] * side["ms"] / 1e3)
    other = won["Momentum"][1]
    epochs = {"Momentum": other["epochs"]}
    assert results.compare(thor, "LeNet", 0.985, epochs)["Momentum"]["setting"] == other


def test_a_training_that_never_gets_there_has_no_mean(thor):
    for side in results.compare(thor, "LeNet", 1.0).values():
        assert side["steps"] == [None] * 3 and side["mean"] is side["seconds"] is None
        assert side["at_least"] == round(side["setting"]["epochs"] * 468)


def test_accuracies_of_adasum_are_by_setting_rate_and_workers(adasum):
    single = adasum.head["single"]["Momentum"]
    which = {"stage": "race", "workers": 16, "on": "updates", "scope": "layer"}
    expected = column(adasum, "last_accuracy", reduction="adasum", learning_rate=single, **which)
    assert adasum_race.accuracies(adasum) == expected and len(expected) == 3
    assert adasum_race.by_rate(adasum, "adasum")[single] == expected
    assert adasum_race.by_workers(adasum, "adasum")[16] == expected
    which["on"] = "gradients"
    assert adasum_race.accuracies(adasum, on="gradients") == column(
        adasum, "last_accuracy", **which
    )
    alone = column(adasum, "last_accuracy", stage="race", workers=1)
    for reduction in adasum_race.REDUCTIONS:  # the same for every one
        assert adasum_race.by_workers(adasum, reduction)[1] == alone
    assert {1, 2, 4, 8, 16, 32} == set(adasum_race.by_workers(adasum, "adasum"))
    assert adasum_race.setting_of(0.1, 1) == adasum_race.setting_of(0.1, 1, "sum", scope="network")


def test_accuracies_of_two_stages_are_by_method_and_epoch(subspace):
    which = {"setting": "batch 8", "noise": 0.0, "stage": "compare"}
    first, second, failed, searches = (
        column(subspace, name, method="projected_bfgs", **which)
        for name in ("one_epoch_accuracy", "last_accuracy", "failed_searches", "searches")
    )
    ends = column(subspace, "last_accuracy", method="stage_one", **which)
    assert subspace_race.accuracies(subspace, "projected_bfgs", 1) == first
    assert subspace_race.accuracies(subspace, "projected_bfgs") == second
    gains = [a - b for a, b in zip(first, ends, strict=True)]
    assert subspace_race.gains(subspace, "projected_bfgs", 1) == gains
    more = subspace_race.gains(subspace, "projected_bfgs", 1, more=True)
    assert len(more) == 8 and more[:3] == gains
    shares = [a / b for a, b in zip(failed, searches, strict=True)]
    assert subspace_race.searches(subspace)["failed"] == shares
    assert subspace_race.by(subspace, "trials")[20] == second
    average = [subspace_race.accuracies(subspace, "average", epochs) for epochs in (1, 2)]
    assert average[0] == average[1]


def test_the_best_rate_of_each_method_is_taken_and_no_method_is_lost(subspace):
    best = subspace_race.best(subspace)
    means = {}
    for line in subspace_race.compared(subspace):
        means.setdefault(line["method"], []).append(statistics.mean(line["two_epochs"]))
    assert {method: statistics.mean(right) for method, right in best.items()} == {
        method: max(found) for method, found in means.items()
    }
    assert len(means["large_batch"]) == len(means["projected_sgd"]) == 3


@pytest.mark.parametrize("setting", ["batch 8", "batch 32"])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_every_control_is_beside_it(subspace, setting, noise):
    lines = subspace_race.compared(subspace, setting, noise)
    assert {line["method"] for line in lines} == set(subspace_race.METHODS)
    rates = [line["learning_rate"] for line in lines if line["method"] == "large_batch"]
    assert rates[0] == subspace.head["plan"]["settings"][setting]["learning_rate"]
    assert len(rates) == 3
    for line in lines:
        assert all(len(line[n]) == 3 for n in ("one_epoch", "two_epochs", "loss", "seconds"))


def test_sweeps_have_their_values(subspace):
    values = {
        "trials": [1, 2, 5, 20],
        "components": [8, 16, 32, 38],
        "start": sorted(subspace_race.STARTS),
        "alpha": [0.001, 1.024],
        "batch": [32, 250],
    }
    for field, expected in values.items():
        by_value = subspace_race.by(subspace, field)
        assert list(by_value) == expected and all(len(each) == 3 for each in by_value.values())
    assert set(subspace_race.by(subspace, "failure", batch=32)) == {"reset", "rollback"}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda thor, *_: results.compare(thor, "LeNett", 0.985), "Did you mean 'LeNet'"),
        (lambda thor, *_: results.compare(thor, "LeNet", 0.985, {"THOR": 7}),
         "epochs of THOR: expected one of those raced: .*, got 7"),
        (lambda thor, *_: results.compare(thor, "LeNet", 0.985, {"Thor": 2}),
         "unknown optimizer 'Thor'.*Did you mean 'THOR'"),
        (lambda _, adasum, __: adasum_race.by_rate(adasum, "means"), "Did you mean 'mean'"),
        (lambda _, adasum, __: adasum_race.accuracies(adasum, learning_rate=7.0), "was not raced"),
        (lambda *s: subspace_race.accuracies(s[2], "bfgs"), "unknown method 'bfgs'"),
        (lambda *s: subspace_race.accuracies(s[2], "projected_bfgs", trial=2),
         "unknown field 'trial'.*Did you mean 'trials'"),
        (lambda *s: subspace_race.accuracies(s[2], "tenth", setting="batch 9"),
         "unknown setting 'batch 9'"),
        (lambda *s: subspace_race.accuracies(s[2], "tenth", trials=2), "tenth has no trials"),
        (lambda *s: subspace_race.accuracies(s[2], "projected_bfgs", trials=7), "was not raced"),
        (lambda *s: subspace_race.accuracies(s[2], "tenth", 3), "epochs: expected 1 or 2, got 3"),
        (lambda *s: subspace_race.compared(s[2], "batch 32", 0.1), "noise 0.1: it was not raced"),
        (lambda *s: subspace_race.by(s[2], "moments"), "unknown field 'moments'"),
    ],
)  # fmt: skip
def test_what_was_not_raced_is_refused(thor, adasum, subspace, ask, message):
    with pytest.raises(InputError, match=message):
        ask(thor, adasum, subspace)
