"""A technique written outside labkit gets accumulation, clipping and exact resume for free."""

import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn

from labkit.steps.accumulation import AccumulatedStep
from labkit.training.fit import fit
from tests.support.step_cells import assert_bit_equal, regression, rows, snapshot, tensors

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture
def program(example):
    return example("own_technique")


def build(program, period=2, step_size=0.5, **options):
    network, loss_net = regression()
    sgd = nn.SGD(network.trainable_params(), 0.1)
    update = program.Lookahead(sgd, period, step_size)
    return network, AccumulatedStep(loss_net, sgd, 2, update=update, **options)


def test_its_weights_are_those_of_the_paper(program):
    """They match Algorithm 1 in float64 on averaged, clipped gradients of two micro-batches."""
    network, step = build(program, clip_norm=0.5)
    weight, bias = (p.asnumpy().astype(np.float64) for p in network.trainable_params())
    slow = weight, bias
    for update in range(5):
        inputs, targets = rows(8, seed=update)
        for part in (slice(0, 4), slice(4, 8)):
            step(*tensors(inputs[part], targets[part]))
        error = 2 * (inputs @ weight.T + bias - targets) / targets.size
        gradients = error.T @ inputs, error.sum(0)
        norm = np.sqrt(sum(np.sum(g * g) for g in gradients))
        scale = min(1, 0.5 / norm)
        fast = [w - 0.1 * scale * g for w, g in zip((weight, bias), gradients, strict=True)]
        if update % 2:
            fast = slow = [s + 0.5 * (f - s) for s, f in zip(slow, fast, strict=True)]
        weight, bias = fast
    for parameter, expected in zip(network.trainable_params(), (weight, bias), strict=True):
        np.testing.assert_allclose(parameter.asnumpy(), expected, rtol=2e-5, atol=1e-6)


def test_a_training_that_was_stopped_goes_on_to_the_same_bits(program, eager, tmp_path):
    data = ds.NumpySlicesDataset(rows(36), ["x", "y"], shuffle=False).batch(4)
    _, whole = build(program, period=3)
    fit(whole, data, epochs=2, progress=None)
    _, first = build(program, period=3)
    fit(first, data, epochs=1, folder=tmp_path, progress=None)
    _, second = build(program, period=3)
    fit(second, data, epochs=2, folder=tmp_path, resume=True, progress=None)
    slow = {name: v for name, v in snapshot(whole).items() if "slow" in name}
    assert slow
    assert_bit_equal(snapshot(second), snapshot(whole))


def test_the_program_learns(program, tmp_path):
    assert program.main(tmp_path) > 0.93
