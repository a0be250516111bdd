"""What ``ThorUpdate`` refuses, which options go where, and which losses are means over rows."""

import dataclasses

import numpy as np
import pytest
from mindspore import Tensor, mint, nn
from mindspore.nn import TrainOneStepCell, WithLossCell

from labkit.algorithms.thor import Options, ThorStep, ThorUpdate, TraceRule
from labkit.algorithms.thor.options import LOSSES, check_loss
from labkit.errors import InputError
from labkit.nets.small import NextToken
from labkit.steps.losses import CrossEntropySmooth, LossNet, TokenLossNet
from tests.support.step_cells import assert_bit_equal, linear, momentum, regression, snapshot

pytestmark = pytest.mark.usefixtures("runtime")

NAMES = [field.name for field in dataclasses.fields(Options)]


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(bias="homogenous"), "bias: expected one of.*Did you mean 'homogeneous'"),
        (dict(damping_split="py"), "damping_split: expected one of 'equal', 'pi', got 'py'"),
        (dict(formulas="upstream"), "formulas: expected one of.*Did you mean 'upstream_gpu'"),
        (dict(loss="mean"), "loss: expected one of 'known', 'sample mean', got 'mean'"),
        (dict(nan="ignore"), "nan: expected one of 'stop', 'drop', got 'ignore'"),
        (dict(split=0), "split: expected an integer >= 1, got 0"),
        (dict(factor_decay=1.0), "factor_decay: expected a finite number >= 0 and < 1, got 1.0"),
        (dict(kl_clip=0), "kl_clip: expected a finite number > 0, got 0"),
        (dict(trace_rule=0.01), "trace_rule: expected a TraceRule or None, got 0.01"),
        (dict(skip="fc"), "skip: expected a tuple of Cells or layer names, got 'fc'"),
        (dict(frequency=0), "^frequency: expected an integer >= 1, got 0"),
        (dict(factor_frequency=1.5), "factor_frequency: expected an integer >= 1, got 1.5"),
        (dict(damping=-0.1), "damping: expected a finite number > 0, got -0.1"),
    ],
    ids=str,
)
def test_a_refused_update_leaves_the_network_as_it_was(options, message):
    network, loss_net = regression()
    cells, values = dict(loss_net.cells_and_names()), snapshot(network)
    damping = options.pop("damping", 0.1)
    with pytest.raises(InputError, match=message):
        ThorUpdate(loss_net, momentum(network), damping, **options)
    assert dict(loss_net.cells_and_names()) == cells
    assert_bit_equal(snapshot(network), values)


@pytest.mark.parametrize(
    "options", [{"frequenzy": 3}, {"los_scale": 1.0}, {"precision": "O9"}], ids=str
)
def test_a_refused_step_leaves_it_too(options):
    network, loss_net = regression()
    cells = dict(loss_net.cells_and_names())
    with pytest.raises((InputError, TypeError)):
        ThorStep(loss_net, momentum(network), 0.1, **options)
    assert dict(loss_net.cells_and_names()) == cells


def test_what_is_right_is_taken():
    right = dict(split=None, factor_decay=0, kl_clip=1, skip=["fc", nn.Dense(1, 1)], nan="drop")
    right |= dict(trace_rule=TraceRule())
    assert vars(Options(**right)).items() >= right.items()


def test_settings_name_every_option():
    """They name what a resumed training must share; a function is only "a schedule"."""
    network, loss_net = regression()
    update = ThorUpdate(loss_net, momentum(network), [0.1, 0.2], frequency=lambda update: 3)
    assert set(update.settings) == {"damping", *NAMES}
    assert update.settings["damping"] == "[0.1, 0.2]"
    assert (update.settings["frequency"], update.settings["split"]) == ("a schedule", "128")


TAKEN = {
    nn.SoftmaxCrossEntropyWithLogits: dict(sparse=True, reduction="mean"),
    nn.CrossEntropyLoss: {},
    CrossEntropySmooth: dict(num_classes=2),
    nn.NLLLoss: {},
    nn.BCELoss: dict(reduction="mean"),
    nn.BCEWithLogitsLoss: {},
    nn.MSELoss: {},
    mint.nn.CrossEntropyLoss: {},
    mint.nn.MSELoss: {},
}
OF_ELEMENTS = (nn.BCELoss, nn.BCEWithLogitsLoss, nn.MSELoss)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).uniform(0.1, 0.9, size=shape).astype(np.float32)


def one_step():
    network = linear()
    return TrainOneStepCell(WithLossCell(network, nn.MSELoss()), momentum(network))


class TestLosses:
    def test_every_supported_class_is_tested(self):
        assert set(TAKEN) == set(LOSSES)

    @pytest.mark.parametrize("kind", TAKEN, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
    def test_reduction_mean_is_taken_and_others_are_refused(self, kind):
        check_loss(LossNet(linear(), kind(**TAKEN[kind])))
        for reduction in ("sum", "none"):
            said = f"{kind.__name__}.*'mean'.*'{reduction}'|'{reduction}'; expected 'mean'"
            with pytest.raises(InputError, match=said):
                check_loss(LossNet(linear(), kind(**(TAKEN[kind] | {"reduction": reduction}))))

    # Without mint.nn.MSELoss, whose operator, MSELossExt, does not exist on CPU.
    @pytest.mark.parametrize(
        "kind",
        [kind for kind in TAKEN if kind is not mint.nn.MSELoss],
        ids=lambda kind: f"{kind.__module__}.{kind.__name__}",
    )
    def test_each_is_the_mean_over_rows_of_one_loss_a_row(self, kind):
        """The loss of six rows is the mean of the losses of the single rows."""
        loss, outputs = kind(**TAKEN[kind]), numbers(6, 2)
        targets = np.array([0, 1, 1, 0, 1, 0], np.int32)
        if kind in OF_ELEMENTS:
            targets = numbers(6, 2, seed=1)
        together = float(loss(Tensor(outputs), Tensor(targets)).asnumpy())
        rows = [slice(i, i + 1) for i in range(6)]
        alone = [float(loss(Tensor(outputs[r]), Tensor(targets[r])).asnumpy()) for r in rows]
        assert together == pytest.approx(np.mean(alone), rel=1e-5)
        assert np.std(alone) > 1e-3

    @pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, nn.NLLLoss, mint.nn.CrossEntropyLoss])
    def test_class_weights_are_refused(self, kind):
        """Their mean divides by the rows' weights, so it is not the mean over rows."""
        loss_net = LossNet(linear(), kind(weight=Tensor([0.25, 0.75])))
        with pytest.raises(InputError, match=f"{kind.__name__} has weights.*expected none"):
            check_loss(loss_net)

    @pytest.mark.parametrize(
        "make, named",
        [
            (lambda: LossNet(linear(), nn.L1Loss()), "a loss of class L1Loss"),
            (lambda: LossNet(linear(), lambda y, t: (y - t).sum()), "a loss of class function"),
            (lambda: TokenLossNet(NextToken()), "a loss_net of class TokenLossNet"),
            (linear, "a loss_net of class Dense"),
            (one_step, "class TrainOneStepCell"),
        ],
    )
    def test_what_is_not_known_is_refused(self, make, named):
        with pytest.raises(InputError, match=f"expected LossNet.*, got .*{named}") as raised:
            check_loss(make())
        assert "SoftmaxCrossEntropyWithLogits" in str(raised.value)
        assert "loss='sample mean'" in str(raised.value)

    def test_mindspores_own_loss_net_is_known(self):
        check_loss(WithLossCell(linear(), nn.MSELoss()))

    def test_an_update_asks_unless_told(self):
        network = linear()
        loss_net = LossNet(network, nn.L1Loss())
        with pytest.raises(InputError, match="class L1Loss"):
            ThorUpdate(loss_net, momentum(network), 0.1)
        assert len(ThorUpdate(loss_net, momentum(network), 0.1, loss="sample mean").layers) == 1
