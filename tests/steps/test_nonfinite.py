"""Where a loss stopped being finite: in the batch, a weight, a layer, or the loss function."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from labkit.steps.losses import LossNet, first_nonfinite
from labkit.steps.state import set_state
from tests.support.step_cells import assert_bit_equal, rows, snapshot, tensors

pytestmark = pytest.mark.usefixtures("runtime")


def build():
    """Return (network, loss_net, batch): dense, BatchNorm, ReLU, dense, in training mode."""
    ms.set_seed(1)
    network = nn.SequentialCell(nn.Dense(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dense(4, 2))
    loss_net = LossNet(network, nn.MSELoss())
    loss_net.set_train()
    return network, loss_net, [array.copy() for array in rows(8)]


def spoil(parameter, value=np.nan):
    array = parameter.asnumpy().copy()
    array.flat[0] = value
    set_state(parameter, array)


def overflow(network):
    """All weights stay finite; the outputs of the last layer and its input's square do not."""
    for layer in (network[0], network[3]):
        set_state(layer.weight, np.full(layer.weight.shape, 3e38, np.float32))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda net, batch: batch[0].fill(np.inf), "the batch's tensor 0 is not finite"),
        (lambda net, _: spoil(net[1].gamma), "weight '1.gamma' of layer '1' is not finite"),
        (lambda net, _: spoil(net[3].bias, np.inf), "weight '3.bias' of layer '3' is not finite"),
        (lambda net, _: overflow(net), "layer '0' is the first whose output is not finite"),
        (
            lambda net, _: set_state(net[3].bias, np.full(2, 1e30, np.float32)),
            "all layers' outputs are finite, the loss function's is not",  # their square overflows
        ),
        (lambda net, _: None, "loss and layers' outputs are finite when computed once more"),
    ],
)
def test_the_first_that_is_not_finite_is_named(change, said):
    network, loss_net, batch = build()
    change(network, batch)
    assert first_nonfinite(loss_net, tensors(*batch)) == said


def test_nothing_is_changed_and_hooks_are_gone():
    """Running statistics, mode and weights stay; a later call of the network runs no hook."""
    _, loss_net, arrays = build()
    before = snapshot(loss_net)
    for _ in range(2):
        first_nonfinite(loss_net, tensors(*arrays))
    assert_bit_equal(snapshot(loss_net), before)
    assert ms.get_context("mode") == ms.GRAPH_MODE and loss_net.training
    assert not any(cell._forward_hook for _, cell in loss_net.cells_and_names())
    loss_net(*tensors(*arrays))
    # The forward pass of this network does leave a trace.
    assert (snapshot(loss_net)["1.moving_mean"] != before["1.moving_mean"]).any()
