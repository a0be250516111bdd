"""What the races choose and train: winners, tunings, cosines, the bugs; what they resume."""

import numpy as np
import pytest
import race
from adasum_race import cosines_of, make_step, setting_of
from mindspore import Tensor

from labkit.labs.compare import parameter_values
from labkit.labs.results import LAYERS
from labkit.reference import cosine


def test_a_race_trains_only_what_is_not_finished(tmp_path):
    made = []

    def train(setting, data, seed, *, most):
        made.append((setting["rate"], seed, data))
        point = {"update": most, "accuracy": setting["rate"], "loss": 0.5, "training_loss": 1.0}
        return {"curve": [point], "failure": ""}

    def planned(plan, rows):
        for rate in (0.1, 0.2):
            yield race.training("tune", "validation", {"rate": rate}, 7, {"most": 3})
        best = max(rows, key=lambda row: row["last_accuracy"])["rate"]
        yield race.training("race", "test", {"rate": best}, 1, {"most": 5}, more=2)

    plan = {"images": {"train": 10}}
    images = lambda plan, data: "of {}".format  # noqa: E731
    own = race.Race("own", plan, planned, train, images=images, no_curves="tune")
    for _ in range(2):
        stored = own.trained(None, tmp_path)
    assert made == [(0.1, 7, "of validation"), (0.2, 7, "of validation"), (0.2, 1, "of test")]
    assert stored.curves.keys() == {3} and stored.head["plan"] == plan
    assert stored.rows[2] == {"run": 3, "stage": "race", "rate": 0.2, "seed": 1, "more": 2,
        "updates": 5, "last_accuracy": 0.2, "last_loss": 0.5, "failure": None}  # fmt: skip


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


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.long)])
def test_the_mean_of_workers_is_one_worker_with_a_large_batch(workers):
    """Momentum and mean are linear in the moves, so three updates agree up to rounding."""
    random = np.random.default_rng(0)
    images = random.normal(size=(3, workers * 32, 1, 32, 32)).astype(np.float32)
    labels = random.integers(0, 10, (3, workers * 32)).astype(np.int32)
    ends = []
    for turns in (workers, 1):
        network, step = make_step(setting_of(0.03, turns, "mean"), 1)
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
