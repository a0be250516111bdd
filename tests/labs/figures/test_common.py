"""Figures of rows of numbers show the numbers."""

import numpy as np

from labkit.labs.figures import common as plots
from labkit.migration.compare import Row
from labkit.training.records import Records


def test_smooth_is_the_mean_over_the_window_and_shorter_at_the_ends():
    np.testing.assert_allclose(plots.smooth([1, 2, 3, 4, 5], 3), [1.5, 2, 3, 4, 4.5])
    np.testing.assert_allclose(plots.smooth([7.0] * 4, 25), [7.0] * 4)


def test_the_training_curve_is_over_images_seen():
    records = Records()
    for images, loss in ((128, 2.0), (128, 1.0), (96, 0.5)):
        records.add(images=images, loss=loss)
    (axis,) = plots.training_curve(records).axes
    each, mean = axis.get_lines()
    assert each.get_xydata().tolist() == [[128, 2.0], [256, 1.0], [352, 0.5]]
    np.testing.assert_allclose(mean.get_ydata(), [1.5, 3.5 / 3, 0.75])


def test_the_step_figure_has_a_dot_for_each_tensor_in_red_where_it_fails():
    values = (("weights", 0.0, 0.0), ("gradients", 1e-5, 1e-3), ("gradients", 0.1, 1e-3))
    rows = [Row(*row[:1], "x", *row[1:], row[1] <= row[2]) for row in values]
    rows.append(Row("update", "x", np.inf, 1e-3, False))
    (axis,) = plots.step_figure(rows, "a step").axes
    drawn = {}
    for line in axis.get_lines():
        if line.get_marker() == ".":
            drawn.setdefault(line.get_color(), []).extend(line.get_ydata())
    assert drawn == {plots.GREEN: [1e-9, 1e-5], plots.RED: [0.1, 10]}
    limits = [line.get_ydata()[0] for line in axis.get_lines() if line.get_marker() != "."]
    assert limits == [1e-9, 1e-3, 1e-3]


def test_the_race_is_drawn_as_errors_over_updates_and_over_seconds():
    thor = [([10, 20], [1.5, 3.0], [0.95, 0.99]), ([10, 20], [1.5, 3.0], [0.94, 0.98])]
    trainings = {"Momentum": [([10, 20], [1.0, 2.0], [0.9, 0.95])], "THOR": thor}
    for column, axis in enumerate(plots.race(trainings, "race", goal=0.985).axes):
        *drawn, goal = axis.get_lines()
        for line, training in zip(drawn, [*trainings["Momentum"], *thor], strict=True):
            np.testing.assert_allclose(line.get_xdata(), training[column])
            np.testing.assert_allclose(line.get_ydata(), 100 - 100 * np.array(training[2]))
        np.testing.assert_allclose(goal.get_ydata(), 1.5)


def test_a_sweep_marks_what_failed():
    settings = {"damping": [(0.1, None), (1.0, 2.5)], "frequency": [(1, 3.0), (10, 3.5)]}
    damping, frequency = plots.sweep(settings, "error (%)", worst=50).axes
    line, failed = damping.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), [np.nan, 2.5])
    assert failed.get_xydata().tolist() == [[0.1, 50]] and frequency.get_legend() is None


def test_matrices_share_one_scale_and_leave_small_entries_white():
    exact, other = np.array([[10.0, -2.0], [0.0, 1e-5]]), np.array([[100.0, 0], [0, 1]])
    *panels, _ = plots.matrices({"exact": exact, "other": other}, "sizes").axes
    first, second = (axis.get_images()[0] for axis in panels)
    assert first.norm is second.norm and (first.norm.vmin, first.norm.vmax) == (1e-3, 10)
    np.testing.assert_array_equal(first.get_array().mask, [[False, False], [True, True]])
    assert first.get_array()[0, 1] == 2
