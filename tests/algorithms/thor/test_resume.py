"""A THOR training is not resumed with other options.

That a resumed one ends as the uninterrupted one is in tests/training/test_resume.py.
"""

import json

import pytest
from mindspore import nn

from labkit.algorithms.thor import LevenbergMarquardt, ThorStep, TraceRule
from labkit.errors import InputError
from labkit.steps.losses import LossNet
from labkit.training import checkpoint
from labkit.training.fit import fit
from tests.support.step_cells import assert_bit_equal, snapshot
from tests.support.trainings import dataset, loss_fn, network

pytestmark = pytest.mark.usefixtures("runtime")

ROWS = 26


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
            fit(other, dataset(rows=ROWS), 2, folder=tmp_path, progress=None, resume=True)
        assert_bit_equal(snapshot(other), fresh)
