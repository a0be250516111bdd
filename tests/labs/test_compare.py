"""Comparing trainings: differences are found, and a comparison of nothing is refused."""

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.labs.compare import largest_differences, relative_error


def test_differences_are_found_leaf_by_leaf():
    expected = {"a": np.zeros((2, 3)), "b": np.array([3.0, 4.0])}
    other = {"a": np.zeros((2, 3)), "b": np.array([3.0, 4.5])}
    assert largest_differences(other, expected) == {"a": 0.0, "b": 0.5}
    assert relative_error(other, expected) == pytest.approx(0.1)


@pytest.mark.parametrize("compare", [largest_differences, relative_error])
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (({}, {}), "cannot be compared"),
        (({"a": np.zeros(2)}, {"b": np.zeros(2)}), "cannot be compared"),
        (({"a": np.zeros(1)}, {"a": np.zeros(3)}), r"a: expected the shape \(3,\), got \(1,\)"),
    ],
)
def test_what_cannot_be_compared_is_refused(compare, arrays, message):
    with pytest.raises(InputError, match=message):
        compare(*arrays)
