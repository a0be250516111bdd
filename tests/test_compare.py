"""Comparing trainings: differences are found, and a comparison of nothing is refused."""

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.labs.compare import largest_differences, relative_error


def test_differences_are_found_leaf_by_leaf():
    expected = {"a": np.zeros((2, 3)), "b": np.array([3.0, 4.0])}
    came = {"a": np.zeros((2, 3)), "b": np.array([3.0, 4.5])}
    assert largest_differences(came, expected) == {"a": 0.0, "b": 0.5}
    assert relative_error(came, expected) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        ({}, {}),
        ({"a": np.zeros(2)}, {"b": np.zeros(2)}),
        ({"a": np.zeros(2)}, {"a": np.zeros(3)}),
        ({"a": np.zeros(1)}, {"a": np.zeros(3)}),
    ],
)
def test_what_cannot_be_compared_is_refused(came, expected):
    with pytest.raises(InputError):
        largest_differences(came, expected)
    with pytest.raises(InputError):
        relative_error(came, expected)
