"""What ``ThorUpdate`` and ``ThorStep`` refuse; the network is then as it was."""

import math

import pytest
from mindspore import Tensor, mint, nn
from mindspore.nn import TrainOneStepCell, WithLossCell

from labkit.algorithms.thor import ThorStep, ThorUpdate, TraceRule
from labkit.errors import InputError
from labkit.nets.lenet import LeNet5
from labkit.nets.small import NextToken
from labkit.steps.losses import CrossEntropySmooth, LossNet, TokenLossNet
from tests.support.step_cells import linear, momentum

pytestmark = pytest.mark.usefixtures("runtime")

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


def _nhwc():
    network = LeNet5()
    network.conv2.data_format = "NHWC"  # MindSpore refuses to build one on CPU
    return network


def _tapped():
    network = LeNet5()
    ThorUpdate(LossNet(network, nn.CrossEntropyLoss()), momentum(network), 0.1)
    return network


@pytest.mark.parametrize(
    "make, message",
    [
        (_nhwc, "expected 'NCHW', got 'NHWC'"),
        (_tapped, "'conv1' has a tap .*call that one's release"),
        (lambda: nn.SequentialCell(nn.LayerNorm((4,))), "nothing to precondition"),
    ],
)
def test_networks(make, message):
    network = make()
    with pytest.raises(InputError, match=message):
        ThorUpdate(LossNet(network, nn.CrossEntropyLoss()), momentum(network), 0.1)


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
