"""Interactive figures of lab 04: their points are the reference's, their tree is labkit's."""

import numpy as np
import pytest

from labkit.algorithms.adasum.combine import rounds
from labkit.labs.figures import adasum_vectors
from labkit.reference import adasum_pair
from tests.support.figures import drawn, lines

AT_60 = np.array([np.cos(np.pi / 3), np.sin(np.pi / 3)])


def point(line):
    (x,), (y,) = line.get_data()
    return x, y


@pytest.mark.parametrize(("angle", "ratio"), [(60, 1.5), (0, 1.0), (180, 2.0), (90, 0.25)])
def test_two_vectors_are_combined_as_the_reference_does(angle, ratio):
    plane, lengths = drawn(adasum_vectors.two_vectors, angle=angle, ratio=ratio).child_axes
    b = ratio * np.array([np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))])
    expected = {"Adasum": adasum_pair([1, 0], b), "sum": b + [1, 0], "mean": (b + [1, 0]) / 2}
    marks = {name.split(":")[0]: line for name, line in lines(plane).items()}
    for name, vector in expected.items():
        x, y = point(marks[name])
        np.testing.assert_allclose((x, y), vector, atol=1e-12)
        at = lines(lengths)[name].get_ydata()[angle]
        assert at == pytest.approx(np.linalg.norm(vector), abs=1e-12)
        assert marks[name].get_label() == f"{name}: {at:.2f}"
        assert plane.get_xlim()[0] < x < plane.get_xlim()[1] and y < plane.get_ylim()[1]
    assert "degrees" in lengths.get_xlabel() and "length" in lengths.get_ylabel()


def test_two_steps_in_both_orders_end_where_sgd_ends():
    x, y, rate = np.array([1.0, 0.0]), AT_60, 0.5
    axis = drawn(adasum_vectors.both_orders, angle=60, rate=rate)
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
    axis = drawn(adasum_vectors.both_orders, angle=angle, rate=1)
    points = lines(axis)
    star = point(points["mean of both orders"])
    np.testing.assert_allclose(star, point(points["one step, Adasum"]), atol=1e-12)
    far = drawn(adasum_vectors.both_orders, angle=angle, rate=1.5)
    for place in (*(text.xy for text in far.texts), point(lines(far)["one step, sum"])):
        assert far.get_xlim()[0] < place[0] < far.get_xlim()[1], place
        assert far.get_ylim()[0] < place[1] < far.get_ylim()[1], place


@pytest.mark.parametrize("workers", range(2, 17))
def test_the_tree_is_that_of_the_compiled_one(workers):
    levels = adasum_vectors.levels(workers)
    # Where three are combined, a round of three pairs keeps the third ones for a second round.
    tree = [one for one in rounds(workers) if not one.averaged]
    assert len(levels) == len(tree)
    for groups, one in zip(levels, tree, strict=True):
        assert sum(len(group) == 2 for group in groups) == len(one.of_first) - 3 * one.keeps
        assert any(len(group) == 3 for group in groups) == one.keeps
