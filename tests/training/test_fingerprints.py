"""Fingerprints of values: equal if the values compute the same, else different or "unknown"."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit.training.fingerprints import UNKNOWN, agrees, fingerprint


class Schedule:
    def __init__(self, rate):
        self.rate = rate

    def at(self, update):
        return self.rate / update

    @classmethod
    def named(cls, name):
        return cls(float(name))


def scaled(factor):
    return lambda value: factor * value


def unassigned():
    def inner():
        return later

    if not inner:
        later = 1
    return inner


SAME = {
    "an array and its Tensor": (np.arange(3.0), Tensor(np.arange(3.0))),
    "two orders of a set": ({"a", "b", "c"}, {"c", "a", "b"}),
    "two closures": (scaled(2), scaled(2)),
    "two partials": (functools.partial(round, ndigits=2), functools.partial(round, ndigits=2)),
    "two methods": (Schedule(1).at, Schedule(1).at),
    "methods of a class": (Schedule.named, Schedule.named),
    "what is not assigned yet": (unassigned(), unassigned()),
    "cells of a class": (nn.ReLU(), nn.ReLU()),
    "a builtin": (len, len),
}
OTHER = {
    "an entry of an array": (np.arange(9.0), np.array([*range(4), 7.0, *range(5, 9)])),
    "its length": (np.zeros(100), np.zeros(101)),
    "its type": (np.arange(3, dtype=np.int32), np.arange(3, dtype=np.int64)),
    "what is enclosed": (scaled(2), scaled(3)),
    "what a method's object holds": (Schedule(1).at, Schedule(2).at),
    "a default": (lambda x=1: x, lambda x=2: x),
    "the code": (lambda x: x + 1, lambda x: x - 1),
    "an argument of a partial": (functools.partial(round, ndigits=2), functools.partial(round)),
    "two keys changed over": ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
    "two texts changed over": (["a", "b"], ["b", "a"]),
    "the end of a long text": ("a" * 300 + "b", "a" * 300 + "c"),
}
DEEP = [[[[[[[1]]]]]]]
UNKNOWNS = {
    "an object": SimpleNamespace(rate=1),
    "an object in a list": [1, SimpleNamespace(rate=1)],
    "an array of objects": np.array([None, {}]),
    "a closure over one": scaled(SimpleNamespace()),
    "too deep": DEEP,
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_what_computes_the_same(pair):
    first, second = map(fingerprint, pair)
    assert first == second and UNKNOWN not in first


@pytest.mark.parametrize("pair", OTHER.values(), ids=OTHER)
def test_what_differs_shows(pair):
    first, second = map(fingerprint, pair)
    assert first != second and UNKNOWN not in first + second


@pytest.mark.parametrize("value", UNKNOWNS.values(), ids=UNKNOWNS)
def test_what_shows_nothing_of_it_says_so(value):
    assert fingerprint(value).startswith(UNKNOWN)


def test_a_method_of_an_object_that_shows_nothing_is_known_by_its_function():
    slotted = type("Slotted", (), {"__slots__": (), "at": Schedule.at})
    for schedule in (Schedule(SimpleNamespace()), slotted()):
        text = fingerprint(schedule.at)
        assert text.startswith(fingerprint(Schedule.at)) and UNKNOWN in text
    assert fingerprint([Schedule(object()).at]).startswith(UNKNOWN)


def test_an_older_checkpoint_has_noted_a_methods_function_alone():
    mine = fingerprint(Schedule(1).at)
    assert agrees(mine, fingerprint(Schedule.at)) and agrees(mine, mine)
    assert not agrees(mine, fingerprint(Schedule(2).at))
    assert not agrees(fingerprint(scaled(2)), fingerprint(scaled(3)))
    assert not agrees(fingerprint("mean of rows"), fingerprint("mean"))
