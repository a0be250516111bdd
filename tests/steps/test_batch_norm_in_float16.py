"""precision="O3": BatchNorm also computes in float16, as in MindSpore's O3; in O2 it does not."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import amp, nn

from labkit.steps.losses import LossNet
from labkit.steps.step import PlainStep

pytestmark = pytest.mark.usefixtures("runtime")


def images(seed=0):
    rng = np.random.default_rng(seed)
    x = ms.Tensor(rng.normal(3, 1, (8, 3, 6, 6)), ms.float32)
    return x, ms.Tensor(rng.integers(0, 5, 8), ms.int32)


def network():
    rng = np.random.default_rng(1)
    net = nn.SequentialCell(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dense(144, 5)
    )
    for parameter in net.trainable_params():
        parameter.set_data(ms.Tensor(rng.normal(0.5, 0.3, parameter.shape), ms.float32))
    return net


def of_step(precision):
    """Return (loss, weights, running mean) after an SGD update of rate 1."""
    net = network()
    norm = net[1]  # O2 wraps it
    optimizer = nn.SGD(net.trainable_params(), 1.0)
    step = PlainStep(LossNet(net, nn.CrossEntropyLoss()), optimizer, precision=precision)
    loss = float(step(*images()).asnumpy())
    return loss, [p.asnumpy() for p in net.trainable_params()], norm.moving_mean


def of_mindspore(level):
    """Return (loss, weights) of the same update by MindSpore's own amp."""
    net = network()
    half = amp.auto_mixed_precision(net, level).set_train()
    criterion = nn.CrossEntropyLoss()
    x, labels = images()

    def forward(x):
        return criterion(half(x), labels)

    loss, gradients = ms.value_and_grad(forward, None, net.trainable_params())(x)
    weights = [p.asnumpy() for p in network().trainable_params()]
    after = [w - g.asnumpy() for w, g in zip(weights, gradients, strict=True)]
    return float(loss.asnumpy()), after


@pytest.mark.parametrize("precision", ["O2", "O3"])
def test_it_is_mindspores(precision):
    loss, weights, mean = of_step(precision)
    expected, expected_weights = of_mindspore(precision)
    assert loss == expected
    for value, other in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-7)
    assert mean.dtype == ms.float32 and mean.asnumpy().any()


def test_the_two_differ():
    """In O3 BatchNorm rounds its outputs to float16: the losses differ, but by no more."""
    (two, *_), (three, *_), (none, *_) = (of_step(level) for level in ("O2", "O3", "O0"))
    assert two != three and three == pytest.approx(none, rel=2e-2)
