"""The program that lab 04 starts on ranks, in one process: which micro-batches it uses."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit.demos import adasum_on_ranks as demo
from labkit.labs.compare import parameter_values
from labkit.steps.accumulation import AccumulatedStep


def test_each_update_takes_the_next_micro_batches(runtime):
    """The mean over two virtual workers is an update of both micro-batches."""
    draw = np.random.default_rng(0)
    images = draw.normal(size=(4 * demo.BATCH, 1, 32, 32)).astype(np.float32)
    labels = draw.integers(0, 10, len(images)).astype(np.int32)
    step = demo.make_step(5, "mean", workers=2)
    (milliseconds,) = demo.train([step], images, labels, updates=2)
    assert milliseconds > 0

    loss_net = demo.make_step(5, "mean", workers=2).gradient.loss_net
    optimizer = nn.Momentum(loss_net.trainable_params(), demo.RATE, demo.MOMENTUM)
    accumulated = AccumulatedStep(loss_net, optimizer, 2)
    before = parameter_values(loss_net)
    for first in range(0, len(images), demo.BATCH):
        rows = slice(first, first + demo.BATCH)
        accumulated(Tensor(images[rows]), Tensor(labels[rows]))
    trained = parameter_values(step.gradient.loss_net)
    for name, value in parameter_values(loss_net).items():
        np.testing.assert_allclose(trained[name], value, rtol=0, atol=1e-6, err_msg=name)
        assert np.abs(value - before[name]).max() > 1e-5, name


def test_too_few_updates_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        demo.main([str(tmp_path), "--updates", "1"])
    assert "--updates: expected at least 2, got 1" in capsys.readouterr().err
