"""The stored race is whole, says how it was made, and shows what the lab says of it."""

import json
import math
from pathlib import Path

import pytest

from labkit.errors import InputError
from labkit.labs import results
from labkit.labs.results.thor_race import OPTIMIZERS, race_rows

NETS = ("LeNet", "ResNet")
SEEDS = [1, 2, 3]


@pytest.fixture(scope="module")
def stored():
    return results.load("thor_race")


def test_it_says_how_it_was_made(stored):
    assert stored.head["command"].startswith("python benchmarks/thor_race.py --all")
    assert set(stored.head["versions"]) == {"labkit", "mindspore", "numpy", "python"}
    assert stored.head["cores"] >= 1 and len(stored.head["date"]) == 10


def test_it_is_small():
    files = list(Path(results.stored.FOLDER).glob("thor_race*.*"))
    assert sum(path.stat().st_size for path in files) < 250_000


@pytest.mark.parametrize("net", NETS)
def test_both_were_tuned_with_the_same_budget_on_held_out_images(stored, net):
    budgets = {}
    for optimizer in OPTIMIZERS:
        rows = stored.select(stage="tune", net=net, optimizer=optimizer)
        budgets[optimizer] = sorted(row["epochs"] for row in rows)
        assert {row["seed"] for row in rows} == {stored.head["tuning_seed"]}
    assert budgets["Momentum"] == budgets["THOR"]
    assert len(budgets["THOR"]) >= 4
    assert stored.head["tuning_seed"] not in SEEDS


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_is_raced_are_the_winners_of_the_tuning(stored, net, optimizer):
    raced = stored.head["tuned"][net][optimizer]
    rows = stored.select(stage="tune", net=net, optimizer=optimizer)
    assert sorted(setting["epochs"] for setting in raced) == sorted({r["epochs"] for r in rows})
    for number, won in enumerate(raced):
        (row,) = [each for each in rows if all(each[name] == won[name] for name in won)]
        against = rows if number == 0 else [r for r in rows if r["epochs"] == won["epochs"]]
        there = [each["to_0.98"] for each in against if each["to_0.98"] is not None]
        if there:
            assert row["to_0.98"] == min(there)
        else:
            assert row["best_accuracy"] == max(each["best_accuracy"] or 0 for each in against)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_race_has_every_seed_and_the_tuned_settings(stored, net, optimizer):
    for won in stored.head["tuned"][net][optimizer]:
        rows = race_rows(stored, net, optimizer, won["epochs"])
        assert [row["seed"] for row in rows] == SEEDS
        for row in rows:
            assert all(row[name] == won[name] for name in won) and not row["failure"]


def test_the_rows_follow_from_the_curves(stored):
    of_curves = [row for row in stored.rows if row["run"] in stored.curves]
    assert {row["stage"] for row in of_curves} == {"race", "sweep"}
    for row in of_curves:
        curve = stored.curves[row["run"]]
        assert [point["update"] for point in curve] == sorted(point["update"] for point in curve)
        for target in (0.98, 0.985, 0.99):
            assert row[f"to_{target}"] == results.steps_to(curve, target)
        assert row["last_accuracy"] == curve[-1]["accuracy"]
        assert row["updates"] == curve[-1]["update"]


def test_the_sweeps_change_one_option_of_the_tuned_setting(stored):
    varied = stored.head["plan"]["varied"]
    rows = stored.select(stage="sweep")
    found = [(row["varied"], json.loads(str(row["value"]))) for row in rows]
    assert found == [(name, value) for name, values in varied.items() for value in values]
    assert set(varied) >= {"damping", "frequency", "trace_rule", "split", "formulas"}
    tuned = stored.head["tuned"]["LeNet"]["THOR"][0]
    for row in rows:
        changed = {row["varied"]}
        if row["varied"] == "damping and rate":
            changed = {"damping", "learning_rate"}
            ratios = [each["learning_rate"] / each["damping"] for each in (row, tuned)]
            assert math.isclose(*ratios, rel_tol=1e-5)
        for name in {"learning_rate", "epochs", "damping", "frequency"} - changed:
            assert row[name] == tuned[name], row


def test_every_net_has_its_times(stored):
    for net in NETS:
        for optimizer in OPTIMIZERS:
            side = stored.head["times"][net][optimizer]
            assert side["ms"] > 0 and len(side["turns"]) >= 3
    lenet = stored.head["times"]["LeNet"]
    assert lenet["THOR, refresh"]["ms"] > lenet["THOR, cached"]["ms"]


def test_thor_needs_at_least_one_and_a_half_times_fewer_updates_on_lenet(stored):
    """Against the winner of Momentum's tuning, and against the length that suits it best.

    A training of Momentum that never gets there counts with all its updates: too few.
    """
    thor = results.compare(stored, "LeNet", 0.985)["THOR"]
    assert len(thor["steps"]) == 3
    for setting in stored.head["tuned"]["LeNet"]["Momentum"]:
        epochs = {"Momentum": setting["epochs"]}
        momentum = results.compare(stored, "LeNet", 0.985, epochs)["Momentum"]
        assert momentum["setting"] == setting and len(momentum["steps"]) == 3
        assert momentum["at_least"] / thor["mean"] >= 1.5
        assert momentum["mean"] in (momentum["at_least"], None)
    assert math.isclose(thor["seconds"], thor["mean"] * thor["ms"] / 1e3)


def test_a_training_that_never_gets_there_has_no_mean(stored):
    sides = results.compare(stored, "LeNet", 1.0)
    assert [side["mean"] for side in sides.values()] == [None, None]
    assert [side["seconds"] for side in sides.values()] == [None, None]
    for side in sides.values():
        assert side["steps"] == [None, None, None]
        assert side["at_least"] == round(side["setting"]["epochs"] * 468)


def test_what_was_not_raced_is_refused(stored):
    with pytest.raises(InputError, match="Did you mean 'LeNet'"):
        results.compare(stored, "LeNett", 0.985)
    with pytest.raises(InputError, match="epochs is 7 for THOR; expected one of those raced"):
        results.compare(stored, "LeNet", 0.985, {"THOR": 7})
    with pytest.raises(InputError, match="unknown optimizer 'Thor'.*Did you mean 'THOR'"):
        results.compare(stored, "LeNet", 0.985, {"Thor": 2})
