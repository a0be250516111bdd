"""Interactive figures of lab 05: what they draw is what the search does."""

import numpy as np
import pytest

from labkit.labs.figures import subspace_moves as moves
from tests.support.figures import drawn, lines


def test_the_valley_is_a_quadratic_of_its_curvatures():
    np.testing.assert_allclose(np.linalg.eigvalsh(moves.hessian()), moves.CURVATURES, rtol=1e-12)
    along = np.array([np.cos(moves.ANGLE), np.sin(moves.ANGLE)])
    assert moves.loss_at(2 * along) == pytest.approx(2 * moves.CURVATURES[0])


@pytest.mark.parametrize("sigma", [0.1, 0.4, 0.9])
def test_each_trial_keeps_or_breaks_armijos_condition(sigma):
    """Without noise: the accepted trial is the first below its bound."""
    matrix, refused = moves.hessian(), 0
    for search in moves.searches(0.0, sigma)[:6]:
        sizes = [size for size, _, _ in search.trials]
        np.testing.assert_allclose(sizes, 0.55 ** np.arange(len(sizes)))
        d = (search.trials[0][1] - search.start) / sizes[0]
        slope = search.start @ matrix @ d
        assert slope < 0
        for size, place, accepted in search.trials:
            np.testing.assert_allclose(place, search.start + size * d, atol=1e-9)
            low = moves.loss_at(place) < moves.loss_at(search.start) + sigma * size * slope
            assert low == accepted
            refused += not accepted
        np.testing.assert_allclose(search.end, search.trials[-1][1])
    assert refused


def test_noise_moves_the_search_and_gradient_descent_alike():
    (still, _), (moved, again) = (
        [moves.searches(noise)[0].start for _ in range(2)] for noise in (0.0, 1.0)
    )
    np.testing.assert_array_equal(still, moved)
    np.testing.assert_array_equal(moved, again)
    assert moves.loss_at(moves.searches(0.0)[-1].end) < 1e-12
    assert moves.loss_at(moves.searches(1.0)[-1].end) > 1e-3
    assert np.abs(moves.descents(1.0) - moves.descents(0.0))[1:].min() > 0
    expected = moves.START - moves.RATE * moves.hessian() @ moves.START
    np.testing.assert_allclose(moves.descents(0.0)[1], expected)


def test_a_search_is_drawn_with_its_trials():
    axis = drawn(moves.search, update=1, noise=0, sigma=0.4)
    first = moves.searches()[0]
    assert "trials: 3, step 0.303 of d" in axis.get_title()
    shown = lines(axis)
    np.testing.assert_allclose(shown["BFGS"].get_xydata(), [first.start, first.end])
    np.testing.assert_allclose(
        shown["refused"].get_xydata(), [p for _, p, a in first.trials if not a]
    )
    np.testing.assert_allclose(shown["accepted"].get_xydata(), [first.end])
    low, high = axis.get_ylim()
    assert all(low < y < high for _, (_, y), _ in first.trials), "a trial outside the picture"
    assert "refused" not in lines(drawn(moves.search, update=5, noise=0, sigma=0.4))


def test_the_walk_scatters_by_the_root_of_the_batch():
    """The stationary deviation of a linear recursion is proportional to that of its noise."""
    wide, narrow = (moves.noisy_walk(0.1, batch, 4000)[500:].std(axis=0) for batch in (1, 16))
    np.testing.assert_allclose(wide / narrow, 4, rtol=0.05)
    slow = moves.noisy_walk(0.01, 1, 4000)[500:].std(axis=0)
    assert (slow < wide).all()
    shown = lines(drawn(moves.walk, rate=0.1, batch=4))
    places = moves.noisy_walk(0.1, 4)
    np.testing.assert_allclose(shown["the last one"].get_xydata(), places[-1:])
    np.testing.assert_allclose(shown["their average"].get_xydata()[0], places[150:].mean(axis=0))
