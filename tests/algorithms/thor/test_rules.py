"""Trace rule, Levenberg-Marquardt, damping and frequency: against the references, by properties."""

import math

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Tensor

from labkit import reference
from labkit.algorithms.thor.rules import Damping, Frequency, LevenbergMarquardt, TraceRule
from labkit.errors import InputError

pytestmark = pytest.mark.usefixtures("runtime")

positive = st.floats(1e-6, 1e6)


class TestTraceRule:
    @given(positive, positive, st.floats(0, 1), st.floats(0, 1))
    def test_decides_as_the_reference(self, trace, last, one, other):
        thresholds = max(one, other), min(one, other)
        came = TraceRule(*thresholds).decide(trace, last)
        assert came == reference.TraceRule(*thresholds).decide(trace, last)

    @given(positive, st.floats(1e-3, 0.9), st.booleans())
    def test_depends_on_the_relative_change_alone(self, last, change, up):
        trace = last * (1 + change) if up else last * (1 - change)
        rule = TraceRule(refresh=2 * change, freeze=change / 2)
        assert rule.decide(trace, last) == "skip"
        assert TraceRule(change / 2, change / 4).decide(trace, last) == "refresh"
        assert TraceRule(4 * change, 2 * change).decide(trace, last) == "freeze"

    @pytest.mark.parametrize(
        "trace, decision",
        [(1.0, "freeze"), (1.25, "skip"), (0.75, "skip"), (1.5, "skip"), (1.51, "refresh"),
         (0.49, "refresh"), (1.24, "freeze")],
    )  # fmt: skip
    def test_thresholds_belong_to_skip(self, trace, decision):
        """Numbers that floats hold exactly."""
        assert TraceRule(refresh=0.5, freeze=0.25).decide(trace, 1.0) == decision

    def test_a_freeze_of_zero_never_freezes(self):
        assert TraceRule(0.0, 0.0).decide(1.0, 1.0) == "skip"
        assert TraceRule(0.0, 0.0).decide(1.0 + 1e-9, 1.0) == "refresh"

    def test_the_papers_thresholds(self):
        assert TraceRule() == TraceRule(refresh=0.01, freeze=0.001)

    @pytest.mark.parametrize(
        "thresholds",
        [(0.001, 0.01), (0.01, -0.001), (math.nan, 0.0), (0.01, math.nan), (math.inf, 0.0)],
    )
    def test_refused(self, thresholds):
        with pytest.raises(InputError, match="expected 0 <= freeze <= refresh, both finite"):
            TraceRule(*thresholds)


class TestLevenbergMarquardt:
    @given(
        st.floats(0.01, 10), st.floats(0.1, 0.99), st.floats(0.1, 10), st.floats(-3, 3),
        st.integers(1, 6),
    )  # fmt: skip
    def test_adjusts_as_the_reference(self, damping, omega, slope, rho, interval):
        """Its omega^interval is our decay."""
        expected_rho, expected = reference.levenberg_marquardt(
            damping, 1.0, 1.0 - rho * slope, -slope, 0.0, omega=omega, interval=interval
        )
        decay = omega**interval
        came = LevenbergMarquardt(decay, 1e-9, 1e9).adjust(damping, expected_rho)
        assert came == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize(
        "rho, factor",
        [(0.76, 0.5), (0.75, 1), (0.5, 1), (0.25, 1), (0.24, 2), (-1.0, 2), (math.nan, 2),
         (math.inf, 0.5), (-math.inf, 2), (5.0, 0.5)],
    )  # fmt: skip
    def test_thresholds(self, rho, factor):
        assert LevenbergMarquardt(0.5).adjust(0.25, rho) == 0.25 * factor

    @given(positive, st.floats(-2, 2))
    def test_stays_between_its_ends(self, damping, rho):
        came = LevenbergMarquardt(0.5, 0.01, 10.0).adjust(damping, rho)
        assert 0.01 <= came <= 10

    @pytest.mark.parametrize(
        "options",
        [dict(decay=0.0), dict(decay=1.0), dict(decay=math.nan), dict(decay=-0.5),
         dict(least=0.0), dict(least=2.0, largest=1.0), dict(largest=math.inf),
         dict(least=math.nan)],
        ids=str,
    )  # fmt: skip
    def test_refused(self, options):
        with pytest.raises(InputError, match="expected 0 < decay < 1 and 0 < least <= largest"):
            LevenbergMarquardt(**options)


class TestDamping:
    @given(positive, st.integers(0, 10**6))
    def test_a_number_is_the_same_at_every_update(self, value, update):
        assert Damping(value).at(update) == value

    @given(st.lists(positive, min_size=1, max_size=20))
    def test_an_array_is_by_update(self, values):
        for given_as in (values, tuple(values), np.array(values)):
            damping = Damping(given_as)
            assert [damping.at(update) for update in range(len(values))] == values
            with pytest.raises(
                InputError, match=f"{len(values)} values and update {len(values) + 1}"
            ):
                damping.at(len(values))

    @pytest.mark.parametrize("value", [3, np.float32(0.5), np.int64(2), Tensor(0.25, ms.float32)])
    def test_numbers_of_any_kind(self, value):
        assert Damping(value).at(7) == float(value)

    def test_a_tensor_is_an_array(self):
        damping = Damping(Tensor([0.5, 0.25], ms.float32))
        assert (damping.at(0), damping.at(1)) == (0.5, 0.25)

    @given(st.integers(0, 10**6))
    def test_a_function_gets_the_updates_number(self, update):
        assert Damping(lambda number: 1.0 + number).at(update) == 1.0 + update

    @pytest.mark.parametrize(
        "bad", [0, 0.0, -1.0, math.nan, math.inf, -math.inf, True, "0.1", None, 1j], ids=repr
    )
    def test_what_is_no_damping_is_refused(self, bad):
        expected = "expected a finite number > 0"
        with pytest.raises(InputError, match=expected):
            Damping(bad)
        with pytest.raises(InputError, match=expected):
            Damping([0.1, bad, 0.2])
        function = Damping(lambda update: bad if update == 3 else 0.1)
        assert function.at(2) == 0.1
        with pytest.raises(InputError, match=expected):
            function.at(3)

    @pytest.mark.parametrize("bad", [[], np.zeros((0,)), np.ones((2, 2)), [[0.1, 0.2]]], ids=repr)
    def test_other_shapes_are_refused(self, bad):
        with pytest.raises(
            InputError, match=r"damping has shape .*; expected \(\), or \(updates,\)"
        ):
            Damping(bad)


class TestFrequency:
    @given(st.integers(1, 50), st.integers(1, 300))
    def test_due_at_its_multiples(self, every, updates):
        frequency, last, due = Frequency("frequency", every), -1, []
        for update in range(updates):
            if frequency.is_due(update, last):
                due.append(update)
                last = update
        assert due == list(range(0, updates, every))

    @given(st.lists(st.integers(1, 9), min_size=1, max_size=60))
    def test_a_function_of_the_update(self, values):
        frequency, last, due = Frequency("frequency", lambda update: values[update]), -1, []
        for update in range(len(values)):
            if frequency.is_due(update, last):
                due.append(update)
                last = update
        assert due[0] == 0
        for update in range(1, len(values)):
            before = max(one for one in due if one < update)
            assert (update in due) == (update - before >= values[update])

    def test_an_update_that_was_left_out_is_made_up_for(self):
        """The one that was due was dropped: the next is due, not the next multiple."""
        frequency = Frequency("frequency", 10)
        assert frequency.is_due(11, 0) and not frequency.is_due(20, 11)
        assert frequency.is_due(21, 11) and frequency.is_due(0, -1)

    @pytest.mark.parametrize("bad", [0, -1, 1.5, 2.0, True, False, None, "10", math.nan], ids=repr)
    def test_refused(self, bad):
        said = "factor_frequency is .*; expected an integer >= 1, or a function"
        with pytest.raises(InputError, match=said):
            Frequency("factor_frequency", bad)
        function = Frequency("factor_frequency", lambda update: bad)
        with pytest.raises(InputError, match=said):
            function.is_due(1, 0)

    def test_numpys_integers_are_integers(self):
        assert Frequency("frequency", np.int64(3)).is_due(3, 0)
