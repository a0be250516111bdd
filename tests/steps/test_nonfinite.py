"""Where a loss stopped being finite: in the batch, a weight, a layer, or the loss function."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit.steps.gradients import set_state
from labkit.steps.losses import LossNet
from labkit.steps.nonfinite import first_nonfinite
from tests.support.step_cells import assert_bit_equal, rows, snapshot, tensors

pytestmark = pytest.mark.usefixtures("runtime")


def build():
    """Return (network, loss_net, batch): dense, BatchNorm, ReLU, dense, in training mode."""
    ms.set_seed(1)
    network = nn.SequentialCell(nn.Dense(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dense(4, 2))
    loss_net = LossNet(network, nn.MSELoss())
    loss_net.set_train()
    return network, loss_net, rows(8)


def spoil(parameter, value=np.nan):
    array = parameter.asnumpy().copy()
    array.flat[0] = value
    set_state(parameter, array)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_batch(number, value):
    _, loss_net, arrays = build()
    arrays = [array.copy() for array in arrays]
    arrays[number][3, 1] = value
    said = first_nonfinite(loss_net, tensors(*arrays))
    assert said == f"the batch's tensor {number} is not finite"


def test_integers_are_finite():
    network = nn.Dense(3, 2)
    loss_net = LossNet(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    batch = Tensor(rows(4)[0]), Tensor(np.zeros(4, np.int32))
    said = first_nonfinite(loss_net, batch)
    assert said == "loss and layers' outputs are finite when computed once more"


@pytest.mark.parametrize(
    ("index", "name", "layer"), [(0, "0.weight", "0"), (1, "1.gamma", "1"), (3, "3.bias", "3")]
)
def test_a_weight(index, name, layer):
    network, loss_net, arrays = build()
    parameter = next(p for p in network[index].get_parameters() if p.name.endswith(name))
    spoil(parameter)
    said = first_nonfinite(loss_net, tensors(*arrays))
    assert said == f"weight '{parameter.name}' of layer '{layer}' is not finite"


def test_a_weight_of_a_network_of_one_layer():
    network = nn.Dense(3, 2)
    spoil(network.bias, np.inf)
    said = first_nonfinite(LossNet(network, nn.MSELoss()), tensors(*rows(4)))
    assert said == "weight 'bias' of layer 'network' is not finite"


def test_the_first_layer_that_overflows():
    """All weights are finite; the outputs of the second layer and the next one are not."""
    network = nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 4), nn.Dense(4, 2))
    for layer in network[:2]:
        set_state(layer.weight, np.full(layer.weight.shape, 1e20, np.float32))
    said = first_nonfinite(LossNet(network, nn.MSELoss()), tensors(*rows(4)))
    assert said == "layer '1' is the first whose output is not finite"


def test_the_loss_function():
    network, loss_net, arrays = build()
    set_state(network[3].bias, np.full(2, 1e30, np.float32))  # its square overflows
    said = first_nonfinite(loss_net, tensors(*arrays))
    assert said == "all layers' outputs are finite, the loss function's is not"


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
    assert not np.array_equal(
        snapshot(loss_net)["1.moving_mean"], before["1.moving_mean"]
    )  # the forward pass of this network does leave a trace
