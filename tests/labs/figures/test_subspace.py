"""Figures of lab 05: numbers as given, and a valley in which the search does what it should."""

import numpy as np
import pytest

from labkit.labs.figures import subspace as figures
from tests.support.figures import drawn, lines, y_labels


def test_the_spectrum_is_in_per_cent_over_the_components_from_1():
    (axis,) = figures.spectrum({"training": [0.6, 0.1], "walk": [0.5, 0.2, 0.1]}, "t").axes
    np.testing.assert_allclose(lines(axis)["training"].get_xydata(), [(1, 60), (2, 10)])


def test_the_path_lies_over_the_losses_with_its_marks():
    first, second = np.linspace(-2, 2, 5), np.linspace(-1, 3, 4)
    losses = 0.1 + first[None] ** 2 + second[:, None] ** 2
    points, marks = [[0, 1], [1, 0], [1.5, -0.5]], {"end": (1.5, -0.5), "average": (0.0, 0.0)}
    axis, bar = figures.path(first, second, losses, points, marks, "t").axes
    assert lines(axis)["snapshots"].get_xydata().tolist() == points
    assert lines(axis)["end"].get_xydata().tolist() == [[1.5, -0.5]]
    assert y_labels(bar)[:2] == ["0.5", "1"]


def test_the_line_search_shows_slope_bound_and_trials():
    rates, losses = [0, 0.5, 1], [2.0, 1.2, 1.8]
    trials = [(1, 1.8, False), (0.5, 1.2, True)]
    (axis,) = figures.line_search(rates, losses, -2.0, 0.4, trials, "t").axes
    shown = lines(axis)
    np.testing.assert_allclose(shown["slope at 0"].get_ydata(), [2, 1, 0])
    np.testing.assert_allclose(shown["bound, 0.4 of the slope"].get_ydata(), [2, 1.6, 1.2])
    assert shown["refused"].get_xydata().tolist() == [[1, 1.8]]
    assert shown["accepted"].get_xydata().tolist() == [[0.5, 1.2]]


def test_the_race_starts_at_the_end_of_stage_one():
    curves = {"projected_bfgs": ([1, 2], [0.97, 0.98]), "same_rate": ([1, 2], [0.94, 0.95])}
    (axis,) = figures.race(curves, 0.93, {"average": 0.975}, "race").axes
    shown = lines(axis)
    np.testing.assert_allclose(shown["projected BFGS"].get_xydata(), [[0, 7], [1, 3], [2, 2]])
    np.testing.assert_allclose(shown["average of snapshots"].get_ydata(), 2.5)


def test_by_method_shows_each_seed_and_their_mean_in_every_panel():
    accuracies = {"stage_one": [0.92, 0.94], "tenth": [0.97, 0.98]}
    panels = {"batch 8": accuracies, "batch 32": accuracies | {"tenth": [0.9]}}
    first, second = figures.by_method(panels).axes
    seeds = [list(line.get_xdata()) for line in first.get_lines() if line.get_marker() == "o"]
    np.testing.assert_allclose(seeds, [[8, 6], [3, 2]])
    bars = [line.get_xdata()[0] for line in second.get_lines() if line.get_marker() != "o"]
    np.testing.assert_allclose(bars, [7, 10])
    assert y_labels(first) == ["end of stage one", "a tenth of the rate"]


@pytest.mark.parametrize("sigma", [0.1, 0.4, 0.9])
def test_each_trial_keeps_or_breaks_armijos_condition(sigma):
    """Without noise: the accepted trial is the first below its bound."""
    refused = 0
    for search in figures.searches(0.0, sigma)[:6]:
        sizes = [size for size, _, _ in search.trials]
        np.testing.assert_allclose(sizes, 0.55 ** np.arange(len(sizes)))
        d = (search.trials[0][1] - search.start) / sizes[0]
        slope = search.start @ figures.HESSIAN @ d
        assert slope < 0
        for size, place, accepted in search.trials:
            np.testing.assert_allclose(place, search.start + size * d, atol=1e-9)
            bound = figures.loss_at(search.start) + sigma * size * slope
            assert (figures.loss_at(place) < bound) == accepted
            refused += not accepted
        np.testing.assert_allclose(search.end, search.trials[-1][1])
    assert refused


def test_noise_moves_the_search_and_gradient_descent_alike():
    np.testing.assert_array_equal(figures.searches(0.0)[0].start, figures.searches(1.0)[0].start)
    assert figures.loss_at(figures.searches(0.0)[-1].end) < 1e-12
    assert figures.loss_at(figures.searches(1.0)[-1].end) > 1e-3
    assert np.abs(figures.descents(1.0) - figures.descents(0.0))[1:].min() > 0
    expected = figures.START - figures.RATE * figures.HESSIAN @ figures.START
    np.testing.assert_allclose(figures.descents(0.0)[1], expected)
    np.testing.assert_allclose(np.linalg.eigvalsh(figures.HESSIAN), (0.1, 3.5), rtol=1e-12)


def test_a_search_is_drawn_with_its_trials():
    axis = drawn(figures.search, update=1, noise=0, sigma=0.4)
    first, shown = figures.searches()[0], lines(axis)
    assert "trials: 3, step 0.303 of d" in axis.get_title()
    np.testing.assert_allclose(shown["BFGS"].get_xydata(), [first.start, first.end])
    np.testing.assert_allclose(
        shown["refused"].get_xydata(), [p for _, p, a in first.trials if not a]
    )
    np.testing.assert_allclose(shown["accepted"].get_xydata(), [first.end])


def test_the_walk_scatters_by_the_root_of_the_batch():
    """The recursion is linear, so the deviation is proportional to that of its noise."""
    wide, narrow = (figures.noisy_walk(0.1, batch)[-200:].std(axis=0) for batch in (1, 16))
    np.testing.assert_allclose(wide / narrow, 4, rtol=0.3)
    assert (figures.noisy_walk(0.01, 1)[-200:].std(axis=0) < wide).all()
    shown, places = lines(drawn(figures.walk, rate=0.1, batch=4)), figures.noisy_walk(0.1, 4)
    np.testing.assert_allclose(shown["the last one"].get_xydata(), places[-1:])
    np.testing.assert_allclose(shown["their average"].get_xydata()[0], places[150:].mean(axis=0))
