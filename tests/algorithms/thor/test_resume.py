"""A THOR training resumed from a checkpoint ends as the uninterrupted one, to the last bit."""

import json
import shutil

import numpy as np
import pytest
from mindspore import nn

from labkit.algorithms.thor import LevenbergMarquardt, ThorStep, ThorUpdate, TraceRule
from labkit.errors import InputError
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.training import checkpoint
from labkit.training.fit import fit
from tests.support.step_cells import assert_bit_equal, snapshot
from tests.support.trainings import comparable, dataset, loss_fn, network

pytestmark = pytest.mark.usefixtures("runtime")

# 6 micro-batches an epoch: in groups of 4 the second one is a flushed tail.
EPOCHS, ROWS = 2, 26


def make(**options):
    """THOR with everything that has a state: rule, running average, schedules, batch norm."""
    net = network(norm=True)
    momentum = nn.Momentum(net.trainable_params(), nn.ExponentialDecayLR(0.05, 0.9, 1), 0.9, 1e-3)
    options = {
        "frequency": 3,
        "factor_frequency": 2,
        "factor_decay": 0.7,
        "trace_rule": TraceRule(0.2, 0.02),
        "adapt_damping": LevenbergMarquardt(0.5),
    } | options
    return ThorStep(LossNet(net, loss_fn()), momentum, 0.3, **options)


def make_accumulated():
    net = network()
    loss_net = LossNet(net, loss_fn())
    adam = nn.Adam(net.trainable_params(), 0.02)
    options = {"frequency": 2, "factor_decay": 0.5, "trace_rule": TraceRule(0.2, 0.02)}
    update = ThorUpdate(loss_net, adam, lambda number: 0.3 * 0.9**number, **options)
    return AccumulatedStep(loss_net, adam, 4, update=update)


def quiet_fit(step, folder, **options):
    return fit(step, dataset(rows=ROWS), EPOCHS, folder=folder, progress=None, **options)


@pytest.mark.parametrize("build", [make, make_accumulated], ids=["each batch", "accumulated"])
def test_from_any_checkpoint(build, tmp_path):
    """Between refreshes, at them, in the middle of a group, and at an epoch's end."""
    step = build()
    records = quiet_fit(step, tmp_path / "whole", checkpoint_every=1, keep=1000)
    final, rows = snapshot(step), comparable(records.rows)
    paths = checkpoint.checkpoints(tmp_path / "whole" / "checkpoint")
    assert len(paths) == EPOCHS * 6
    if build is make:
        # It did what it is to remember: some layer was skipped or frozen, the damping moved.
        assert step.update.refreshes.asnumpy().min() < 4
        assert step.update.damping.asnumpy() != np.float32(0.3)
    for path in paths[::2] + paths[5:6]:
        folder = tmp_path / path.stem
        (folder / "checkpoint").mkdir(parents=True)
        shutil.copy(path, folder / "checkpoint")
        position = json.loads(str(checkpoint.read(path)["labkit_position"]))
        lines = (tmp_path / "whole" / "records.csv").read_text().splitlines(keepends=True)
        (folder / "records.csv").write_text("".join(lines[: position["records"] + 1]))
        # The compiled step goes on from another state; one of them is built anew.
        resumed = build() if path is paths[4] else step
        again = quiet_fit(resumed, folder, resume=True)
        assert_bit_equal(snapshot(resumed), final)
        assert comparable(again.rows) == rows


DIFFERENT = {
    "frequency": 4,
    "factor_frequency": 3,
    "factor_decay": 0.6,
    "split": 64,
    "bias": "plain",
    "damping_split": "pi",
    "trace_rule": TraceRule(0.2, 0.03),
    "adapt_damping": LevenbergMarquardt(0.6),
    "kl_clip": 1e-3,
    "skip": ("4",),
    "nan": "drop",
}


def test_refused_with_other_options(tmp_path):
    step = make()
    fit(step, dataset(rows=ROWS), 1, folder=tmp_path, progress=None, checkpoint_every=1)
    settings = json.loads(
        str(checkpoint.read(checkpoint.checkpoints(tmp_path / "checkpoint")[-1])["labkit_position"])
    )["settings"]
    assert set(DIFFERENT) | {"damping", "formulas"} <= set(settings)
    for name, value in DIFFERENT.items():
        other = make(**{name: value})
        fresh = snapshot(other)
        with pytest.raises(InputError, match=f"cannot resume: settings is .*'{name}'"):
            quiet_fit(other, tmp_path, resume=True)
        assert_bit_equal(snapshot(other), fresh)
