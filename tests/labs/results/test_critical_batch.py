"""The critical batch size: recovery from closed forms, both limits, refusals and the rows."""

import math

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.labs.results import Stored, critical_batch
from labkit.labs.results.adasum_race import setting_of
from labkit.labs.results.critical_batch import Curve, fit

BATCHES = [32 * 2**n for n in range(7)]


@pytest.fixture
def stored():
    """Two numbers of workers, two seeds; Adasum's best rate is not the single worker's."""
    reached = {
        ("mean", 1, 0.01): (1000, 1100),
        ("mean", 2, 0.02): (600, 640),
        ("adasum", 2, 0.01): (500, 540),
        ("adasum", 2, 0.04): (450, None),
    }
    rows = [
        {
            "stage": "race",
            **setting_of(rate, workers, reduction),
            "seed": seed,
            "to_target": updates,
        }
        for (reduction, workers, rate), both in reached.items()
        for seed, updates in zip((2, 1), reversed(both), strict=True)
    ]
    rows.append({**rows[0], "stage": "tune", "to_target": 1})
    tuned = {"mean": {"1": 0.01, "2": 0.02}, "adasum": {"1": 0.01, "2": 0.04}}
    return Stored({"tuned": tuned, "plan": {"workers": [1, 2]}}, rows, {})


@pytest.mark.parametrize("b_crit", [10.0, 150.0, 20_000.0])
@pytest.mark.parametrize("batches", [BATCHES, BATCHES[2:4]])
def test_updates_of_the_closed_form_give_it_back(b_crit, batches):
    curve = fit({batch: [200 * (1 + b_crit / batch)] * 3 for batch in batches})
    assert curve.s_min == pytest.approx(200, rel=1e-3)
    assert curve.b_crit == pytest.approx(b_crit, rel=1e-3)
    assert curve.error < 1e-3


def test_at_the_critical_batch_size_updates_and_images_are_twice_the_fewest():
    """(S / S_min - 1) (E / E_min - 1) = 1 on the whole curve; at B_crit both factors are 1."""
    curve = Curve(200.0, 30_000.0, 0.0)
    for batch in BATCHES:
        updates = curve.updates(batch)
        excess = (updates / curve.s_min - 1) * (batch * updates / curve.e_min - 1)
        assert excess == pytest.approx(1, rel=1e-12)
    assert curve.b_crit == 150 and curve.updates(150) == 2 * curve.s_min


def test_updates_that_do_not_fall_are_a_flat_curve():
    curve = fit({batch: [300.0, 300.0] for batch in BATCHES})
    assert curve.b_crit == 0 and curve.e_min == 0 and curve.error == pytest.approx(0, abs=1e-12)
    assert curve.updates(32) == curve.updates(1e9) == pytest.approx(300)
    rising = fit({batch: [300.0 + batch] for batch in BATCHES})
    assert rising.b_crit == 0 and rising.error > 0.5


def test_updates_that_halve_with_every_doubling_scale_perfectly():
    curve = fit({batch: [96_000 / batch] for batch in BATCHES})
    assert curve.b_crit == math.inf and curve.s_min == 0
    assert curve.updates(32) == pytest.approx(3000) and curve.updates(2048) < 50
    steeper = fit({batch: [1e9 / batch**2] for batch in BATCHES})
    assert steeper.b_crit == math.inf and steeper.error > 0.5


def test_no_other_curve_is_nearer_in_the_logarithm():
    """For noisy updates, the error is the root mean square and less than those of neighbours."""
    random = np.random.default_rng(0)
    noisy = {b: 200 * (1 + 150 / b) * np.exp(0.1 * random.normal(size=3)) for b in BATCHES}
    curve = fit({batch: list(updates) for batch, updates in noisy.items()})

    def error(s_min, e_min):
        off = [np.log(noisy[b] / Curve(s_min, e_min, 0.0).updates(b)) for b in BATCHES]
        return np.sqrt(np.mean(np.square(off)))

    assert curve.error == pytest.approx(error(curve.s_min, curve.e_min), rel=1e-6)
    for a, b in ((0.97, 1), (1.03, 1), (1, 0.97), (1, 1.03), (0.97, 1.03), (1.03, 0.97)):
        assert error(a * curve.s_min, b * curve.e_min) > curve.error
    assert 0.05 < curve.error < 0.15 and 100 < curve.b_crit < 220


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ({}, "two batch sizes or more, got \\[\\]"),
        ({32: [100.0, 200.0]}, "two batch sizes or more, got \\[32\\]"),
        ({32: [], 64: [7.0]}, "two batch sizes or more, got \\[64\\]"),
        ({32: [], 64: []}, "two batch sizes or more, got \\[\\]"),
        ({32: [100.0], 64: [None]}, "updates: expected a finite number > 0, got None"),
        ({32: [100.0], 64: [0]}, "updates: expected a finite number > 0, got 0"),
        ({32: [100.0], 64: [math.inf]}, "updates: expected a finite number > 0, got inf"),
        ({0: [100.0], 64: [50.0]}, "batch size: expected a finite number > 0, got 0"),
    ],
)
def test_what_is_no_curve_is_refused(updates, message):
    with pytest.raises(InputError, match=message):
        fit(updates)


def test_updates_are_by_images_and_seed_at_each_methods_rate(stored):
    assert critical_batch.updates(stored, "mean") == {32: [1000, 1100], 64: [600, 640]}
    assert critical_batch.updates(stored, "adasum") == {32: [1000, 1100], 64: [500, 540]}
    assert critical_batch.updates(stored, "adasum tuned") == {32: [1000, 1100], 64: [450, None]}
    rates = [critical_batch.rate_of(stored, method, 2) for method in critical_batch.METHODS]
    assert rates == [0.02, 0.01, 0.04]


def test_there_is_a_curve_of_all_seeds_and_one_of_each(stored):
    together, alone = critical_batch.curves(stored, "mean")
    assert together == fit({32: [1000, 1100], 64: [600, 640]})
    assert alone == [fit({32: [1000], 64: [600]}), fit({32: [1100], 64: [640]})]
    assert alone[0].b_crit == pytest.approx(128, rel=1e-3)  # 200 + 25 600 / B


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda s: critical_batch.updates(s, "sum"), "unknown method 'sum'"),
        (lambda s: critical_batch.rate_of(s, "mean", 4), "workers: expected one of .*1, 2, got 4"),
        (lambda s: critical_batch.curves(s, "adasum tuned"), "a finite number > 0, got None"),
    ],
)
def test_what_was_not_measured_is_refused(stored, ask, message):
    with pytest.raises(InputError, match=message):
        ask(stored)


def test_a_measurement_that_is_not_there_names_its_program(tmp_path):
    with pytest.raises(InputError, match="benchmarks/critical_batch.py makes it"):
        critical_batch.load(tmp_path)
