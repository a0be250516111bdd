"""The program that lab 04 starts: its micro-batches, and ranks against virtual workers."""

import numpy as np
import pytest
from mindspore import Tensor, nn

import labkit
from labkit.data.mnist import load_arrays
from labkit.data.prepare import prepare
from labkit.labs.compare import parameter_values
from labkit.runtime import pynative

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture
def demo(example):
    return example("adasum_on_ranks")


def test_each_update_takes_the_next_micro_batches(demo, eager):
    """The mean over two virtual workers is an update of both micro-batches."""
    draw = np.random.default_rng(0)
    images = draw.normal(size=(4 * demo.BATCH, 1, 32, 32)).astype(np.float32)
    labels = draw.integers(0, 10, len(images)).astype(np.int32)
    step = demo.make_step(5, "mean", workers=2)
    (milliseconds,) = demo.train([step], images, labels, updates=2)
    assert milliseconds > 0

    loss_net = demo.make_step(5, "mean", workers=2).gradient.loss_net
    optimizer = nn.Momentum(loss_net.trainable_params(), demo.RATE, demo.MOMENTUM)
    accumulated = labkit.AccumulatedStep(loss_net, optimizer, 2)
    before = parameter_values(loss_net)
    for first in range(0, len(images), demo.BATCH):
        rows = slice(first, first + demo.BATCH)
        accumulated(Tensor(images[rows]), Tensor(labels[rows]))
    trained = parameter_values(step.gradient.loss_net)
    for name, value in parameter_values(loss_net).items():
        np.testing.assert_allclose(trained[name], value, rtol=0, atol=1e-6, err_msg=name)
        assert np.abs(value - before[name]).max() > 1e-5, name


@pytest.mark.slow
def test_two_ranks_hold_the_weights_of_two_virtual_workers(demo, tmp_path):
    seed, updates = 3, 2
    images, labels = load_arrays(prepare("mnist"), "train", updates * 2 * demo.BATCH)
    options = ("--updates", updates, "--seed", seed)
    labkit.launch(demo.__file__, tmp_path, *options, workers=2, timeout=300)
    first, second = (np.load(tmp_path / f"rank_{rank}.npz") for rank in range(2))

    step = demo.make_step(seed, workers=2)
    before = parameter_values(step.gradient.loss_net)
    with pynative():
        assert demo.train([step], images, labels, updates)[0] > 0
    values = parameter_values(step.gradient.loss_net)
    assert set(values) | {"ms_mean", "ms_adasum"} == set(first) and len(values) == 8
    for name, value in values.items():
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        np.testing.assert_allclose(first[name], value, rtol=0, atol=1e-6, err_msg=name)
        assert np.abs(value - before[name]).max() > 1e-5, name
