"""Figures of lab 03: each position of the sliders shows the right numbers."""

import numpy as np
import pytest

from labkit.labs.figures import thor
from labkit.reference import TraceRule
from tests.support.figures import drawn, legend, y_labels

PATHS = {
    "gradient": np.array([[0.0, 0.0], [1.0, -1.0], [2.0, 1.0]]),
    "natural": np.array([[0.0, 0.0], [3.0, -3.0], [1e3, 0.0]]),
}


def height(weights):
    return (weights**2).sum(axis=1)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (1, ["gradient: 2e+00", "natural: 2e+01"]),
        (2, ["gradient: 5e+00", "natural: far away"]),
    ],
)
def test_the_paths_are_drawn_up_to_the_step_over_the_heights(step, said):
    axis = drawn(thor.valley, height, PATHS, step, "title")
    assert legend(axis) == said
    for line, path in zip(axis.get_lines()[::2], PATHS.values(), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), path[: step + 1])
    (contours,) = axis.collections
    for level, curve in zip(contours.levels, contours.get_paths(), strict=True):
        if level > 0.1:
            np.testing.assert_allclose(height(curve.vertices), level, rtol=0.05)


# Two layers; the first changes by 0.5 %, 2 %, 0.05 % and 47 % since its last refresh.
TRACES = np.array([[100.0, 100], [100.5, 100], [102, 150], [102.05, 900], [150, 900]])


def test_the_words_are_the_rules():
    words = thor.decide(TRACES, 0.01, 0.001)
    assert [row[0] for row in words] == ["refresh", "skip", "refresh", "freeze", "freeze"]
    assert [row[1] for row in words] == ["refresh", *["freeze"] * 4]


def test_a_layer_that_is_never_frozen_is_compared_with_its_last_refresh():
    words = thor.decide(TRACES, 0.01, 0)
    rule, last = TraceRule(0.01, 0), TRACES[0].copy()
    for row, now in zip(words[1:], TRACES[1:], strict=True):
        assert row == [rule.decide(*pair) for pair in zip(now, last, strict=True)]
        refreshed = np.array(row) == "refresh"
        last[refreshed] = now[refreshed]
    assert "freeze" not in np.ravel(words) and words[3] == ["skip", "refresh"]


def test_decisions_are_drawn_by_layer_over_updates():
    history = [["refresh", "refresh"], ["skip", "freeze"], ["refresh", "freeze"]]
    axis = drawn(thor.decisions, history, ["conv1", "fc1"], 5, "rule")
    (image,) = axis.get_images()
    np.testing.assert_array_equal(image.get_array(), [[0, 1, 0], [0, 2, 2]])
    assert image.get_extent()[:2] == [-2.5, 12.5]  # updates 0, 5, 10 are the columns' centres
    assert y_labels(axis) == ["conv1: 2", "fc1: 1"]
