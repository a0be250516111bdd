"""The shared checks of arguments: what each accepts and refuses, and its message."""

import os
from fractions import Fraction

import numpy as np
import pytest

from labkit.base.arguments import (
    choice,
    fit_workers,
    flag,
    integer,
    number,
    seed,
)
from labkit.errors import InputError

NAN, INFINITY = float("nan"), float("inf")


def refusal(check, *args, **options):
    with pytest.raises(InputError) as refused:
        check(*args, **options)
    return str(refused.value)


class TestInteger:
    @pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.int32(3)])
    def test_pythons_and_numpys(self, value):
        result = integer("epochs", value)
        assert result == 3 and type(result) is int

    @pytest.mark.parametrize(
        "value", [True, False, np.True_, 3.0, np.float32(3), "3", None, [3], NAN, np.array([3])]
    )
    def test_what_is_none(self, value):
        assert refusal(integer, "epochs", value) == (
            f"epochs: expected an integer >= 1, got {value!r}"
        )

    def test_bounds_belong_to_the_range(self):
        assert [integer("n", value, 2, 4) for value in (2, 3, 4)] == [2, 3, 4]
        for value in (1, 5):
            expected = f"n: expected an integer >= 2 and <= 4, got {value}"
            assert refusal(integer, "n", value, 2, 4) == expected
        assert refusal(integer, "n", 0) == "n: expected an integer >= 1, got 0"
        assert integer("n", -(10**30), -(10**31)) == -(10**30)


class TestNumber:
    @pytest.mark.parametrize(
        "value", [2, 2.0, np.float32(2), np.float64(2), np.int8(2), Fraction(2)]
    )
    def test_pythons_and_numpys(self, value):
        result = number("rate", value)
        assert result == 2.0 and type(result) is float

    @pytest.mark.parametrize(
        "value",
        [True, np.False_, "2", None, [2.0], 2j, NAN, INFINITY, -INFINITY, np.float32("inf"),
         10**400, -(10**400)],
    )  # fmt: skip
    def test_what_is_none(self, value):
        assert refusal(number, "rate", value) == f"rate: expected a finite number, got {value!r}"

    @pytest.mark.parametrize(
        ("bounds", "inside", "outside", "words"),
        [
            ({"at_least": 0}, [0, 1e300], [-1e-300], ">= 0"),
            ({"above": 0}, [1e-300], [0, -1], "> 0"),
            ({"at_most": 1}, [1, -5], [1.0000001], "<= 1"),
            ({"below": 1}, [0.9999999], [1, 2], "< 1"),
            ({"at_least": 0, "below": 1}, [0, 0.5], [-0.1, 1], ">= 0 and < 1"),
            ({"above": -1, "at_most": 1}, [-0.99, 1], [-1, 1.1], "> -1 and <= 1"),
        ],
    )
    def test_bounds(self, bounds, inside, outside, words):
        for value in inside:
            assert number("decay", value, **bounds) == value
        for value in outside:
            expected = f"decay: expected a finite number {words}, got {value!r}"
            assert refusal(number, "decay", value, **bounds) == expected


def test_flag():
    assert flag("nesterov", True) is True and flag("nesterov", False) is False
    for value in (0, 1, "True", None, np.True_):
        expected = f"nesterov: expected True or False, got {value!r}"
        assert refusal(flag, "nesterov", value) == expected


def test_choice_names_the_nearest_word():
    words = ("flush", "drop", "carry")
    assert [choice("tail", word, iter(words)) for word in words] == list(words)
    assert refusal(choice, "tail", "Flush", words) == (
        "tail: expected one of 'flush', 'drop', 'carry', got 'Flush'. Did you mean 'flush'?"
    )
    for value in ("", "zzz", None, 1):
        expected = f"tail: expected one of 'flush', 'drop', 'carry', got {value!r}"
        assert refusal(choice, "tail", value, words) == expected


def test_seed():
    assert (seed(0), seed(np.int64(7)), seed(2**32 - 1)) == (0, 7, 2**32 - 1)
    for value in (-1, 2**32, 1.0, True, None):
        expected = f"seed: expected an integer >= 0 and <= 4294967295, got {value!r}"
        assert refusal(seed, value) == expected
    assert refusal(seed, "x", name="order").startswith("order: expected an integer")


def test_workers_are_at_most_the_cores(monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert (fit_workers(1), fit_workers(np.int64(2))) == (1, 2)
    assert capsys.readouterr().out == ""
    assert fit_workers(3) == 2
    assert "3 asked for, 2 used: there are 2 cores" in capsys.readouterr().out
    assert refusal(fit_workers, 0).startswith("num_parallel_workers: expected an integer >= 1")
