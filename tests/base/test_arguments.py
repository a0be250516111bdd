"""The shared checks of arguments, with their messages; and one reader for values as text."""

import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from labkit.base import arguments, files
from labkit.base.arguments import choice, flag, integer, number, parse, parse_several, seed
from labkit.errors import InputError

NAN, INFINITY = float("nan"), float("inf")
TAILS = ("flush", "drop", "carry")
NO_INTEGERS = [True, np.True_, 3.0, np.float32(3), "3", None, [3], NAN, np.array([3]), 0]
NO_NUMBERS = [True, "2", None, [2.0], 2j, NAN, -INFINITY, np.float32("inf")]


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2), 2.0, np.float32(2), Fraction(2)])
def test_numbers_are_python_s_and_numpy_s(value):
    result = number("rate", value)
    assert result == 2.0 and type(result) is float
    if isinstance(value, (int, np.integer)):
        assert integer("epochs", value) == 2 and type(integer("epochs", value)) is int


@pytest.mark.parametrize(
    ("check", "arguments", "values", "words"),
    [
        (integer, {}, NO_INTEGERS, "an integer >= 1"),
        (integer, {"at_least": 2, "at_most": 4}, [1, 5], "an integer >= 2 and <= 4"),
        (number, {}, [*NO_NUMBERS, 10**400], "a finite number"),
        (number, {"at_least": 0}, [-1e-300], "a finite number >= 0"),
        (number, {"above": 0}, [0, -1], "a finite number > 0"),
        (number, {"at_most": 1}, [1.0000001], "a finite number <= 1"),
        (number, {"at_least": 0, "below": 1}, [-0.1, 1], "a finite number >= 0 and < 1"),
        (flag, {}, [0, 1, "True", None, np.True_], "True or False"),
        (choice, {"words": TAILS}, ["", "zzz", None, 1], "one of 'flush', 'drop', 'carry'"),
    ],
)
def test_what_is_refused_and_how(check, arguments, values, words):
    for value in values:
        with pytest.raises(InputError) as refused:
            check("name", value, **arguments)
        assert str(refused.value) == f"name: expected {words}, got {value!r}"


def test_bounds_belong_to_the_range_and_a_choice_names_the_nearest_word():
    assert [integer("n", value, 2, 4) for value in (2, 3, 4)] == [2, 3, 4]
    assert [number("n", value, at_least=0, below=1) for value in (0, 0.9999999)] == [0, 0.9999999]
    assert [choice("tail", word, iter(TAILS)) for word in TAILS] == list(TAILS)
    with pytest.raises(InputError, match="'Flush'. Did you mean 'flush'"):
        choice("tail", "Flush", TAILS)
    assert (seed(0), seed(np.int64(7)), seed(2**32 - 1)) == (0, 7, 2**32 - 1)
    with pytest.raises(InputError, match="order: expected an integer >= 0 and <= 4294967295"):
        seed(2**32, name="order")


def test_workers_are_at_most_the_cores(monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert list(map(arguments.fit_workers, (1, np.int64(2), 3))) == [1, 2, 2]
    assert capsys.readouterr().out.count("3 asked for, 2 used: there are 2 cores") == 1


TEXTS = ["1:30", "yes", "on", "1_000", "2024-01-01"]
VALUES = {
    **dict.fromkeys(("None", "null", "~")),
    **{"010": 10, "-3": -3, "1e-3": 1e-3, ".5": 0.5, "1.": 1.0, "True": True, "false": False},
    **{text: text for text in TEXTS},
    **{"[1, 2]": [1, 2], "{a: 1e-3}": {"a": 1e-3}, "'1'": "1"},
}


def test_a_value_is_the_same_on_the_command_line_and_in_a_file(tmp_path):
    (tmp_path / "a.yaml").write_text("".join(f"- {text}\n" for text in VALUES))
    for values in (list(map(parse, VALUES)), arguments.read_yaml(tmp_path / "a.yaml")):
        assert values == list(VALUES.values())
        assert list(map(type, values)) == list(map(type, VALUES.values()))
    for text in ("#a", "&a", "*a", "a # b", "a: b"):  # texts on the command line alone
        assert parse(text) == text
    refused = ["[1", "{a", "'a", "[1, &a", "{a: 1, b: 2, a: 1}", "{1: a, 01: b}", "[&a [*a]]"]
    for text in refused + ["[!!timestamp 2024-01-01]", "[!!binary aGk=]", "[!!bool x]"]:
        with pytest.raises(InputError, match="not YAML"):
            parse(text)
    (tmp_path / "twice.yaml").write_text("seed: 1\nrate: 1\nseed: 2\n")
    for name in ("none.yaml", "twice.yaml"):
        with pytest.raises(InputError, match=f"{name} cannot be read"):
            arguments.read_yaml(tmp_path / name)


NO_PATHS = "", " ", "s3://b/x", "http://h", "file:///x", Path("gs://b"), "~no_such_user/x", None, 3


@pytest.mark.parametrize("value", NO_PATHS)
def test_what_is_no_place_on_this_machine_is_refused_and_not_made(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    for write in (
        lambda: arguments.local_path("--out", value).mkdir(),
        lambda: files.write_text(value, "", "the file"),
        lambda: files.locked(value, "a run").__enter__(),
    ):
        with pytest.raises(InputError, match="a path on this machine, got"):
            write()
    assert list(tmp_path.iterdir()) == []


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    files.write_text("~/a", "written", "the file")
    assert arguments.local_path("--out", "~/a").read_text() == "written"
    assert (tmp_path / "a").exists() and arguments.local_path("--out", "a:b/c") == Path("a:b/c")


def test_several_values():
    assert parse_several("1,010,None,1:30,#a,*b") == [1, 10, None, "1:30", "#a", "*b"]
    assert parse_several("[1, [2, 3]],{a: 1, b: 2}") == [[1, [2, 3]], {"a": 1, "b": 2}]
    assert parse_several("'a,b',don't,c") == ["a,b", "don't", "c"]
