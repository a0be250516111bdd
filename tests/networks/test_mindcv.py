"""Networks that others published, mindcv's ViT and ConvNeXt, train with every step.

`make test ALL=1` installs mindcv, without what it requires. ``nn.TrainOneStepCell`` is MindSpore's
own; of the other techniques the parts are compared that theory says are the plain step's.
"""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit.steps.losses import LossNet
from tests.support.step_cells import STEPS, momentum, snapshot
from tests.support.subspace_cells import basis_of

pytest.importorskip("mindcv", reason="mindcv is not installed: `make test ALL=1` does")
pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
RATE, UPDATES = 0.02, 3


def vit():
    from mindcv.models.vit import VisionTransformer

    return VisionTransformer(16, 4, embed_dim=32, depth=1, num_heads=4, num_classes=10), 16


def convnext():
    from mindcv.models.convnext import ConvNeXt

    return ConvNeXt(3, 10, depths=[1, 0, 1, 0], dims=[8, 8, 16, 16], layer_scale_init_value=1.0), 32


def made(build):
    """Return the network, always with the same weights, and a batch."""
    ms.set_seed(1)
    network, size = build()
    random = np.random.default_rng(0)
    images = random.normal(size=(4, 3, size, size)).astype(np.float32)
    return network, (Tensor(images), Tensor(np.arange(4, dtype=np.int32)))


@pytest.fixture(scope="module", params=[vit, convnext], ids=["ViT", "ConvNeXt"])
def expected(request, runtime):
    """The network's builder, MindSpore's losses, and the weights before and after one update."""
    network, batch = made(request.param)
    loss_net = nn.WithLossCell(network, nn.CrossEntropyLoss())
    step = nn.TrainOneStepCell(loss_net, momentum(network, RATE)).set_train()
    before, losses = snapshot(network), [float(step(*batch))]
    after = snapshot(network)
    losses += [float(step(*batch)) for _ in range(UPDATES - 1)]
    return request.param, losses, before, after


def trained(build, kind, turns=1, options=None):
    """Return the losses of each update's first call, the weights after the first, and the step."""
    network, batch = made(build)
    step = STEPS[kind](LossNet(network, nn.CrossEntropyLoss()), momentum(network, RATE))
    losses, weights = [], []
    for _ in range(UPDATES):
        losses.append([float(step(*batch)) for _ in range(turns)][0])
        weights.append(snapshot(network))
    assert step.last_update.number == UPDATES
    return losses, weights[0], step


# Micro-batches of an update: twice the same one is that one, and Adasum of a vector and itself is
# its mean, which is itself.
@pytest.mark.parametrize(("kind", "turns"), [("plain", 1), ("accumulated", 2), ("adasum", 2)])
def test_losses_and_weights_are_those_of_mindspores_own_step(expected, kind, turns):
    build, losses, _, weights = expected
    found, after, _ = trained(build, kind, turns)
    np.testing.assert_allclose(found, losses, **CLOSE)
    for name, value in weights.items():
        np.testing.assert_allclose(after[name], value, err_msg=name, **CLOSE)


def test_thor_turns_the_gradient_of_dense_layers_and_convolutions_alone(expected):
    """By layer downhill, by another way: <G^-1 g A^-1, g> > 0 for weight and bias together."""
    build, losses, before, weights = expected
    found, after, step = trained(build, "thor")
    assert found[0] == pytest.approx(losses[0], rel=1e-6) and np.isfinite(found).all()
    left = {parameter.name for parameter in step.update.parameters}
    for place in step.update.places:
        names = [
            step.update.parameters[i].name for i in (place.weight, place.bias) if i is not None
        ]
        own, plain = (
            np.concatenate([(end[n].astype(np.float64) - before[n]).ravel() for n in names])
            for end in (after, weights)
        )
        assert own @ plain > 0 and not np.allclose(own, plain, rtol=0.1), names
        left -= {*names}
    assert len(left) >= 4
    for name in left:
        np.testing.assert_allclose(after[name], weights[name], err_msg=name, **CLOSE)


def test_outside_the_subspace_the_move_is_the_plain_one(expected):
    build, losses, _, weights = expected
    found, after, step = trained(build, "subspace")
    assert found[0] == pytest.approx(losses[0], rel=1e-6) and np.isfinite(found).all()
    parameters = step.optimizer.parameters
    matrix = basis_of(parameters, 3).matrix.astype(np.float64)
    names = [parameter.name for parameter in parameters]
    apart = np.concatenate([(after[n].astype(np.float64) - weights[n]).ravel() for n in names])
    inside = matrix.T @ (matrix @ apart)
    assert np.abs(inside).max() > 1e-5
    np.testing.assert_allclose(apart, inside, rtol=0, atol=1e-6)
