"""The losses' twins against finite differences and sums by hand."""

import numpy as np
import pytest

from tests import twins

RANDOM = np.random.default_rng(0)


def slopes(function, values, leaf, step=1e-6):
    """Return central differences of a function of arrays with respect to one of them."""
    gradient = np.zeros_like(values[leaf])
    for index in np.ndindex(gradient.shape):
        ends = []
        for sign in (1, -1):
            moved = [value.copy() for value in values]
            moved[leaf][index] += sign * step
            ends.append(function(*moved)[0])
        gradient[index] = (ends[0] - ends[1]) / (2 * step)
    return gradient


@pytest.mark.parametrize(
    ("model", "targets"),
    [
        (twins.linear_regression, RANDOM.normal(size=(7, 4))),
        (twins.softmax_regression, RANDOM.integers(0, 4, 7)),
    ],
)
def test_gradients_are_the_slopes_of_the_loss(model, targets):
    inputs = RANDOM.normal(size=(7, 3))
    values = [RANDOM.normal(size=(4, 3)), RANDOM.normal(size=4)]
    _, gradients = model(*values, inputs, targets)
    for leaf in range(2):
        expected = slopes(lambda *v: model(*v, inputs, targets), values, leaf)
        np.testing.assert_allclose(gradients[leaf], expected, atol=1e-8)


def test_token_cross_entropy_by_hand():
    logits = np.log(np.array([[[1.0, 3.0], [1.0, 1.0], [7.0, 1.0]]]))
    total, count = twins.token_cross_entropy(logits, np.array([[1, 0, -100]]))
    assert count == 2 and total == pytest.approx(-np.log(3 / 4) - np.log(1 / 2))
