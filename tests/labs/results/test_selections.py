"""The notebooks' queries of the stored races return the rows' numbers."""

import copy
import statistics

import pytest

from labkit.labs.results import load, mean_steps, steps_to
from labkit.labs.results.races import FRAMEWORKS, REDUCTIONS, TWO_STAGES, adasum_setting

THOR, ADASUM, SUBSPACE, MIGRATION = (
    load(f"{name}_race") for name in ("thor", "adasum", "subspace", "migration")
)


def column(stored, name, **fields):
    """Return the values of a field in the rows with these fields, selected here, by seed."""
    rows = [row for row in stored.rows if all(row[n] == value for n, value in fields.items())]
    return [row[name] for row in sorted(rows, key=lambda row: row["seed"])]


def test_thor_and_momentum_are_compared_by_updates_and_seconds():
    won = THOR.head["tuned"]["LeNet"]
    for optimizer, side in THOR.compare("LeNet", 0.985).items():
        which = {"stage": "race", "net": "LeNet", "optimizer": optimizer}
        which["epochs"] = won[optimizer][0]["epochs"]
        assert side["setting"] == won[optimizer][0]
        assert side["steps"] == column(THOR, "to_0.985", **which) and len(side["steps"]) == 3
        assert side["last"] == column(THOR, "last_accuracy", **which)
        if None not in side["steps"]:
            assert side["mean"] == side["at_least"] == sum(side["steps"]) / 3
            assert side["seconds"] == pytest.approx(side["mean"] * side["ms"] / 1e3)
    other = won["Momentum"][1]
    chosen = THOR.compare("LeNet", 0.985, {"Momentum": other["epochs"]})["Momentum"]
    assert chosen["setting"] == other


def test_steps_to_is_the_first_point_and_a_mean_needs_every_training():
    judged = ((1, None), (39, 0.97), (78, 0.985), (117, 0.98), (156, 0.99))
    curve = [{"update": update, "accuracy": accuracy} for update, accuracy in judged]
    reached = [steps_to(curve, target) for target in (0.5, 0.98, 0.985, 0.99, 0.991)]
    assert reached == [39, 78, 78, 156, None] and steps_to([], 0.5) is None
    assert mean_steps([312, 351, 351]) == 338
    assert mean_steps([312, None, 351]) is None and mean_steps([]) is None


def test_accuracies_of_adasum_are_by_setting_rate_and_workers():
    single = ADASUM.head["single"]["Momentum"]
    which = {"stage": "race", "workers": 16, "scope": "layer", "reduction": "adasum"}
    expected = column(ADASUM, "last_accuracy", learning_rate=single, on="updates", **which)
    assert ADASUM.accuracies() == expected and len(expected) == 3
    assert ADASUM.by_rate("adasum")[single] == ADASUM.by_workers("adasum")[16] == expected
    assert ADASUM.accuracies(on="gradients") == column(
        ADASUM, "last_accuracy", on="gradients", **which
    )
    alone = column(ADASUM, "last_accuracy", stage="race", workers=1)
    for reduction in REDUCTIONS:  # the same for every reduction
        assert ADASUM.by_workers(reduction)[1] == alone
    assert {1, 2, 4, 8, 16, 32} == set(ADASUM.by_workers("adasum"))
    assert adasum_setting(0.1, 1) == adasum_setting(0.1, 1, "sum", scope="network")


def test_accuracies_of_two_stages_are_by_method_and_epoch():
    which = {"setting": "batch 8", "noise": 0.0, "stage": "compare"}
    first, second, failed, searches = (
        column(SUBSPACE, name, method="projected_bfgs", **which)
        for name in ("one_epoch_accuracy", "last_accuracy", "failed_searches", "searches")
    )
    ends = column(SUBSPACE, "last_accuracy", method="stage_one", **which)
    gains = [a - b for a, b in zip(first, ends, strict=True)]
    assert SUBSPACE.gains("projected_bfgs", 1) == gains
    more = SUBSPACE.gains("projected_bfgs", 1, more=True)
    assert len(more) == 8 and more[:3] == gains
    shares = [a / b for a, b in zip(failed, searches, strict=True)]
    assert SUBSPACE.searches()["failed"] == shares
    assert SUBSPACE.by("trials")[20] == second
    by_trials = SUBSPACE.by("trials", 1, more=True)
    assert {trials: len(seeds) for trials, seeds in by_trials.items()} == {1: 3, 2: 3, 5: 3, 20: 8}
    assert SUBSPACE.accuracies("average", 1) == SUBSPACE.accuracies("average", 2)


def test_the_best_rate_of_each_method_is_taken_and_no_method_is_lost():
    means = {}
    for line in SUBSPACE.compared():
        means.setdefault(line["method"], []).append(statistics.mean(line["two_epochs"]))
    best = {method: statistics.mean(right) for method, right in SUBSPACE.best().items()}
    assert best == {method: max(by_rate) for method, by_rate in means.items()}


@pytest.mark.parametrize("setting", ["batch 8", "batch 32"])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_every_control_is_beside_it(setting, noise):
    lines = SUBSPACE.compared(setting, noise)
    assert {line["method"] for line in lines} == set(TWO_STAGES)
    rates = [line["learning_rate"] for line in lines if line["method"] == "large_batch"]
    assert rates[0] == SUBSPACE.head["plan"]["settings"][setting]["learning_rate"]
    assert len(rates) == 3
    for line in lines:
        assert all(len(line[n]) == 3 for n in ("one_epoch", "two_epochs", "loss", "seconds"))


def test_the_frameworks_means_are_apart_and_the_smaller_spread_is_theirs():
    ends = [
        column(MIGRATION, "last_accuracy", framework=name, order="given") for name in FRAMEWORKS
    ]
    gap, spread = MIGRATION.gap_and_spread()
    assert gap == pytest.approx(abs(statistics.mean(ends[0]) - statistics.mean(ends[1])), rel=1e-9)
    spreads = [max(each) - min(each) for each in ends]
    assert spread == min(spreads) < max(spreads)
    for name, other in zip(FRAMEWORKS, reversed(ends), strict=True):
        agreed = copy.deepcopy(MIGRATION)
        for row in agreed.rows:
            row["last_accuracy"] = 0.9 if row["framework"] == name else row["last_accuracy"]
        gap, spread = agreed.gap_and_spread()
        assert gap == pytest.approx(statistics.mean(other) - 0.9, rel=1e-9) and spread == 0


def test_losses_are_compared_with_pytorchs_of_the_same_seed():
    def losses(**fields):
        (run,) = column(MIGRATION, "run", **fields)
        return [point["training_loss"] for point in MIGRATION.curves[run]]

    for seed, framework, order in ((2, "MindSpore", "given"), (1, "PyTorch", "backwards")):
        ours = losses(seed=seed, framework=framework, order=order)
        theirs = losses(seed=seed, framework="PyTorch", order="given")
        off = MIGRATION.loss_differences(seed, framework, order)
        expected = [abs(a - b) / b for a, b in zip(ours, theirs, strict=True)]
        assert off == pytest.approx(expected, rel=1e-9) and off[0] < 1e-5 < max(off)
    assert set(MIGRATION.loss_differences(2, "PyTorch")) == {0.0}
