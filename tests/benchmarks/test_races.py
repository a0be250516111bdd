"""What the races choose and train: winners, tunings, cosines, the bugs; each quick form, twice."""

import numpy as np
import pytest
import thor_race
from adasum_race import adasum_setting, best, cosines_of, make_step, step_at
from critical_batch import PATIENCE, PLANS, best_rates, judged_at, next_rate, planned
from mindspore import Tensor
from race import images_for, steps_to, write

from labkit.errors import InputError
from labkit.labs import results
from labkit.labs.compare import parameter_values
from labkit.labs.results import CURVES, FOLDER, LAYERS
from labkit.reference import cosine
from labkit.runtime import pynative
from tests.support.races import quick_twice


@pytest.mark.long
@pytest.mark.parametrize("name", CURVES)
def test_the_quick_race_runs_and_resumes(name, programs, root, request, tmp_path):
    if name == "migration_race":
        pytest.importorskip("torch")
        data = request.getfixturevalue("digits")(60, 40)
    else:
        data = request.getfixturevalue("mnist")
    stored = quick_twice(name, programs, root, data, tmp_path)
    assert all(row["last_accuracy"] is not None for row in stored.rows)
    losses = [points[0]["training_loss"] for points in stored.curves.values()]
    if name == "thor_race":
        thor = stored.select(stage="race", optimizer="THOR")
        assert all(row["refreshes"] > 0 and row["retries"] == 0 for row in thor)
    if name == "migration_race":  # the last one has the images of each batch backwards
        assert losses[0] == pytest.approx(losses[2], rel=1e-5)
        assert len({points[-1]["training_loss"] for points in stored.curves.values()}) == 3
    if name == "subspace_race":
        (bfgs,) = stored.select(stage="compare", method="projected_bfgs")
        assert bfgs["searches"] == bfgs["updates"] == 4 and bfgs["explained"] > 0.5


def test_the_published_order_of_rescales_is_a_shift(mnist):
    few = {"held_out": 0, "train": 64, "test": 32}
    ours, published = (images_for(mnist, part, **few) for part in ("test", "as published"))
    for name in ("images", "judged_images"):
        shift = getattr(published, name) - getattr(ours, name)
        np.testing.assert_allclose(shift, 0.1307 / 0.3081 * (1 - 1 / 255), atol=1e-6)


def row(steps, best=0.99, loss=0.05):
    return {"to_0.98": steps, "best_accuracy": best, "last_loss": loss}


@pytest.mark.parametrize(
    ("rows", "won"),
    [
        ([row(390), row(351), row(429)], 1),
        ([row(None, 0.9799), row(780, 0.98)], 1),
        ([row(351, loss=0.07), row(351, loss=0.06)], 1),
        ([row(None, 0.95), row(None, 0.97), row(None, None)], 1),
        ([row(39, 0.98, 9.0), row(78, 0.999, 0.01)], 0),
    ],
    ids=["fewest updates", "getting there", "smaller loss", "best accuracy", "updates first"],
)
def test_who_wins_the_tuning_of_thor(rows, won):
    assert thor_race.winner(list(zip(rows, "abc", strict=False)), 0.98) == "abc"[won]


def test_the_resnet_of_thors_race(runtime):
    """The quick form trains no ResNet, because LeNet compiles in a fifth of the time."""
    setting = {"net": "ResNet", "optimizer": "THOR", "learning_rate": 0.1, "epochs": 1}
    setting |= {"damping": 1.0, "trace_rule": [0.1, 0.001]}
    network, step = thor_race.make_step(setting, 6, 1)
    grey = np.random.default_rng(0).normal(size=(2, 1, 32, 32)).astype(np.float32)
    with pynative():
        logits = network(Tensor(grey)).asnumpy()
    assert logits.shape == (2, 10) and np.isfinite(logits).all()
    assert len(step.update.layers) == 13  # with 2 convolutions a block, 3 of them downsampling


def test_the_best_of_adasums_tuning_is_accurate_then_sure_and_has_not_failed():
    figures = [(0.9, 0.3, None), (0.95, 0.4, None), (0.95, 0.2, None), (0.99, 0.1, "E")]
    rows = [dict(zip(("last_accuracy", "last_loss", "failure"), f, strict=True)) for f in figures]
    assert best(rows) is rows[2]
    with pytest.raises(InputError, match="every training of a tuning failed"):
        best(rows[3:])


def test_the_cosines_are_the_mean_over_pairs():
    random = np.random.default_rng(0)
    vectors = {
        f"{name}.weight": (random.normal(size=(5, 30)) + 0.5).astype(np.float32) for name in LAYERS
    }
    vectors["fc1.weight"][2] = 0
    vectors["fc2.weight"][1, 3] = np.nan
    cosines = cosines_of(vectors)
    assert set(cosines) == set(LAYERS) - {"fc1", "fc2"}
    for name, value in cosines.items():
        rows = vectors[f"{name}.weight"]
        pairs = [cosine(rows[i], rows[j]) for i in range(5) for j in range(i)]
        assert value == pytest.approx(np.mean(pairs), abs=1e-12)


def test_steps_to_an_accuracy_end_at_the_first_point_that_has_it():
    judged = ((1, None), (39, 0.97), (78, 0.985), (117, 0.98), (156, 0.99))
    curve = [{"update": update, "accuracy": accuracy} for update, accuracy in judged]
    reached = [steps_to(curve, target) for target in (0.5, 0.98, 0.985, 0.99, 0.991)]
    assert reached == [39, 78, 78, 156, None] and steps_to([], 0.5) is None


def test_adasums_rate_warms_up_and_ends_at_zero():
    _, step = make_step(adasum_setting(0.03, 2), 100, seed=1)
    rates = step.optimizer.learning_rate.learning_rate.asnumpy()
    assert rates.shape == (100,) and rates.argmax() == 17
    assert rates[17] == pytest.approx(0.03) and rates[0] == 0 and rates[-1] < 0.03 / 80


RATES = (0.01, 0.02, 0.04, 0.08)


@pytest.mark.parametrize(
    ("updates", "start", "tried"),
    [
        ((400, 300, 200, 500), 0.02, [0.02, 0.04, 0.08]),
        ((400, 300, 350, None), 0.02, [0.02, 0.04, 0.01]),
        ((400, 300, 300, None), 0.02, [0.02, 0.04, 0.01]),  # the first of two equal results
        ((400, 300, 200, 100), 0.08, [0.08, 0.04]),
        ((400, 300, None, None), 0.08, [0.08, 0.04, 0.02, 0.01]),
    ],
)
def test_a_tuning_ends_between_two_neighbours_that_are_no_better(updates, start, tried):
    got = {}
    while (rate := next_rate(RATES, start, got)) is not None:
        got[rate] = updates[RATES.index(rate)]
    assert list(got) == tried
    with pytest.raises(InputError, match="no learning rate of a tuning got to the target"):
        next_rate(RATES, 0.02, dict.fromkeys(RATES))


def test_what_is_judged_grows_by_five_per_cent():
    judged = sorted(judged_at(5000))
    assert judged[0] == 32 and judged[-1] == 5000 and len(judged) < 120
    ratios = np.divide(judged[1:], judged[:-1])
    assert 1.02 < ratios[:-1].min() and ratios.max() < 1.08


PLAN = PLANS["all"]


def carried_out(best, fails=()):
    """Return the rows if trainings take fewest updates at the rate ``best(workers, reduction)``.

    Trainings in ``fails``, as (reduction, workers, rate, seed), never reach the target.
    """
    rows = []
    for stage, setting, seed, _, limits, columns in planned(PLAN, rows):
        which = setting["reduction"], setting["workers"], setting["learning_rate"]
        needed = round(200 * (1 + np.log2(which[2] / best(which[1], which[0])) ** 2))
        there = needed if needed <= limits["most"] and (*which, seed) not in fails else None
        rows.append({"stage": stage, **setting, "seed": seed, **columns, "to_target": there})
    return rows


def test_the_critical_batch_is_raced_at_the_best_rate_of_each_number_of_workers():
    """The mean's best rate grows with the workers up to 0.06; Adasum's stays at 0.015."""
    rows = carried_out(lambda n, of: 0.015 if of == "adasum" else min(0.06, 0.015 * n))
    rates = best_rates(PLAN, rows)
    assert list(rates["mean"].values()) == [0.015, 0.03, *[0.06] * 4]
    assert set(rates["adasum"].values()) == {0.015}
    raced = [row for row in rows if row["stage"] == "race"]
    assert len(raced) == 3 * 6 + 3 * 5 and {row["seed"] for row in raced} == set(PLAN["seeds"])
    assert all(row["most"] == PATIENCE * row["to_target"] for row in raced)
    assert len({repr({**row, "most": 0}) for row in rows}) == len(rows)  # no training twice


@pytest.mark.parametrize("reduction", ["mean", "adasum"])
def test_a_rate_that_loses_a_seed_does_not_count_and_the_next_best_is_raced(reduction):
    lost = {(reduction, 8, 0.06, 2)}
    rows = carried_out(lambda workers, of: 0.06 if workers >= 8 else 0.03, lost)
    raced = [r for r in rows if r["stage"] == "race" and r["reduction"] == reduction]
    rates = [row["learning_rate"] for row in raced if row["workers"] == 8]
    # The tuning starts at 0.03, the single worker's rate, at which Adasum is raced first.
    assert rates == sorted([0.03] * 3 + [0.06] * 3, reverse=reduction == "mean")
    chosen = best_rates(PLAN, rows)[reduction]
    assert (chosen["4"], chosen["8"], chosen["16"]) == (0.03, 0.03, 0.06)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.long)])
def test_the_mean_of_workers_is_one_worker_with_a_large_batch(workers):
    """Momentum and mean are linear in the moves, so three updates agree up to rounding."""
    random = np.random.default_rng(0)
    images = random.normal(size=(3, workers * 32, 1, 32, 32)).astype(np.float32)
    labels = random.integers(0, 10, (3, workers * 32)).astype(np.int32)
    ends = []
    for turns in (workers, 1):
        network, step = step_at(adasum_setting(0.03, turns, "mean"), 0.03, seed=1)
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


def test_what_is_written_is_read(tmp_path):
    stored = results.load("thor_race")
    write("thor_race", stored, tmp_path)
    assert vars(results.load("thor_race", tmp_path)) == vars(stored)
    for name in ("thor_race.csv", "thor_race_curves.csv"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
