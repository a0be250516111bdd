"""Trace rule, clipping and damping: the thresholds from both sides, and the exact matrices."""

import math

import numpy as np
import pytest

from labkit import reference
from labkit.errors import InputError
from labkit.reference import TraceRule

RANDOM = np.random.default_rng(0)


def factors(groups=2, outputs=3, inputs=4):
    a, g = RANDOM.normal(size=(groups, inputs, 9)), RANDOM.normal(size=(groups, outputs, 9))
    return a @ np.swapaxes(a, 1, 2), g @ np.swapaxes(g, 1, 2), 5


@pytest.mark.parametrize(
    ("trace", "decision"),
    [
        (113, "refresh"),
        (87, "refresh"),
        (112.5, "skip"),
        (87.5, "skip"),
        (103.125, "skip"),
        (103, "freeze"),
        (97, "freeze"),
        (100, "freeze"),
    ],
)
def test_the_trace_rule_at_its_thresholds(trace, decision):
    # Thresholds and traces are exact in binary: the borders themselves are "skip".
    assert TraceRule(refresh=0.125, freeze=0.03125).decide(trace, 100.0) == decision


def test_a_trace_rule_whose_thresholds_cross_is_refused():
    assert TraceRule() == TraceRule(refresh=0.01, freeze=0.001)
    for refresh, freeze in ((0.001, 0.01), (0.1, -0.1), (math.nan, 0.1)):
        with pytest.raises(InputError, match="refresh, freeze: expected refresh >= freeze"):
            TraceRule(refresh, freeze)


def test_trace_of_fisher_is_that_of_the_whole_matrix():
    a, g, positions = factors()
    whole = reference.kronecker_fisher(a, g, positions) + 0.7 * np.eye(2 * 12)
    actual = reference.trace_of_fisher(a, g, positions, 0.7)
    assert actual == pytest.approx(np.trace(whole), rel=1e-12)


def test_running_average_takes_the_first_whole():
    assert reference.running_average(None, 4.0, 0.75) == 4
    assert reference.running_average(8.0, 4.0, 0.75) == 7
    assert reference.running_average(8.0, 4.0, 0.0) == 4


def test_a_clipped_step_changes_the_output_by_the_limit_and_a_small_one_is_left():
    directions, gradients = RANDOM.normal(size=(2, 3, 4)), RANDOM.normal(size=(2, 3, 4))
    gradients[1] = directions[1]
    moved = sum(abs(np.sum(u * g)) for u, g in zip(directions, gradients, strict=True)) * 0.25
    factor = reference.kl_clip_factor(directions, gradients, 0.5, moved / 9)
    assert factor == pytest.approx(1 / 3, rel=1e-12)
    assert reference.kl_clip_factor(directions, gradients, 0.5, moved * 1.01) == 1
    assert reference.kl_clip_factor(0 * directions, gradients, 0.5, 1e-3) == 1
