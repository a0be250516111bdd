"""Networks that others published, mindcv's ViT and ConvNeXt, train with every step.

`make test ALL=1` installs mindcv, without what it requires. ``nn.TrainOneStepCell`` is MindSpore's
own; of the other techniques the parts are compared that theory says are the plain step's.
"""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit.steps.losses import LossNet
from tests.support.step_cells import STEPS, assert_close, momentum, snapshot
from tests.support.subspace_cells import basis_of
from tests.support.tolerances import TOLERANCE

pytest.importorskip("mindcv", reason="mindcv is not installed: `make test ALL=1` does")
pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]
CLOSE = TOLERANCE["float32, a few updates"]
UPDATES = 3


def vit():
    from mindcv.models.vit import VisionTransformer

    return VisionTransformer(16, 4, embed_dim=32, depth=1, num_heads=4, num_classes=10), 16


def convnext():
    from mindcv.models.convnext import ConvNeXt

    return ConvNeXt(3, 10, depths=[1, 0, 1, 0], dims=[8, 8, 16, 16], layer_scale_init_value=1.0), 32


def trained(build, make, turns=1):
    """Return the losses of each update's first call, weights before and after the first, the step.

    The network has the same weights each time, and all calls get the same batch.
    """
    ms.set_seed(1)
    network, size = build()
    random = np.random.default_rng(0)
    images = Tensor(random.normal(size=(4, 3, size, size)).astype(np.float32))
    step = make(network, momentum(network, 0.02))
    losses, weights = [], [snapshot(network)]
    for _ in range(UPDATES):
        calls = [float(step(images, Tensor(np.arange(4, dtype=np.int32)))) for _ in range(turns)]
        losses.append(calls[0])
        weights.append(snapshot(network))
    return losses, *weights[:2], step


def of(kind):
    return lambda network, given: STEPS[kind](LossNet(network, nn.CrossEntropyLoss()), given)


@pytest.fixture(scope="module", params=[vit, convnext], ids=["ViT", "ConvNeXt"])
def expected(request, runtime):
    """The network's builder, MindSpore's losses, and the weights before and after one update."""

    def make(network, optimizer):
        loss_net = nn.WithLossCell(network, nn.CrossEntropyLoss())
        return nn.TrainOneStepCell(loss_net, optimizer).set_train()

    return request.param, *trained(request.param, make)[:3]


# Micro-batches of an update: Adasum of a vector and itself is its mean, which is itself.
@pytest.mark.parametrize(("kind", "turns"), [("plain", 1), ("adasum", 2)])
def test_losses_and_weights_are_those_of_mindspores_own_step(expected, kind, turns):
    build, losses, _, weights = expected
    found, _, after, step = trained(build, of(kind), turns)
    np.testing.assert_allclose(found, losses, **CLOSE)
    assert_close(after, weights, **CLOSE)
    assert step.last_update.number == UPDATES


def test_thor_turns_the_gradient_of_dense_layers_and_convolutions_alone(expected):
    """By layer downhill, by another way: <G^-1 g A^-1, g> > 0 for weight and bias together."""
    build, losses, before, weights = expected
    found, _, after, step = trained(build, of("thor"))
    assert found[0] == pytest.approx(losses[0], rel=1e-6) and np.isfinite(found).all()
    plain = dict(after)
    for place in step.update.places:
        names = [
            step.update.parameters[i].name for i in (place.weight, place.bias) if i is not None
        ]
        own, other = (
            np.concatenate([(end[n].astype(np.float64) - before[n]).ravel() for n in names])
            for end in (after, weights)
        )
        assert own @ other > 0 and not np.allclose(own, other, rtol=0.1), names
        plain = {name: value for name, value in plain.items() if name not in names}
    assert_close(plain, {name: weights[name] for name in plain}, **CLOSE)


def test_outside_the_subspace_the_move_is_the_plain_one(expected):
    build, losses, _, weights = expected
    found, _, after, step = trained(build, of("subspace"))
    assert found[0] == pytest.approx(losses[0], rel=1e-6) and np.isfinite(found).all()
    parameters = step.optimizer.parameters
    matrix = basis_of(parameters, 3).matrix.astype(np.float64)
    apart = [(after[p.name].astype(np.float64) - weights[p.name]).ravel() for p in parameters]
    inside = matrix.T @ (matrix @ np.concatenate(apart))
    assert np.abs(inside).max() > 1e-5
    np.testing.assert_allclose(np.concatenate(apart), inside, rtol=0, atol=1e-6)
