"""One reader for values, wherever they come from."""

import pytest

from labkit.base.values import parse, parse_several, read_yaml
from labkit.errors import InputError

VALUES = {
    "010": 10,
    "-3": -3,
    "1:30": "1:30",
    "None": None,
    "null": None,
    "~": None,
    "1e-3": 1e-3,
    ".5": 0.5,
    "1.": 1.0,
    "True": True,
    "false": False,
    "yes": "yes",
    "on": "on",
    "1_000": "1_000",
    "2024-01-01": "2024-01-01",
    "[1, 2]": [1, 2],
    "{a: 1e-3}": {"a": 1e-3},
    "'1'": "1",
}


@pytest.mark.parametrize("text", VALUES)
def test_a_value_is_the_same_on_the_command_line_and_in_a_file(tmp_path, text):
    (tmp_path / "a.yaml").write_text(f"name: {text}\n")
    for value in (parse(text), read_yaml(tmp_path / "a.yaml")["name"]):
        assert value == VALUES[text] and type(value) is type(VALUES[text])


@pytest.mark.parametrize("text", ["#a", "&a", "*a", "a # b", "a: b"])
def test_on_the_command_line_these_are_texts(text):
    assert parse(text) == text


@pytest.mark.parametrize("text", ["[1", "{a", "'a", "[.nan, &a"])
def test_what_does_not_end_is_refused(text):
    with pytest.raises(InputError, match="not YAML"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1", [1]),
        ("1,010,None", [1, 10, None]),
        ("[1, [2, 3]],{a: 1, b: 2}", [[1, [2, 3]], {"a": 1, "b": 2}]),
        ("'a,b',don't,c", ["a,b", "don't", "c"]),
    ],
)
def test_several_values(text, values):
    assert parse_several(text) == values


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"none.yaml cannot be read"):
        read_yaml(tmp_path / "none.yaml")
