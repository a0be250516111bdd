"""YAML from others is read as plain values, with limits."""

import pytest

from labkit.base.yaml_values import LONGEST, parse_yaml, read_yaml
from labkit.errors import InputError
from labkit.recipes import settings
from labkit.recipes.resnet50_config import Config
from labkit.tools.running.request import parse_parameters
from tests.support.yaml_texts import bomb


@pytest.mark.parametrize("text", [bomb(9), "&a [*a]", "&a {b: *a}", "{a: &a {b: 1}, <<: *a}"])
def test_an_alias_repeats_a_single_value_and_no_list(tmp_path, text):
    assert len(text) < 700  # bomb(9) would be 10^9 values
    (tmp_path / "settings.yaml").write_text(text)
    with pytest.raises(InputError, match="repeats a list or mapping"):
        settings.read(Config, tmp_path / "settings.yaml")
    assert parse_yaml("a: &x 3\nb: *x\n") == {"a": 3, "b": 3}


@pytest.mark.parametrize(
    "text",
    ["2024-13-45", "0b_", "!!bool x", "!!timestamp x", "[" * 900, "0x" + "F" * 9000, '"\\ud800"',
     "9" * 5000, "{[a]: b}", "!!python/object:os.system x", "'", "\x1b", "a: b: c", "*a"],
)  # fmt: skip
def test_what_pyyaml_stumbles_over_is_one_line(text):
    with pytest.raises(InputError) as refused:
        parse_yaml(text)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("opening", ["[", "{", "[1,", "{a: [", "['[', ", "[ # [\n", "[']',"])
def test_brackets_in_each_other_are_limited_before_all_are_read(opening):
    """60 kB took 5 s and more with MindSpore's recursion limit."""
    with pytest.raises(InputError, match="^YAML with more than 100 brackets in each other$"):
        parse_yaml(opening * (LONGEST // len(opening)))


def test_brackets_beside_each_other_and_in_texts_are_not_counted():
    value = parse_yaml("[" * 100 + "]" * 100)
    for _ in range(99):
        (value,) = value
    assert value == []
    with pytest.raises(InputError, match="100 brackets"):
        parse_yaml("[" * 101 + "]" * 101)
    assert parse_yaml("[" + "[], " * 500 + "]") == [[]] * 500
    assert parse_yaml("a: '" + "[" * 500 + "' # " + "{" * 500) == {"a": "[" * 500}


def test_the_length_is_limited(tmp_path):
    assert parse_yaml("x" * LONGEST) == "x" * LONGEST
    with pytest.raises(InputError, match="expected YAML of at most"):
        parse_yaml("x" * (LONGEST + 1))
    (tmp_path / "a").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="regular file"):
        read_yaml(tmp_path / "a")


@pytest.mark.parametrize("value", [".nan", ".inf", "!!binary aGk=", "!!set {a}", "1e400"])
def test_what_run_json_cannot_hold_is_no_parameter(value):
    with pytest.raises(InputError, match="kept as JSON"):
        parse_parameters([f"x={value}"])


def test_a_long_row_of_digits_is_read_in_no_time():
    # The pattern for 1e-3 backtracked over the digits: 60 000 took 20 s.
    with pytest.raises(InputError):
        parse_parameters(["x=" + "1" * 60_000])
    assert parse_parameters(["c=.5e+2", "d=1.e2"]) == {"c": 50.0, "d": 100.0}
