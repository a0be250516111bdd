"""Curves as SVG and as text: scale, units, thinning, and values that are not numbers."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.tools.reports import curves
from labkit.tools.reports.curves import Line, chart, panel, points, ticks

ANY = st.floats(allow_nan=True, allow_infinity=True)


def drawn(svg):
    """Return the path of the one curve of a panel."""
    (path,) = re.findall(r'class="line [^>]* d="([^"]*)"', svg)
    return path


def places(svg):
    """Return the (x, y) of the curve of a panel, in the picture's units."""
    return [
        tuple(map(float, pair.split())) for pair in re.findall(r"[ML]([\d.]+ [\d.]+)", drawn(svg))
    ]


def test_a_straight_line_goes_from_corner_to_corner():
    line = panel([Line("a", 0, [(0, 0), (5, 5), (10, 10)])], "update", "loss")
    (left, low), (middle, half), (right, high) = places(line.svg)
    assert (left, right, low, high) == (52, 330, 186, 8)
    assert middle == pytest.approx((left + right) / 2) and half == pytest.approx((low + high) / 2)
    assert line.title == "loss (nats) over update" and not line.logarithmic


def test_three_decades_are_logarithmic():
    line = panel([Line("a", 0, [(1, 1), (2, 10), (3, 100)])], "seconds", "loss")
    assert line.logarithmic and line.title == "loss (nats) over time (s)"
    ys = [y for _, y in places(line.svg)]
    assert ys[1] == pytest.approx((ys[0] + ys[2]) / 2, abs=0.1)


def test_a_value_that_is_not_finite_breaks_the_line():
    nan = panel([Line("a", 0, [(1, 1.0), (2, math.nan), (3, 2.0), (4, math.inf)])], "update", "x")
    assert drawn(nan.svg).count("M") == 2 and "L" not in drawn(nan.svg)


def test_long_curves_are_thinned_losses_smoothed_and_accuracies_not():
    long = [(float(n), 0.5) for n in range(10_000)]
    long[1234], long[4321], long[7000] = (1234.0, 9.0), (4321.0, -9.0), (7000.0, math.nan)
    thin = curves._thin(long)
    assert len(thin) < 900 and {(1234.0, 9.0), (4321.0, -9.0)} <= set(thin)
    assert any(math.isnan(b) for _, b in thin) and thin[-1] == (9999.0, 0.5)
    assert [a for a, _ in thin] == sorted(a for a, _ in thin)
    noisy = [(float(n), float(n % 2)) for n in range(200)]
    assert max(b for _, b in curves._smooth(noisy, "loss")[20:-20]) < 0.6
    assert curves._smooth(noisy, "test_accuracy") == noisy


def test_points_take_the_row_number_where_no_column_counts():
    assert points([{"loss": 2}, {"loss": 1}], "update", "loss") == [(1, 2), (2, 1)]
    assert points([{"epoch": 5, "loss": 2}], "update", "loss") == [(5, 2)]
    assert points([{"loss": 2}], "seconds", "loss") == []


@given(low=ANY, high=ANY)
def test_ticks_are_few_and_inside(low, high):
    values = ticks(low, high)
    assert 1 <= len(values) <= 15
    if len(values) > 1:
        margin = (high - low) * 1e-6
        assert all(low - margin <= value <= high + margin for value in values)


def test_ticks_are_round():
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(2.292, 2.315) == pytest.approx([2.295, 2.3, 2.305, 2.31, 2.315])


@given(st.lists(st.tuples(ANY, ANY), max_size=30))
def test_any_points_can_be_drawn(pairs):
    svg = panel([Line("<a>", 8, pairs)], "update", "<y>").svg
    assert svg.endswith("</svg>") and "nan" not in svg and "<a>" not in svg
    assert "inf" not in svg.replace("update", "")
    text = chart(pairs, "loss", "update")
    assert text.startswith("loss") and max(map(len, text.splitlines())) <= 90


def test_a_chart_of_text_falls_from_left_to_right():
    lines = chart([(n, 10.0 - n) for n in range(11)], "loss", "update", width=32, height=5)
    title, first, *_, last, axis, foot = lines.splitlines()
    assert title == "loss" and axis.endswith("-" * 20)
    assert first.startswith("        10 |*") and last.startswith("         0 |")
    assert last.endswith("*") and foot.split() == ["0", "update", "10"]
    lost = [(1, 1.0), (2, math.nan), (3, 1000.0)]
    assert "logarithmic, 1 not finite" in chart(lost, "loss", "update")
    assert chart([], "loss", "update") == "loss: no numbers yet"
