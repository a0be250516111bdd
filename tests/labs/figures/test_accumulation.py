"""The groups in the figure of the tail are those of the real step."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit import AccumulatedStep, LossNet
from labkit.labs.figures import accumulation


@pytest.mark.parametrize("tail", accumulation.TAILS)
@pytest.mark.parametrize(("micro_steps", "in_epoch"), [(4, 7), (3, 6), (5, 3)])
def test_the_groups_are_those_of_the_step(eager, tail, micro_steps, in_epoch):
    """Micro-batch i is the row e_i, so the weights that an update moves show its micro-batches."""
    count = 2 * in_epoch
    network = nn.Dense(count, 1, weight_init="zeros", has_bias=False)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    step = AccumulatedStep(LossNet(network, nn.MSELoss()), optimizer, micro_steps, tail=tail)
    groups, before = [], np.zeros(count)
    for number, row in enumerate(np.eye(count, dtype=np.float32)):
        step(Tensor(row[None]), Tensor(np.ones((1, 1), np.float32)))
        if (number + 1) % in_epoch == 0:
            step.end_epoch()
        weights = network.weight.asnumpy()[0].copy()
        if step.last_update.number > len(groups):
            groups.append(np.flatnonzero(weights != before).tolist())
        before = weights
    assert groups == [list(group) for group in accumulation.updates(in_epoch, micro_steps, tail)]
    assert step.last_update.number == len(groups)
