"""Trace rule, Levenberg-Marquardt, damping and frequency: against the references, by properties."""

import math

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Tensor

from labkit import reference
from labkit.algorithms.thor.rules import Damping, Frequency, TraceRule
from labkit.errors import InputError

pytestmark = pytest.mark.usefixtures("runtime")

positive = st.floats(1e-6, 1e6)


class TestTraceRule:
    @given(positive, positive, st.floats(0, 1), st.floats(0, 1))
    def test_decides_as_the_reference(self, trace, last, threshold, other):
        thresholds = max(threshold, other), min(threshold, other)
        decision = TraceRule(*thresholds).decide(trace, last)
        assert decision == reference.TraceRule(*thresholds).decide(trace, last)

    @pytest.mark.parametrize(
        "trace, decision",
        [(1.0, "freeze"), (1.25, "skip"), (0.75, "skip"), (1.5, "skip"), (1.51, "refresh"),
         (0.49, "refresh"), (1.24, "freeze")],
    )  # fmt: skip
    def test_thresholds_belong_to_skip(self, trace, decision):
        """A change that equals a threshold skips.

        Floats hold these numbers exactly, and the change is relative to the last trace.
        """
        assert TraceRule(refresh=0.5, freeze=0.25).decide(trace, 1.0) == decision
        assert TraceRule(refresh=0.5, freeze=0.25).decide(4 * trace, 4.0) == decision

    def test_a_freeze_of_zero_never_freezes(self):
        assert TraceRule(0.0, 0.0).decide(1.0, 1.0) == "skip"

    def test_traces_beyond_float32_freeze_nothing(self):
        for rule in (TraceRule(), reference.TraceRule()):
            assert rule.decide(math.inf, math.inf) == "refresh"

    def test_the_papers_thresholds(self):
        assert TraceRule() == TraceRule(refresh=0.01, freeze=0.001)


class TestDamping:
    @pytest.mark.parametrize("value", [3, np.float32(0.5), np.int64(2), Tensor(0.25, ms.float32)])
    def test_a_number_is_the_same_at_every_update(self, value):
        assert Damping(value).at(0) == Damping(value).at(10**6) == float(value)

    @pytest.mark.parametrize("kind", [list, tuple, np.array, lambda x: Tensor(x, ms.float32)])
    def test_an_array_is_by_update(self, kind):
        damping = Damping(kind([0.5, 0.25, 0.125]))
        assert [damping.at(update) for update in range(3)] == [0.5, 0.25, 0.125]
        with pytest.raises(InputError, match="damping has 3 values for 4 updates"):
            damping.at(3)

    def test_a_function_is_of_the_updates_number(self):
        damping = Damping(lambda update: 1.0 + update if update < 3 else 0)
        assert damping.at(2) == 3.0
        with pytest.raises(InputError, match="damping: expected a finite number > 0, got 0"):
            damping.at(3)


class TestFrequency:
    @given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.booleans())
    def test_due_once_so_many_updates_have_passed(self, values, constant):
        every = [values[0]] * len(values) if constant else values
        frequency = Frequency("frequency", values[0] if constant else lambda update: every[update])
        last, due = -1, []
        for update in range(len(values)):
            if frequency.is_due(update, last):
                due.append(update)
                last = update
        assert due[0] == 0
        for update in range(1, len(values)):
            before = max(earlier for earlier in due if earlier < update)
            assert (update in due) == (update - before >= every[update])

    def test_an_update_that_was_left_out_is_made_up_for(self):
        """If the update that was due is dropped, the next one is due, not the next multiple."""
        frequency = Frequency("frequency", 10)
        assert frequency.is_due(11, 0) and not frequency.is_due(20, 11)
        assert frequency.is_due(21, 11) and frequency.is_due(0, -1)

    def test_a_function_that_returns_no_frequency(self):
        with pytest.raises(InputError, match="factor_frequency: expected an integer >= 1, got 0"):
            Frequency("factor_frequency", lambda update: 0)
        frequency = Frequency("frequency", lambda update: 5 - update)
        with pytest.raises(InputError, match="^frequency: expected an integer >= 1, got 0"):
            frequency.is_due(5, 0)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: TraceRule(refresh=math.inf), "refresh: expected a finite number >= 0, got inf"),
        (lambda: TraceRule(0.001, 0.01), "freeze: expected .* >= 0 and <= 0.001, got 0.01"),
        (lambda: Damping(0), "damping: expected a finite number > 0, got 0"),
        (lambda: Damping([0.1, math.nan]), "damping: expected a finite number > 0, got nan"),
        (lambda: Damping([]), r"damping: expected shape \(\) or \(updates,\), got \(0,\)"),
        (lambda: Damping([[0.1, 0.2]]), r"damping: expected shape .*, got \(1, 2\)"),
        (lambda: Frequency("frequency", 0), "frequency: expected an integer >= 1, got 0"),
    ],
)
def test_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
