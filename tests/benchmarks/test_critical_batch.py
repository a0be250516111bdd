"""The critical batch size: tunings, plan, one large batch, and the quick form end to end."""

import numpy as np
import pytest
from _adasum_training import step_at
from _critical_plan import PATIENCE, PLANS, best_rates, check, judged_at, next_rate, planned
from critical_batch import row_of, show
from mindspore import Tensor

from labkit.errors import InputError
from labkit.labs.compare import parameter_values
from labkit.labs.results.races import CriticalBatch as Stored
from labkit.labs.results.races import adasum_setting as setting_of
from tests.support.races import quick_twice

RATES = (0.01, 0.02, 0.04, 0.08)
PLAN = PLANS["all"]


def tuned(updates, start):
    """Return the rates that a tuning tries in order; ``updates``: rate -> updates to the target."""
    tried = {}
    while (rate := next_rate(RATES, start, tried)) is not None:
        tried[rate] = updates[rate]
    return list(tried)


@pytest.mark.parametrize(
    ("updates", "start", "tried"),
    [
        ((400, 300, 200, 500), 0.02, [0.02, 0.04, 0.08]),
        ((400, 300, 350, None), 0.02, [0.02, 0.04, 0.01]),
        ((400, 300, 300, None), 0.02, [0.02, 0.04, 0.01]),  # the first of two equal results
        ((400, 300, 200, 100), 0.08, [0.08, 0.04]),
        ((100, 200, 300, 400), 0.01, [0.01, 0.02]),
        ((400, 300, None, None), 0.08, [0.08, 0.04, 0.02, 0.01]),
    ],
)
def test_a_tuning_ends_between_two_neighbours_that_are_no_better(updates, start, tried):
    assert tuned(dict(zip(RATES, updates, strict=True)), start) == tried


def test_a_tuning_that_never_gets_there_is_refused():
    with pytest.raises(InputError, match="no learning rate of a tuning got to the target"):
        tuned(dict.fromkeys(RATES), 0.02)


def test_what_is_judged_grows_by_five_per_cent():
    judged = sorted(judged_at(5000))
    assert judged[0] == 32 and judged[-1] == 5000 and len(judged) < 120
    ratios = np.divide(judged[1:], judged[:-1])
    assert 1.02 < ratios[:-1].min() and ratios.max() < 1.08
    assert judged_at(20) == {20} and max(judged_at(300)) == 300


def carried_out(updates_of, fails=()):
    """Return the rows of the plan if trainings take ``updates_of(workers, reduction, rate)``.

    Trainings in ``fails``, as (reduction, workers, rate, seed), never reach the target.
    """
    rows = []
    for stage, setting, seed, most in planned(PLAN, rows):
        which = setting["reduction"], setting["workers"], setting["learning_rate"]
        needed = updates_of(which[1], which[0], which[2])
        there = needed if needed <= most and (*which, seed) not in fails else None
        rows.append({"stage": stage, **setting, "seed": seed, "most": most, "to_target": there})
    return rows


def lowest_at(best, fewest=lambda workers: 200):
    """Return a function with its minimum ``fewest(workers)`` at ``best(workers, reduction)``."""

    def updates_of(workers, reduction, rate):
        off = np.log2(rate / best(workers, reduction))
        return round(fewest(workers) * (1 + off**2))

    return updates_of


def test_the_plan_races_the_best_rate_of_each_number_of_workers():
    """The mean's best rate grows with the workers up to 0.06; Adasum's stays at 0.015."""
    updates_of = lowest_at(
        lambda workers, of: 0.015 if of == "adasum" else min(0.06, 0.015 * workers),
        lambda workers: 200 * (1 + 4 / workers),
    )
    rows = carried_out(updates_of)
    best = best_rates(PLAN, rows)
    assert list(best["mean"].values()) == [0.015, 0.03, *[0.06] * 4]
    assert set(best["adasum"].values()) == {0.015}
    raced = [row for row in rows if row["stage"] == "race"]
    assert len(raced) == 3 * 6 + 3 * 5 and {row["seed"] for row in raced} == set(PLAN["seeds"])
    for row in raced:
        name = row["reduction"] or "mean"
        assert row["learning_rate"] == best[name][str(row["workers"])]
        assert row["most"] == PATIENCE * row["to_target"]
    assert len({repr({**row, "most": 0}) for row in rows}) == len(rows)  # no training twice


def test_a_training_of_a_tuning_ends_where_the_best_one_before_got_there():
    rows = carried_out(lambda workers, reduction, rate: round(3 / rate + 2000 * rate))
    alone = [row for row in rows if row["stage"] == "tune" and row["workers"] == 1]
    assert [row["learning_rate"] for row in alone] == [0.015, 0.03, 0.06]
    assert [row["most"] for row in alone] == [PLAN["most"], 230, 160]
    assert [row["to_target"] for row in alone] == [230, 160, None]
    assert {row["seed"] for row in alone} == {PLAN["tuning_seed"]}


def test_adasum_is_raced_at_the_single_workers_rate_and_at_its_own():
    rows = carried_out(lowest_at(lambda workers, of: 0.0075 if of == "adasum" else 0.015))
    rates = {
        reduction: {
            r["learning_rate"] for r in rows if (r["stage"], r["reduction"]) == ("race", reduction)
        }
        for reduction in ("mean", "adasum")
    }
    assert rates == {"mean": {0.015}, "adasum": {0.0075, 0.015}}
    first = {}
    for row in rows:
        first.setdefault((row["stage"], row["reduction"], row["workers"]), row["learning_rate"])
    assert {first["tune", "adasum", workers] for workers in PLAN["workers"][1:]} == {0.015}


def test_adasum_follows_the_single_worker_to_the_rate_that_loses_no_seed():
    """In the quick measurement the tuned rate lost a seed, and Adasum was raced at that rate."""
    updates_of = lowest_at(lambda workers, of: 0.06 if of == "adasum" else 0.03)
    rows = carried_out(updates_of, {(None, 1, 0.03, 2)})
    alone = best_rates(PLAN, rows)["adasum"]["1"]
    assert alone != 0.03
    raced = [r for r in rows if r["stage"] == "race" and r["reduction"] == "adasum"]
    assert {0.06, alone} == {row["learning_rate"] for row in raced}


@pytest.mark.parametrize("reduction", ["mean", "adasum"])
def test_a_rate_that_loses_a_seed_does_not_count_and_the_next_best_is_raced(reduction):
    updates_of = lowest_at(lambda workers, of: 0.06 if workers >= 8 else 0.03)
    lost = {(reduction, 8, 0.06, 2)}
    rows = carried_out(updates_of, lost)
    raced = [r for r in rows if r["stage"] == "race" and r["reduction"] == reduction]
    rates = [row["learning_rate"] for row in raced if row["workers"] == 8]
    # The tuning starts at 0.03, the single worker's rate, at which Adasum is raced first.
    assert rates == sorted([0.03] * 3 + [0.06] * 3, reverse=reduction == "mean")
    best = best_rates(PLAN, rows)[reduction]
    assert (best["4"], best["8"], best["16"]) == (0.03, 0.03, 0.06)
    lost.add((reduction, 8, 0.03, 1))
    assert best_rates(PLAN, carried_out(updates_of, lost))[reduction]["8"] is None


@pytest.fixture
def measured():
    """The results of a plan whose trainings take 200 (1 + 128 / B) updates, as they are stored."""
    rows, curves = [], {}
    for stage, setting, seed, most in planned(PLAN, rows):
        off = 1 + np.log2(setting["learning_rate"] / 0.015) ** 2
        there = round(200 * (1 + 128 / (32 * setting["workers"])) * off)
        point = {"update": min(there, most), "accuracy": 0.9 + 0.08 * (there <= most), "loss": 0.1}
        outcome = {"curve": [point], "failure": "", "processor_seconds": 1.0}
        run = len(rows) + 1
        limits = {"most": most, "target": PLAN["target"]}
        rows.append(row_of(run, stage, setting, seed, outcome, **limits))
        curves[run] = [point]
    return Stored({"plan": PLAN, "tuned": best_rates(PLAN, rows)}, rows, curves)


def test_what_is_printed_has_every_batch_and_the_critical_one(measured, capsys):
    check(measured)
    show(measured)
    printed = capsys.readouterr().out
    for method in ("mean", "adasum", "adasum tuned"):
        assert len([line for line in printed.splitlines() if line.startswith(f"{method} ")]) >= 7
    assert "1024" in printed and "128 128 128" in printed


@pytest.mark.parametrize("change", [{"updates": 5}, {"to_target": 100}, {"learning_rate": 0.01}])
def test_a_planted_tuning_is_refused(measured, change):
    row = next(r for r in measured.rows if r["stage"] == "tune" and r["workers"] > 1)
    row.update(change)
    with pytest.raises(InputError, match="row |tuning|as planned"):
        check(measured)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.long)])
def test_the_mean_of_workers_is_one_worker_with_a_large_batch(workers):
    """Momentum and mean are linear in the moves, so three updates agree up to rounding."""
    random = np.random.default_rng(0)
    images = random.normal(size=(3, workers * 32, 1, 32, 32)).astype(np.float32)
    labels = random.integers(0, 10, (3, workers * 32)).astype(np.int32)
    ends = []
    for turns in (workers, 1):
        network, step = step_at(setting_of(0.03, turns, "mean"), 0.03, seed=1)
        start = parameter_values(network)
        for x, y in zip(images, labels, strict=True):
            for part in zip(np.split(x, turns), np.split(y, turns), strict=True):
                step(*map(Tensor, part))
        ends.append(parameter_values(network))
    for name, end in ends[0].items():
        moved = np.abs(ends[1][name] - start[name]).max()
        # Weights of 0.02 to 0.2 in float32 resolve a move to 1e-8.
        assert moved > 1e-5
        np.testing.assert_allclose(end, ends[1][name], rtol=0, atol=1e-3 * moved + 1e-8)


@pytest.mark.long
def test_the_quick_measurement_runs_and_resumes(programs, root, mnist, tmp_path):
    printed, stored = quick_twice("critical_batch", programs, root, mnist, tmp_path)
    check(stored)
    assert "B_crit of each seed alone" in printed
