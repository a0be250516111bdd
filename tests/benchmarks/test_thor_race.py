"""The race's program: which training wins a tuning, and the quick form from end to end."""

import json

import numpy as np
import pytest
from _race import make_step
from _race_table import row_of, winner
from mindspore import Tensor

from labkit.algorithms.thor import TraceRule
from labkit.runtime import pynative
from tests.support.races import quick_twice


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
def test_who_wins_the_tuning(rows, won):
    assert winner(rows, list("abc")[: len(rows)], 0.98) == "abc"[won]


def test_the_row_of_a_training_that_failed_at_once():
    outcome = {"curve": [], "failure": "FloatingPointError: factors"}
    made = row_of(1, "sweep", {"net": "LeNet"}, 1, outcome, varied="split", value=None)
    assert made["value"] == "null" and made["updates"] == 0
    assert made["best_accuracy"] is None and made["to_0.98"] is None


def test_the_resnet_of_the_race(runtime):
    """The quick form trains no ResNet, because LeNet compiles in a fifth of the time."""
    setting = {"net": "ResNet", "optimizer": "THOR", "learning_rate": 0.1, "epochs": 1}
    network, step = make_step(setting | {"damping": 1.0, "trace_rule": [0.1, 0.001]}, 6, 1)
    grey = np.random.default_rng(0).normal(size=(2, 1, 32, 32)).astype(np.float32)
    with pynative():
        logits = network(Tensor(grey)).asnumpy()
    assert logits.shape == (2, 10) and np.isfinite(logits).all()
    assert len(step.update.layers) == 13  # with 2 convolutions a block, 3 of them downsampling
    assert step.update.options.trace_rule == TraceRule(0.1, 0.001)


@pytest.mark.long
def test_the_quick_race_runs_and_resumes(programs, root, mnist, tmp_path):
    printed, stored = quick_twice("thor_race", programs, root, mnist, tmp_path, timed=True)
    assert "LeNet, whole training set" in printed and "Sweeps" in printed
    stages = [row["stage"] for row in stored.rows]
    assert {stage: stages.count(stage) for stage in stages} == {"tune": 6, "race": 6, "sweep": 2}
    thor = stored.select(stage="race", optimizer="THOR")
    assert all(row["refreshes"] > 0 and row["retries"] == 0 for row in thor)
    times = json.loads((tmp_path / "runs" / "bench" / "thor_race.json").read_text())["times"]
    assert set(times["dense"]) == {"Momentum", "THOR", "THOR, refresh", "THOR, cached"}
    assert set(times["LeNet"]) == {"Momentum", "THOR"}
