"""The points of a sweep, from what is typed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import InputError
from labkit.tools.running import grid


def test_values_are_yaml_between_commas():
    texts = ["micro_steps=1,2,4", "rate=1e-3,0.1", "tail=drop,flush", "sizes=[1, 2],[3]", "seed=7"]
    assert grid.parse(texts) == {
        "micro_steps": [1, 2, 4],
        "rate": [0.001, 0.1],
        "tail": ["drop", "flush"],
        "sizes": [[1, 2], [3]],
        "seed": [7],
    }


def test_values_of_other_kinds_are_others():
    values = grid.parse(["x=1,true,1.0"])["x"]
    assert [type(value) for value in values] == [int, bool, float]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "at least one parameter"),
        (["seed"], "is not name=value"),
        (["seed="], "has no value"),
        (["seed=1,2,1"], "the value 1 was given twice"),
        (["seed=1", "seed=2"], "given twice"),
        (["preset=smoke,lab"], "use --preset"),
        (["seed=[1"], "cannot be read"),
    ],
)
def test_what_is_no_grid_is_refused(texts, said):
    with pytest.raises(InputError, match=said):
        grid.parse(texts)


def test_the_last_parameter_changes_fastest():
    points = grid.points({"a": [1, 2], "b": ["x", "y"]})
    assert [tuple(point.values()) for point in points] == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]


def test_a_folders_name_is_readable_and_does_not_depend_on_the_order():
    assert grid.folder_name({"seed": 1, "rate": 0.1}) == "rate=0.1,seed=1"
    assert grid.folder_name({"rate": 0.1, "seed": 1}) == "rate=0.1,seed=1"


VALUES = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.booleans(), st.none(), st.text(max_size=200)
)


@given(VALUES, VALUES)
def test_two_values_never_share_a_folder(left, right):
    names = [grid.folder_name({"x": value}) for value in (left, right)]
    assert (names[0] == names[1]) == (type(left) is type(right) and repr(left) == repr(right))
    for name in names:
        assert "/" not in name and len(name) <= 120 and name.isprintable()


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()))
def test_a_value_is_read_as_it_is_written(value):
    assert grid.parse([f"x={grid.text(value)}"]) == {"x": [value]}
