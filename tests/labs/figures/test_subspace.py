"""Figures of lab 05: numbers as given, units on the axes."""

import numpy as np

from labkit.labs.figures import common as plots
from labkit.labs.figures import subspace as subspace_plots
from tests.support.figures import lines, x_labels, y_labels


def test_the_spectrum_is_in_per_cent_over_the_components_from_1():
    (axis,) = subspace_plots.spectrum({"training": [0.6, 0.1], "walk": [0.5, 0.2, 0.1]}, "t").axes
    assert list(lines(axis)["training"].get_xdata()) == [1, 2]
    np.testing.assert_allclose(lines(axis)["walk"].get_ydata(), [50, 20, 10])
    assert x_labels(axis) == ["1", "2"]
    assert axis.get_ylabel() == "share of the variance (%)" and axis.get_xlabel() == "component"


def test_the_path_lies_over_the_losses_with_its_marks():
    first, second = np.linspace(-2, 2, 5), np.linspace(-1, 3, 4)
    losses = 0.1 + first[None] ** 2 + second[:, None] ** 2
    marks = {"end": (1.5, -0.5), "average": (0.0, 0.0)}
    figure = subspace_plots.path(first, second, losses, [[0, 1], [1, 0], [1.5, -0.5]], marks, "t")
    axis, bar = figure.axes
    assert lines(axis)["snapshots"].get_xydata().tolist() == [[0, 1], [1, 0], [1.5, -0.5]]
    assert lines(axis)["end"].get_xydata().tolist() == [[1.5, -0.5]]
    assert axis.get_xlim() == (-2, 2) and axis.get_ylim() == (-1, 3)
    assert bar.get_ylabel() == "training loss (nats)"
    assert y_labels(bar)[:2] == ["0.5", "1"]


def test_the_line_search_shows_slope_bound_and_trials():
    rates, losses = [0, 0.5, 1], [2.0, 1.2, 1.8]
    trials = [(1, 1.8, False), (0.5, 1.2, True)]
    (axis,) = subspace_plots.line_search(rates, losses, -2.0, 0.4, trials, "t").axes
    drawn = lines(axis)
    np.testing.assert_allclose(drawn["slope at 0"].get_ydata(), [2, 1, 0])
    np.testing.assert_allclose(drawn["bound, 0.4 of the slope"].get_ydata(), [2, 1.6, 1.2])
    assert drawn["refused"].get_xydata().tolist() == [[1, 1.8]]
    assert drawn["accepted"].get_xydata().tolist() == [[0.5, 1.2]]
    (alone,) = subspace_plots.line_search(rates, losses, -2.0, 0.4, trials[:1], "t").axes
    assert "accepted" not in lines(alone)


def test_the_race_starts_at_the_end_of_stage_one():
    curves = {"projected_bfgs": ([1, 2], [0.97, 0.98]), "same_rate": ([1, 2], [0.94, 0.95])}
    (axis,) = subspace_plots.race(curves, 0.93, {"average": 0.975}, "race").axes
    drawn = lines(axis)
    np.testing.assert_allclose(drawn["projected BFGS"].get_xydata(), [[0, 7], [1, 3], [2, 2]])
    np.testing.assert_allclose(drawn["average of snapshots"].get_ydata(), 2.5)
    assert drawn["projected BFGS"].get_color() == plots.BLUE
    assert axis.get_ylabel() == "test error (%)" and axis.get_xlabel() == "epochs of stage two"


def test_by_method_shows_each_seed_and_their_mean_in_every_panel():
    accuracies = {"stage_one": [0.92, 0.94], "tenth": [0.97, 0.98]}
    figure = subspace_plots.by_method(
        {"batch 8": accuracies, "batch 32": accuracies | {"tenth": [0.9]}}
    )
    first, second = figure.axes
    seeds = [list(line.get_xdata()) for line in first.get_lines() if line.get_marker() == "o"]
    np.testing.assert_allclose(seeds, [[8, 6], [3, 2]])
    bars = [line.get_xdata()[0] for line in second.get_lines() if line.get_marker() != "o"]
    np.testing.assert_allclose(bars, [7, 10])
    assert y_labels(first) == ["end of stage one", "a tenth of the rate"]
    assert [axis.get_title() for axis in figure.axes] == ["batch 8", "batch 32"]
    assert first.get_xlabel() == "test error (%)" and first.yaxis_inverted()
