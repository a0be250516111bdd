"""The plain update: the optimizer alone, one update per batch."""

import numpy as np
import pytest

from labkit import reference
from labkit.labs.compare import parameter_values
from labkit.steps.step import PlainStep
from tests import twins
from tests.support.step_cells import (
    assert_bit_equal,
    assert_close,
    momentum,
    regression,
    rows,
    snapshot,
    tensors,
)
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")


def build(**options):
    network, loss_net = regression()
    return network, PlainStep(loss_net, momentum(network), **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nonfinite": "propagate"},
        {"clip_norm": 0.5},
        {"loss_scale": 128.0},
        {"loss_scale": 128.0, "clip_norm": 0.5, "nonfinite": "propagate"},
        {"reduction": "sum"},
    ],
    ids=str,
)
def test_updates_are_those_of_the_reference(options, once):
    """w <- w - rate v, v <- 0.9 v + clipped gradient, in float64; each update's report agrees."""
    network, step = once(build, **options)
    weights = [parameter_values(network)[n].astype(np.float64) for n in ("weight", "bias")]
    velocities = [np.zeros_like(w) for w in weights]
    for call in range(5):
        arrays = rows(4, seed=call)
        step(*tensors(*arrays))
        loss, gradients = twins.linear_regression(*weights, *arrays)
        norm = twins.global_norm(gradients)
        if "clip_norm" in options:
            gradients = twins.clip_by_global_norm(gradients, options["clip_norm"])
        weights, velocities = reference.momentum_update(weights, velocities, gradients, 0.05)
        expected = dict(zip(("weight", "bias"), weights, strict=True))
        assert_close(parameter_values(network), expected, **TOLERANCE["float32, a few updates"])
        last = step.last_update
        assert (last.number, last.images) == (call + 1, 4)
        assert last.loss == pytest.approx(loss, rel=1e-5)
        assert last.gradient_norm == pytest.approx(norm, rel=1e-5)


def test_the_finite_check_changes_no_bit(once):
    states = []
    for options in ({}, {"nonfinite": "drop_group"}, {"nonfinite": "propagate"}):
        _, step = once(build, **options)
        for call in range(4):
            step(*tensors(*rows(4, seed=call)))
        states.append(snapshot(step))
    assert_bit_equal(states[0], states[1])
    assert_bit_equal(states[0], states[2])
