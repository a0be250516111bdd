"""How many rows a batch holds."""

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from labkit import reference
from labkit.errors import InputError
from labkit.steps.batch_check import batch_rows
from labkit.steps.losses import LossNet
from labkit.steps.objective import Objective
from tests.support.step_cells import linear, momentum, plain, rows, tensors

pytestmark = pytest.mark.usefixtures("runtime")


def batch(*shapes):
    return tuple(np.zeros(shape, np.float32) for shape in shapes)


def objective(axis=None, flattened=False):
    made = Objective(LossNet(linear(), nn.MSELoss()), "samples", axis, "mean", True)
    made.flattened = flattened
    return made


class Tempered(nn.Cell):
    """The mean squared error of a network's outputs and the targets, both over a temperature."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, temperature, inputs, targets):
        return ops.mean(ops.square((self.network(inputs) - targets) / temperature))


@pytest.mark.parametrize(
    ("shapes", "axis", "expected"),
    [
        ([(4, 3), (4,)], None, 4),
        ([(4, 7), (4, 7)], None, 4),
        ([(4, 7), (4, 7), (), (4, 7)], None, 4),
        ([(4, 3)], None, 4),
        ([(), (4, 7), (4, 7)], None, 4),
        ([(), (9, 4, 3), (4,)], 1, 4),
        ([(9, 4, 3), (4,)], 1, 4),
        ([(9, 4), (9, 4)], 1, 4),
        ([(9, 4, 3), (4, 5)], 1, 4),
        ([(9, 4), (9, 9), (9, 4)], 1, 4),
        ([(4, 9), (36,)], 0, 4),
        ([(9, 1, 3), (1,)], 1, 1),
    ],
)
def test_rows(shapes, axis, expected):
    arrays = batch(*shapes)
    assert batch_rows(arrays, axis) == expected
    assert batch_rows(tuple(map(Tensor, arrays)), axis) == expected
    assert objective(axis).rows(tuple(map(Tensor, arrays))) == expected


def test_rows_of_a_step_that_needs_no_weights():
    """Their number is only recorded, so that time-major inputs need not be refused."""
    assert objective().rows(batch((9, 4, 3), (4,))) == 4
    assert objective(flattened=True).rows(batch((4, 9, 3), (36,))) == 4


def test_a_scalar_before_the_inputs():
    network = linear()
    step = plain(Tempered(network), momentum(network))
    inputs, targets = rows(5)
    loss, _ = reference.linear_regression(
        network.weight.asnumpy(), network.bias.asnumpy(), inputs, 2 * targets
    )
    moved = step(Tensor(2.0), *tensors(inputs, 2 * targets))
    assert float(moved) == pytest.approx(loss / 4, rel=1e-6)
    assert int(step.record.last_images.asnumpy()) == 5
    with pytest.raises(InputError, match="the batch holds no tensor with an axis"):
        step(Tensor(2.0), Tensor(3.0))


def test_nested_batches():
    inputs, mask, labels = batch((4, 7), (4, 7), (4,))
    assert batch_rows(((inputs, mask), labels)) == 4
    assert batch_rows([{"tokens": inputs, "mask": mask}, labels]) == 4
    with pytest.raises(InputError, match=r"\(4, 7\), \(7, 4\), \(4,\)"):
        batch_rows(({"tokens": inputs, "mask": mask.T}, labels))


@pytest.mark.parametrize(
    ("shapes", "axis", "words"),
    [
        ([(9, 4, 3), (4,)], None, r"disagree .* \(9, 4, 3\), \(4,\); expected .* batch_axis"),
        ([(4, 9), (36,)], None, "disagree"),
        ([(4, 3), (7, 3), (4,)], None, "disagree"),
        ([()], None, "no tensor with an axis"),
        ([], None, "no tensor with an axis"),
        ([(9, 4, 3), (4,)], 0, "expected 9 rows, .* at batch_axis 0"),
        ([(9, 4, 3), (4,)], 2, "expected 3 rows, .* at batch_axis 2"),
        ([(9, 4, 3), (5, 2)], 1, "expected 4 rows, .* at batch_axis 1"),
        ([(4, 3), (4,)], 2, r"batch_axis: expected an axis .*, \(4, 3\), got 2"),
        ([(4, 3), (4,)], -1, "batch_axis: expected an integer >= 0, got -1"),
        ([(4, 3), (4,)], True, "batch_axis: expected an integer >= 0, got True"),
    ],
)
def test_what_cannot_be_told(shapes, axis, words):
    with pytest.raises(InputError, match=words):
        batch_rows(batch(*shapes), axis)
