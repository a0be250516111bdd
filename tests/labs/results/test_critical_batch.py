"""The critical batch size: recovery from closed forms, both limits, refusals and the rows."""

import math

import numpy as np
import pytest

from labkit.labs.results.races import METHODS, CriticalBatch, Curve, adasum_setting, fit

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
            **adasum_setting(rate, workers, reduction),
            "seed": seed,
            "to_target": updates,
        }
        for (reduction, workers, rate), both in reached.items()
        for seed, updates in zip((2, 1), reversed(both), strict=True)
    ]
    rows.append({**rows[0], "stage": "tune", "to_target": 1})
    tuned = {"mean": {"1": 0.01, "2": 0.02}, "adasum": {"1": 0.01, "2": 0.04}}
    return CriticalBatch({"tuned": tuned, "plan": {"workers": [1, 2]}}, rows, {})


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


def test_updates_are_by_images_and_seed_at_each_methods_rate(stored):
    assert stored.updates("mean") == {32: [1000, 1100], 64: [600, 640]}
    assert stored.updates("adasum") == {32: [1000, 1100], 64: [500, 540]}
    assert stored.updates("adasum tuned") == {32: [1000, 1100], 64: [450, None]}
    rates = [stored.rate_of(method, 2) for method in METHODS]
    assert rates == [0.02, 0.01, 0.04]
