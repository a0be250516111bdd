"""A table of claims says what was measured and expected, and a wrong row is an error."""

import math

import numpy as np
import pytest

from labkit.labs import claims

HOLD = [
    (1e-6, "< 1e-5"),
    (np.float32(0.06), "> 5 %"),
    (5, "≥ 5"),
    (5, "≤ 5.0"),
    (4.00005, "4 ± 1e-4"),
    (0.0104, "1 % ± 0.1 %"),
    (-3.0, "-3 ± 0"),
    ((128, 96), [128, 96]),
    ("float32", "float32"),
    (469, 469),
    (np.array([3, 4]), [3, 4]),
    ([3, 4], np.array([3, 4])),
]
FAIL = [
    (1e-5, "< 1e-5"),
    (0.05, "> 5 %"),
    (4.9, "≥ 5"),
    (5.1, "≤ 5"),
    (4.0002, "4 ± 1e-4"),
    (3.9998, "4 ± 1e-4"),
    (math.nan, "< 1"),
    (math.nan, "> 1"),
    (math.nan, "0 ± 9"),
    ([128], [128, 96]),
    (False, True),
    (468, 469),
]


@pytest.mark.parametrize(("measured", "expected"), HOLD)
def test_what_holds_gets_its_mark(measured, expected, capsys):
    claims.check(("a claim", measured, expected))
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith("a claim │ ") and line.endswith("✓")


@pytest.mark.parametrize(("measured", "expected"), FAIL)
def test_what_does_not_hold_is_named_after_all_rows(measured, expected, capsys):
    with pytest.raises(AssertionError, match="^this one: .*, expected "):
        claims.check(("fine", 1, 1), ("this one", measured, expected), ("fine too", 2, "> 1"))
    lines = capsys.readouterr().out.splitlines()
    assert [line[-1] for line in lines[1:]] == ["✓", "✗", "✓"]


def test_columns_stand_below_each_other_and_shares_are_percents(capsys):
    claims.check(("gap", 0.1234, "> 5 %"), ("a longer name", 2.25e-7, "< 1e-5"))
    assert capsys.readouterr().out == (
        "              │ measured │ expected\n"
        "gap           │ 12.3 %   │ > 5 %    ✓\n"
        "a longer name │ 2.25e-07 │ < 1e-5   ✓\n"
    )
