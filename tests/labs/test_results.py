"""Stored results: selections return the rows' numbers; the critical batch size of closed forms."""

import math

import numpy as np
import pytest

from labkit.labs.results import Curve, Stored, fit, load, to_accuracy, updates_of

THOR, ADASUM, SUBSPACE = (load(f"{name}_race") for name in ("thor", "adasum", "subspace"))
ACCUMULATION = load("accumulation_race")
BATCHES = [32 * 2**n for n in range(7)]


def column(stored, name, **fields):
    """Return the values of a field in the rows with these fields, selected here, by seed."""
    rows = [row for row in stored.rows if all(row[n] == value for n, value in fields.items())]
    return [row[name] for row in sorted(rows, key=lambda row: row["seed"])]


def test_accuracies_of_adasum_are_by_setting_rate_and_workers():
    single = ADASUM.head["single"]["Momentum"]
    which = {"stage": "race", "on": "updates", "scope": "layer", "reduction": "adasum"}
    expected = column(ADASUM, "last_accuracy", learning_rate=single, workers=16, **which)
    team = which | {"learning_rate": single, "workers": 16}
    assert ADASUM.column("last_accuracy", **team) == expected and len(expected) == 3
    by_rate = ADASUM.by("learning_rate", "last_accuracy", workers=16, **which)
    by_workers = ADASUM.by("workers", "last_accuracy", learning_rate=single, **which)
    assert by_rate[single] == by_workers[16] == expected
    assert list(by_rate) == sorted(by_rate) and list(by_workers) == [2, 4, 8, 16, 32]
    either = ADASUM.select(**team | {"workers": (16, 2)})
    assert [row["seed"] for row in either] == [1, 1, 2, 3]


def test_the_first_tutorials_losses_and_accuracy_beside_three_seeds():
    """What it prints is 2.302572, 1.94902 and 0.12907082, and an accuracy of 0.96875."""

    def values(name, bugs="four", rate=0.01):
        return column(ACCUMULATION, name, bugs=bugs, learning_rate=rate)

    assert len(values("loss_first")) == 3
    assert all(abs(loss - 2.302572) < 0.01 for loss in values("loss_first"))
    assert max(values("loss_end")) < 0.5 < 1.94902  # not reproduced
    assert min(values("loss_459")) < 0.12907082 < max(values("loss_459"))
    four, none, quick = (
        values("last_accuracy", *setting) for setting in (("four",), ("none",), ("none", 0.04))
    )
    assert min(four) > 0.96875  # not reproduced
    assert np.mean(four) == pytest.approx(np.mean(none), abs=0.005)
    assert np.mean(four) == pytest.approx(np.mean(quick), abs=0.005)


@pytest.mark.parametrize("setting", ["batch 8", "batch 32"])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_every_control_is_beside_it(setting, noise):
    which = {"stage": "compare", "setting": setting, "noise": noise}
    methods = SUBSPACE.by("method", "seed", **which)
    assert set(methods) == {row["method"] for row in SUBSPACE.rows} and len(methods) == 8
    rates = SUBSPACE.by("learning_rate", "seed", method="large_batch", **which)
    own = SUBSPACE.head["plan"]["settings"][setting]["learning_rate"]
    assert own in rates and list(rates.values()) == [[1, 2, 3]] * 3
    assert all(sorted(set(seeds)) == [1, 2, 3] for seeds in methods.values())


@pytest.mark.parametrize("optimizer", ["THOR", "Momentum"])
@pytest.mark.parametrize("target", [0.98, 0.985, 0.99])
def test_thor_and_momentum_are_compared_by_updates_and_seconds(optimizer, target):
    lengths = [won["epochs"] for won in THOR.head["tuned"]["LeNet"][optimizer]]
    assert to_accuracy(THOR, "LeNet", optimizer, target) == to_accuracy(
        THOR, "LeNet", optimizer, target, lengths[0]
    )
    for epochs in lengths:
        side = to_accuracy(THOR, "LeNet", optimizer, target, epochs)
        rows = THOR.select(stage="race", net="LeNet", optimizer=optimizer, epochs=epochs)
        steps = []
        for row in rows:
            right = {point["update"]: point["accuracy"] for point in THOR.curves[row["run"]]}
            there = [update for update, accuracy in right.items() if (accuracy or 0) >= target]
            steps.append(min(there, default=None))
        assert side["steps"] == steps and side["last"] == [row["last_accuracy"] for row in rows]
        least = [step or row["updates"] for step, row in zip(steps, rows, strict=True)]
        assert side["at_least"] == pytest.approx(sum(least) / 3) and len(least) == 3
        mean = None if None in steps else side["at_least"]
        assert (side["mean"], side["seconds"]) == (mean, mean and mean * side["ms"] / 1e3)


def test_updates_are_by_images_and_seed_at_each_reductions_rate():
    """Two numbers of workers, two seeds; Adasum's best rate is not the single worker's."""
    reached = {
        (None, 1, 0.01): (1000, 1100),
        ("mean", 2, 0.02): (600, None),
        ("adasum", 2, 0.01): (500, 540),
        ("adasum", 2, 0.04): (450, 460),
    }
    names = ("reduction", "workers", "learning_rate")
    rows = [
        dict(zip(names, team, strict=True)) | {"stage": "race", "seed": seed, "to_target": updates}
        for team, both in reached.items()
        for seed, updates in zip((2, 1), reversed(both), strict=True)
    ]
    rows.append({**rows[0], "stage": "tune", "to_target": 1})
    tuned = {"mean": {"1": 0.01, "2": 0.02}, "adasum": {"1": 0.01, "2": 0.04}}
    stored = Stored({"tuned": tuned, "plan": {"workers": [1, 2]}}, rows, {})
    assert updates_of(stored, "mean") == {32: [1000, 1100], 64: [600, None]}
    assert updates_of(stored, "adasum") == {32: [1000, 1100], 64: [500, 540]}


@pytest.mark.parametrize("b_crit", [10.0, 150.0, 20_000.0])
@pytest.mark.parametrize("batches", [BATCHES, BATCHES[2:4]])
def test_updates_of_the_closed_form_give_it_back(b_crit, batches):
    """(S / S_min - 1) (E / E_min - 1) = 1 on the whole curve; at B_crit both factors are 1."""
    curve = fit({batch: [200 * (1 + b_crit / batch)] * 3 for batch in batches})
    assert curve.s_min == pytest.approx(200, rel=1e-3)
    assert curve.b_crit == pytest.approx(b_crit, rel=1e-3)
    for batch in BATCHES:
        updates = curve.updates(batch)
        assert updates == pytest.approx(200 * (1 + b_crit / batch), rel=2e-3)
        excess = (updates / curve.s_min - 1) * (batch * updates / curve.e_min - 1)
        assert excess == pytest.approx(1, rel=1e-9)
    assert curve.updates(curve.b_crit) == pytest.approx(2 * curve.s_min, rel=1e-12)


def test_updates_that_do_not_fall_are_flat_and_those_that_halve_scale_perfectly():
    flat = fit({batch: [300.0, 300.0] for batch in BATCHES})
    assert flat.b_crit == 0 and flat.e_min == 0
    assert flat.updates(32) == flat.updates(1e9) == pytest.approx(300)
    halved = fit({batch: [96_000 / batch] for batch in BATCHES})
    assert halved.b_crit == math.inf and halved.s_min == 0
    assert halved.updates(32) == pytest.approx(3000) and halved.updates(2048) < 50
    rising = fit({batch: [300.0 + batch] for batch in BATCHES})
    steeper = fit({batch: [1e9 / batch**2] for batch in BATCHES})
    assert (rising.b_crit, steeper.b_crit) == (0, math.inf)


def test_no_other_curve_is_nearer_in_the_logarithm():
    random = np.random.default_rng(0)
    noisy = {b: 200 * (1 + 150 / b) * np.exp(0.1 * random.normal(size=3)) for b in BATCHES}
    curve = fit({batch: list(updates) for batch, updates in noisy.items()})

    def error(s_min, e_min):
        off = [np.log(noisy[b] / Curve(s_min, e_min).updates(b)) for b in BATCHES]
        return np.sqrt(np.mean(np.square(off)))

    least = error(curve.s_min, curve.e_min)
    for a, b in ((0.97, 1), (1.03, 1), (1, 0.97), (1, 1.03), (0.97, 1.03), (1.03, 0.97)):
        assert error(a * curve.s_min, b * curve.e_min) > least
    assert 0.05 < least < 0.15 and 100 < curve.b_crit < 220
