"""Options, trace rule, losses that are a mean over rows; what is refused, without a trace."""

import math

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Tensor, mint, nn
from mindspore.nn import TrainOneStepCell, WithLossCell

from labkit import reference
from labkit.algorithms.thor import ThorStep, ThorUpdate, TraceRule
from labkit.algorithms.thor.rules import by_update, check_loss
from labkit.errors import InputError
from labkit.nets.lenet import LeNet5
from labkit.nets.small import NextToken
from labkit.steps.losses import CrossEntropySmooth, LossNet, TokenLossNet
from tests.support.step_cells import linear, momentum

pytestmark = pytest.mark.usefixtures("runtime")

positive = st.floats(1e-6, 1e6)


class TestTraceRule:
    @given(positive, positive, st.floats(0, 1), st.floats(0, 1))
    def test_decides_as_the_reference(self, trace, last, threshold, other):
        thresholds = max(threshold, other), min(threshold, other)
        decision = TraceRule(*thresholds).decide(trace, last)
        assert decision == reference.TraceRule(*thresholds).decide(trace, last)

    def test_thresholds_belong_to_skip(self):
        """Floats hold these numbers exactly, and the change is relative to the last trace."""
        traces = {"refresh": (1.51, 0.49), "skip": (1.25, 0.75, 1.5), "freeze": (1.0, 1.24)}
        for decision, own in traces.items():
            for trace in own:
                assert TraceRule(refresh=0.5, freeze=0.25).decide(trace, 1.0) == decision
                assert TraceRule(refresh=0.5, freeze=0.25).decide(4 * trace, 4.0) == decision
        assert TraceRule(0.0, 0.0).decide(1.0, 1.0) == "skip"  # zero never freezes
        # Nor do traces beyond float32.
        assert TraceRule().decide(math.inf, math.inf) == "refresh"
        assert reference.TraceRule().decide(math.inf, math.inf) == "refresh"


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


OPTIONS = [
    (dict(bias="homogenous"), "bias: expected one of.*Did you mean 'homogeneous'"),
    (dict(split=0), "split: expected an integer >= 1, got 0"),
    (dict(factor_decay=1.0), "factor_decay: expected a finite number >= 0 and < 1, got 1.0"),
    (dict(kl_clip=0), "kl_clip: expected a finite number > 0, got 0"),
    (dict(trace_rule=0.01), "trace_rule: expected a TraceRule or None, got 0.01"),
    (dict(frequency=0), "frequency: expected an integer >= 1, got 0"),
    (dict(damping=-0.1), "damping: expected a finite number > 0, got -0.1"),
    (dict(damping=[0.1, math.nan]), r"damping\[1\]: expected a finite number > 0, got nan"),
    (dict(damping=[[0.1, 0.2]]), r"damping: expected shape .*, got \(1, 2\)"),
    (dict(skip="fc1"), "skip: expected a list of names or patterns of layers, got 'fc1'"),
    (dict(skip=["fc4"]), "skip: .*, got 'fc4', which matches none of.*Did you mean 'fc[123]'"),
    (dict(skip=["*"]), r"skip=\('\*',\) leaves; THOR has nothing to precondition"),
    (dict(frequenzy=3), "unknown option 'frequenzy'.*Did you mean 'frequency'"),
    (dict(los_scale=1.0), "unknown option 'los_scale'"),
    (dict(precision="O9"), "precision: .*'O9'"),
]


@pytest.mark.parametrize("options, message", OPTIONS)
def test_options(options, message):
    network = LeNet5()
    loss_net = LossNet(network, nn.CrossEntropyLoss())
    cells = dict(loss_net.cells_and_names())
    with pytest.raises(InputError, match=message):
        ThorStep(loss_net, momentum(network), **({"damping": 0.1} | options))
    assert dict(loss_net.cells_and_names()) == cells


def test_networks():
    def tapped(network):
        return ThorUpdate(LossNet(network, nn.CrossEntropyLoss()), momentum(network), 0.1)

    network = LeNet5()
    tapped(network)
    with pytest.raises(InputError, match="'conv1' has a tap .*call that one's release"):
        tapped(network)
    network = LeNet5()
    network.conv2.data_format = "NHWC"  # MindSpore refuses to build one on CPU
    with pytest.raises(InputError, match="expected 'NCHW', got 'NHWC'"):
        tapped(network)
    with pytest.raises(InputError, match="nothing to precondition"):
        tapped(nn.SequentialCell(nn.LayerNorm((4,))))


def _one_step():
    network = linear()
    return TrainOneStepCell(WithLossCell(network, nn.MSELoss()), momentum(network))


WEIGHTS = Tensor([0.25, 0.75])


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: LossNet(linear(), lambda y, t: (y - t).sum()), "a LossNet of <lambda>"),
        (lambda: LossNet(linear(), nn.MSELoss(reduction="sum")), "a LossNet of MSELoss"),
        (lambda: LossNet(linear(), CrossEntropySmooth(reduction="sum")), "of CrossEntropySmooth"),
        (lambda: LossNet(linear(), nn.NLLLoss(weight=WEIGHTS)), "of NLLLoss with class weights"),
        (lambda: LossNet(linear(), mint.nn.CrossEntropyLoss(weight=WEIGHTS)), "with class weights"),
        (lambda: TokenLossNet(NextToken()), "a TokenLossNet"),
        (linear, "a Dense"),
        (_one_step, "a TrainOneStepCell"),
    ],
)
def test_losses_that_are_no_mean_over_rows(make, named):
    loss_net = make()
    said = f"loss_net: expected the mean over .*, got .*{named}; loss='sample mean'"
    with pytest.raises(InputError, match=said):
        ThorUpdate(loss_net, momentum(linear()), 0.1)


def test_the_trace_rules_thresholds():
    with pytest.raises(InputError, match="refresh: expected a finite number >= 0, got inf"):
        TraceRule(refresh=math.inf)
    with pytest.raises(InputError, match="freeze: expected .* >= 0 and <= 0.001, got 0.01"):
        TraceRule(0.001, 0.01)
