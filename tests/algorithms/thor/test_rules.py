"""Trace rule, damping, frequency, and the losses that are a mean over rows."""

import math

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Tensor, mint, nn

from labkit import reference
from labkit.algorithms.thor.rules import TraceRule, by_update, check_loss
from labkit.steps.losses import CrossEntropySmooth, LossNet
from tests.support.step_cells import linear

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


@pytest.mark.parametrize("kind", [list, np.array, lambda x: Tensor(x, ms.float32)])
def test_a_damping_is_a_number_or_one_by_update(kind):
    assert by_update("damping", kind([0.5, 0.25]), above=0).tolist() == [0.5, 0.25]
    assert by_update("damping", np.float32(0.5), above=0) == 0.5
    assert by_update("damping", Tensor(0.25, ms.float32), above=0) == 0.25


MEANS = {
    nn.SoftmaxCrossEntropyWithLogits: dict(sparse=True, reduction="mean"),
    nn.CrossEntropyLoss: {},
    CrossEntropySmooth: dict(num_classes=2),
    nn.NLLLoss: {},
    nn.BCELoss: dict(reduction="mean"),
    nn.BCEWithLogitsLoss: {},
    nn.MSELoss: {},
    nn.L1Loss: {},
    mint.nn.CrossEntropyLoss: {},
}
OF_ELEMENTS = (nn.BCELoss, nn.BCEWithLogitsLoss, nn.MSELoss, nn.L1Loss)


class TestLosses:
    @pytest.mark.parametrize("kind", MEANS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
    def test_each_is_the_mean_over_rows_of_one_loss_a_row(self, kind):
        """The loss of six rows is the mean of the losses of the single rows."""
        loss, random = kind(**MEANS[kind]), np.random.default_rng(0)
        outputs, targets = random.uniform(0.1, 0.9, size=(2, 6, 2)).astype(np.float32)
        if kind not in OF_ELEMENTS:
            targets = np.array([0, 1, 1, 0, 1, 0], np.int32)
        together = float(loss(Tensor(outputs), Tensor(targets)).asnumpy())
        rows = [slice(i, i + 1) for i in range(6)]
        alone = [float(loss(Tensor(outputs[r]), Tensor(targets[r])).asnumpy()) for r in rows]
        assert together == pytest.approx(np.mean(alone), rel=1e-5) and np.std(alone) > 1e-3
        check_loss(LossNet(linear(), loss))
        check_loss(nn.WithLossCell(linear(), loss))

    def test_one_of_your_own_says_that_it_is(self):
        check_loss(LossNet(linear(), lambda y, t: ((y - t) ** 2).mean(), per="rows"))
