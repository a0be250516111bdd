"""Figures of lab 04: numbers as given; points of the reference; a tree that is labkit's."""

import numpy as np
import pytest

from labkit.algorithms.adasum.combine import rounds
from labkit.labs.figures import adasum as figures
from labkit.labs.results import Curve
from labkit.reference import adasum_pair
from tests.support.figures import dots, drawn, lines

AT_60 = np.array([np.cos(np.pi / 3), np.sin(np.pi / 3)])


def test_over_rates_shows_each_seed_their_mean_and_what_failed():
    accuracies = {"adasum": {0.03: [0.98, 0.96], 0.06: [0.9, None]}, "mean": {0.03: [0.9]}}
    (axis,) = figures.over_rates(accuracies, 0.03, "rates").axes
    np.testing.assert_allclose(lines(axis)["Adasum"].get_ydata(), [3, 55])
    np.testing.assert_allclose(sum(dots(axis, "."), []), [2, 4, 10, 100, 10])
    assert axis.get_lines()[-1].get_xdata() == [0.03, 0.03]  # the rate of the single worker


def test_the_critical_batch_size_is_marked_where_the_updates_are_twice_the_fewest():
    updates = {
        "mean": {32: [1000, 1100], 64: [600, 500], 2048: [200, 200]},
        "adasum": {32: [1000, 1100], 64: [550, 450], 2048: [100, 120]},
        "adasum tuned": {32: [1000, 1100], 64: [500, 500], 2048: [90, 100]},
    }
    curves = {"mean": Curve(200.0, 26_000.0, 0.1), "adasum": Curve(0.0, 33_000.0, 0.1)}
    curves["adasum tuned"] = Curve(100.0, 30_000.0, 0.1)
    (axis,) = figures.critical_batch(updates, curves, "updates to 97 %").axes
    shown = lines(axis)
    np.testing.assert_allclose(shown["Adasum"].get_xydata(), [(32, 1050), (64, 500), (2048, 110)])
    np.testing.assert_allclose(shown["perfect scaling"].get_ydata(), [1050, 525, 1050 / 64])
    assert sum(dots(axis, "."), [])[:6] == [1000, 1100, 600, 500, 200, 200]
    critical = {name.split(" of ")[1]: shown[name].get_xydata() for name in shown if "crit" in name}
    # Adasum scales perfectly here: its critical batch size is infinite and not drawn.
    assert {name: points.tolist() for name, points in critical.items()} == {
        "mean: 130": [[130, 400]],
        "Adasum tuned: 300": [[300, 200]],
    }


def point(line):
    (x,), (y,) = line.get_data()
    return x, y


@pytest.mark.parametrize(("angle", "ratio"), [(60, 1.5), (0, 1.0), (180, 2.0), (90, 0.25)])
def test_two_vectors_are_combined_as_the_reference_does(angle, ratio):
    plane, lengths = drawn(figures.two_vectors, angle=angle, ratio=ratio).child_axes
    b = ratio * np.array([np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))])
    expected = {"Adasum": adasum_pair([1, 0], b), "sum": b + [1, 0], "mean": (b + [1, 0]) / 2}
    marks = {name.split(":")[0]: line for name, line in lines(plane).items()}
    for name, vector in expected.items():
        np.testing.assert_allclose(point(marks[name]), vector, atol=1e-12)
        at = lines(lengths)[name].get_ydata()[angle]
        assert at == pytest.approx(np.linalg.norm(vector), abs=1e-12)
        assert marks[name].get_label() == f"{name}: {at:.2f}"


def test_two_steps_in_both_orders_end_where_sgd_ends():
    x, y, rate = np.array([1.0, 0.0]), AT_60, 0.5
    axis = drawn(figures.both_orders, angle=60, rate=rate)
    ends = []
    for first, second in ((x, y), (y, x)):
        w = -rate * first  # at 0 the gradient is the vector
        ends.append(w - rate * (second @ w + 1) * second)
    np.testing.assert_allclose(point(lines(axis)["mean of both orders"]), np.mean(ends, 0))
    adasum = -rate * adasum_pair(x, y)
    np.testing.assert_allclose(point(lines(axis)["one step, Adasum"]), adasum)
    np.testing.assert_allclose(point(lines(axis)["one step, mean"]), -rate * (x + y) / 2)
    apart = np.linalg.norm(np.mean(ends, 0) - adasum)
    assert apart > 0.05 and f": {apart:.2f}" in axis.get_title()


@pytest.mark.parametrize("angle", [30, 85, 150])
def test_at_the_assumed_rate_adasum_is_the_mean_of_both_orders_and_all_is_in_sight(angle):
    points = lines(drawn(figures.both_orders, angle=angle, rate=1))
    star = point(points["mean of both orders"])
    np.testing.assert_allclose(star, point(points["one step, Adasum"]), atol=1e-12)
    far = drawn(figures.both_orders, angle=angle, rate=1.5)
    for x, y in (*(text.xy for text in far.texts), point(lines(far)["one step, sum"])):
        assert far.get_xlim()[0] < x < far.get_xlim()[1] and far.get_ylim()[0] < y, (x, y)
        assert y < far.get_ylim()[1], (x, y)


@pytest.mark.parametrize("workers", range(2, 17))
def test_the_tree_is_that_of_the_compiled_one(workers):
    levels = figures.levels(workers)
    # Where three are combined, a round of three pairs keeps the third ones for a second round.
    tree = [one for one in rounds(workers) if not one.averaged]
    assert len(levels) == len(tree)
    for groups, one in zip(levels, tree, strict=True):
        assert sum(len(group) == 2 for group in groups) == len(one.of_first) - 3 * one.keeps
        assert any(len(group) == 3 for group in groups) == one.keeps
