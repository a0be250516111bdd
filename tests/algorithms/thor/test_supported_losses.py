"""Losses that are means over rows are taken, all others refused by what is wrong with them."""

import numpy as np
import pytest
from mindspore import Tensor, mint, nn
from mindspore.nn import TrainOneStepCell, WithLossCell

from labkit.algorithms.thor import ThorUpdate
from labkit.algorithms.thor.supported_losses import SUPPORTED, check_loss
from labkit.errors import InputError
from labkit.nets.small import NextToken
from labkit.steps.losses import CrossEntropySmooth, LossNet, TokenLossNet
from tests.support.step_cells import linear, momentum

pytestmark = pytest.mark.usefixtures("runtime")

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


def test_every_supported_class_is_tested():
    assert set(TAKEN) == set(SUPPORTED)


@pytest.mark.parametrize("kind", TAKEN, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_taken_with_reduction_mean_and_refused_with_another(kind):
    check_loss(LossNet(linear(), kind(**TAKEN[kind])))
    options = TAKEN[kind] | {"reduction": "sum"}
    with pytest.raises(InputError, match=f"{kind.__name__} has reduction 'sum'; expected 'mean'"):
        check_loss(LossNet(linear(), kind(**options)))
    with pytest.raises(InputError, match="has reduction 'none'; expected 'mean'"):
        check_loss(LossNet(linear(), kind(**(options | {"reduction": "none"}))))


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).uniform(0.1, 0.9, size=shape).astype(np.float32)


TARGETS = {
    nn.BCELoss: numbers(6, 2, seed=1),
    nn.BCEWithLogitsLoss: numbers(6, 2, seed=1),
    nn.MSELoss: numbers(6, 2, seed=1),
    mint.nn.MSELoss: numbers(6, 2, seed=1),
}


@pytest.mark.parametrize("kind", TAKEN, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_each_is_the_mean_over_rows_of_one_loss_a_row(kind):
    """The loss of six rows is the mean of the losses of each alone."""
    if kind is mint.nn.MSELoss:
        pytest.skip("its operator, MSELossExt, is not there on CPU")
    loss = kind(**TAKEN[kind])
    outputs = numbers(6, 2)
    targets = TARGETS.get(kind, np.array([0, 1, 1, 0, 1, 0], np.int32))
    together = float(loss(Tensor(outputs), Tensor(targets)).asnumpy())
    alone = [
        float(loss(Tensor(outputs[i : i + 1]), Tensor(targets[i : i + 1])).asnumpy())
        for i in range(6)
    ]
    assert together == pytest.approx(np.mean(alone), rel=1e-5)
    assert np.std(alone) > 1e-3


@pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, nn.NLLLoss, mint.nn.CrossEntropyLoss])
def test_class_weights_are_refused(kind):
    """Their mean divides by the rows' weights: not the mean over rows."""
    loss_net = LossNet(linear(), kind(weight=Tensor([0.25, 0.75])))
    with pytest.raises(InputError, match=f"{kind.__name__} has weights.*expected none"):
        check_loss(loss_net)


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: LossNet(linear(), nn.L1Loss()), "a loss of class L1Loss came"),
        (lambda: LossNet(linear(), nn.RMSELoss()), "a loss of class RMSELoss came"),
        (lambda: LossNet(linear(), lambda y, t: (y - t).sum()), "a loss of class function came"),
        (lambda: TokenLossNet(NextToken()), "a loss_net of class TokenLossNet came"),
        (lambda: linear(), "a loss_net of class Dense came"),
    ],
)
def test_what_is_not_known_is_refused(make, named):
    with pytest.raises(InputError, match=f"{named}; expected LossNet") as caught:
        check_loss(make())
    assert "SoftmaxCrossEntropyWithLogits" in str(caught.value)
    assert "loss='sample mean'" in str(caught.value)


def test_mindspores_own_loss_net_is_known():
    check_loss(WithLossCell(linear(), nn.MSELoss()))
    with pytest.raises(InputError, match="class TrainOneStepCell"):
        network = linear()
        check_loss(TrainOneStepCell(WithLossCell(network, nn.MSELoss()), momentum(network)))


def test_an_update_asks_unless_told():
    network = linear()
    loss_net = LossNet(network, nn.L1Loss())
    with pytest.raises(InputError, match="class L1Loss"):
        ThorUpdate(loss_net, momentum(network), 0.1)
    assert len(ThorUpdate(loss_net, momentum(network), 0.1, loss="sample mean").layers) == 1
