"""The stored tables agree with their plans; the labs check most of what they say about them."""

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import race
from adasum_race import setting_of as adasum_setting
from subspace_race import setting_of

from labkit.labs import results
from labkit.labs.results import LAYERS

NAMES = """thor_race adasum_race subspace_race migration_race critical_batch
    accumulation_race language_race""".split()
STORED = {name: results.load(name) for name in NAMES}
THOR, ADASUM, SUBSPACE, MIGRATION, *_ = STORED.values()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_its_plan_says_and_is_small(name):
    """Plan and curves give all fields of the rows and what is decided in the head."""
    stored, made_by = STORED[name], importlib.import_module(name).RACE
    plan, rows = stored.head["plan"], []
    assert plan == json.loads(json.dumps(made_by.plan))
    for run, training in enumerate(made_by.planned(plan, rows), start=1):
        row = stored.rows[run - 1]
        expected = {"run": run} | training.row
        if row["stage"] != made_by.no_curves:
            expected |= made_by.end(plan, row, row | {"curve": stored.curves.get(run, [])})
            assert expected.keys() == row.keys()
        assert {n: str(row[n]) for n in expected} == {n: str(v) for n, v in expected.items()}
        rows.append(row)
    assert len(rows) == len(stored.rows)
    decided = json.loads(json.dumps(made_by.decided(plan, stored.rows)))
    assert decided == {field: stored.head[field] for field in decided}
    assert stored.head["command"] == f"python benchmarks/{name}.py --all"
    assert {"labkit", "mindspore", "numpy", "python"} <= stored.head["versions"].keys()
    files = list(Path(race.FOLDER).glob(f"{name}*.*"))
    assert sum(path.stat().st_size for path in files) < 250_000


def test_what_is_written_is_read(tmp_path):
    race.write("thor_race", THOR, tmp_path)
    assert vars(results.load("thor_race", tmp_path)) == vars(THOR)
    for name in ("thor_race.csv", "thor_race_curves.csv"):
        assert (tmp_path / name).read_bytes() == (race.FOLDER / name).read_bytes()


def test_the_settings_are_the_sources():
    """Adasum: 16 workers, 60 000 images, batch 32 per worker, two epochs. Two stages: 5 000 images,
    two epochs with 40 updates in all."""
    updates = {(row["stage"], row["workers"]): row["updates"] for row in ADASUM.rows}
    assert updates["race", 16] == 234 and updates["race", 1] == 3750
    assert updates["tune", 1] == 3124
    for setting, updates in (("batch 8", 6 * 625), ("batch 32", 14 * 156)):
        assert set(two_stages("stage_one", "updates", setting=setting)) == {updates}
    for column in ("updates", "searches"):
        assert set(two_stages("projected_bfgs", column)) == {40}
    assert min(two_stages("projected_bfgs", "explained")) > 0.99


def curve_of(seed=1, **setting):
    setting = adasum_setting(**{"learning_rate": 0.03} | setting)
    (row,) = ADASUM.select(stage="race", seed=seed, **setting)
    return ADASUM.curves[row["run"]]


@pytest.mark.parametrize(("seed", "on"), [(1, "updates"), (2, "updates"), (3, "updates"),
                                          (1, "gradients")])  # fmt: skip
def test_the_workers_vectors_are_parallel_early_and_not_late(seed, on):
    """The last layer's moves are less parallel than the others', and gradients than moves."""
    for layer in LAYERS:
        cosines = [point[f"cosine_{layer}"] for point in curve_of(seed, on=on)]
        most = 0.25 if on == "gradients" else 0.5 if layer == "fc3" else 0.7
        assert max(cosines[:3]) > most and cosines[-1] < 0.1, layer


def test_the_sum_is_the_mean_at_16_times_the_rate():
    """They agree at the first judged point, before rounding separates them."""
    mean, total = (
        curve_of(learning_rate=rate, reduction=reduction)[0]["loss"]
        for reduction, rate in (("mean", 0.12), ("sum", 0.0075))
    )
    assert math.isclose(mean, total, rel_tol=1e-6)


def two_stages(method, column="last_accuracy", **which):
    """Return a column by seed, with the five seeds of stage "more" last."""
    setting = setting_of(SUBSPACE.head["plan"]["settings"], method, **which)
    rows = SUBSPACE.select(stage=("compare", "sweep", "more"), **setting)
    return [row["last_accuracy"] if row[column] is None else row[column] for row in rows]


def test_an_epoch_of_searches_gains_two_points_on_eight_seeds_and_the_average_as_much():
    """With five seeds more than lab 05 shows, whose first stages end better or worse by chance."""
    ends, average = (np.array(two_stages(method)) for method in ("stage_one", "average"))
    searched, same = (
        np.array(two_stages(method, "one_epoch_accuracy"))
        for method in ("projected_bfgs", "same_rate")
    )
    gained = searched - ends
    assert len(gained) == 8 and min(gained[:3].mean(), gained.mean()) >= 0.02 and min(gained) > 0
    assert (average > searched).sum() >= 6 and abs((same - ends[: len(same)]).mean()) < 0.005
    # After 6 epochs with 30 % random labels these are not yet learnt by heart: both help equally.
    early = {
        method: np.array(two_stages(method, setting="batch 8", noise=0.3))
        for method in ("stage_one", "average", "projected_bfgs")
    }
    assert min(early["projected_bfgs"] - early["stage_one"]) > 0.01
    assert abs((early["projected_bfgs"] - early["average"]).mean()) < 0.003


def test_mindspore_takes_twice_as_long_as_pytorch_on_one_core():
    times = MIGRATION.head["times"]
    for what, ratio, avx2 in (("training", 2.19, 1.42), ("inference", 2.40, 1.41)):
        own = times["PyTorch"][what]
        assert times["MindSpore"][what] / own == pytest.approx(ratio, abs=0.005)
        assert times["PyTorch, AVX2"][what] / own == pytest.approx(avx2, abs=0.005)
