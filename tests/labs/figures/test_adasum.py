"""Figures of lab 04: numbers as given, units on the axes."""

import numpy as np
from labkit.labs.results.critical_batch import Curve

from labkit.labs.figures import adasum as adasum_plots
from labkit.labs.figures import common as plots
from tests.support.figures import dots, legend, lines, x_labels, y_labels


def test_the_race_draws_errors_and_a_second_curve_of_a_reduction_dashed():
    curves = {
        "Adasum, 0.03": ("adasum", [10, 20], [0.5, 0.98]),
        "mean, 0.03": ("mean", [10, 20], [0.4, 0.9]),
        "mean, 0.06": ("mean", [10, 20], [0.45, 0.95]),
    }
    (axis,) = adasum_plots.race(curves, "race").axes
    drawn = lines(axis)
    np.testing.assert_allclose(drawn["Adasum, 0.03"].get_ydata(), [50, 2])
    assert [drawn[name].get_linestyle() for name in curves] == ["-", "-", "--"]
    assert drawn["mean, 0.03"].get_color() == drawn["mean, 0.06"].get_color() == plots.ORANGE
    assert axis.get_ylabel() == "test error (%)"


def test_over_rates_shows_each_seed_their_mean_and_what_failed():
    accuracies = {"adasum": {0.03: [0.98, 0.96], 0.06: [0.9, None]}, "mean tuned": {0.03: [0.9]}}
    (axis,) = adasum_plots.over_rates(accuracies, 0.03, "rates").axes
    np.testing.assert_allclose(lines(axis)["Adasum"].get_ydata(), [3, 55])
    np.testing.assert_allclose(sum(dots(axis, "."), []), [2, 4, 10, 100, 10])
    assert lines(axis)["mean tuned"].get_linestyle() == "--"
    assert axis.get_lines()[-1].get_xdata() == [0.03, 0.03]  # the rate of the single worker
    assert x_labels(axis) == ["0.03", "0.06"] and axis.get_xlabel() == "learning rate"


def test_the_critical_batch_size_is_marked_where_the_updates_are_twice_the_fewest():
    updates = {
        "mean": {32: [1000, 1100], 64: [600, 500], 2048: [200, 200]},
        "adasum": {32: [1000, 1100], 64: [550, 450], 2048: [100, 120]},
        "adasum tuned": {32: [1000, 1100], 64: [500, 500], 2048: [90, 100]},
    }
    curves = {"mean": Curve(200.0, 26_000.0, 0.1), "adasum": Curve(0.0, 33_000.0, 0.1)}
    curves["adasum tuned"] = Curve(100.0, 30_000.0, 0.1)
    figure = adasum_plots.critical_batch(updates, curves, "updates to 97 %")
    (axis,) = figure.axes
    drawn = lines(axis)
    assert list(drawn["mean"].get_xdata()) == [32, 64, 2048]
    np.testing.assert_allclose(drawn["Adasum"].get_ydata(), [1050, 500, 110])
    np.testing.assert_allclose(drawn["perfect scaling"].get_ydata(), [1050, 525, 1050 / 64])
    assert drawn["Adasum tuned"].get_linestyle() == "--"
    assert {drawn[name].get_color() for name in ("Adasum", "Adasum tuned")} == {plots.BLUE}
    assert sum(dots(axis, "."), [])[:6] == [1000, 1100, 600, 500, 200, 200]
    critical = {name: line for name, line in drawn.items() if "crit" in name}
    # Adasum scales perfectly here: its critical batch size is infinite and not drawn.
    assert [name.split(" of ")[1] for name in critical] == ["mean: 130", "Adasum tuned: 300"]
    points = [(*line.get_xdata(), *line.get_ydata()) for line in critical.values()]
    np.testing.assert_allclose(points, [(130, 400), (300, 200)])
    assert x_labels(axis) == ["32", "64", "2048"] and "1000" in y_labels(axis)
    assert axis.get_xscale() == axis.get_yscale() == "log"
    assert "images" in axis.get_xlabel() and axis.get_ylabel() == "updates"
    assert legend(figure)[-1] == "perfect scaling"
