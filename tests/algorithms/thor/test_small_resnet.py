"""A small ResNet with BatchNorm: whole updates of THOR against float64 gradients of PyTorch.

An update is w_after - w_before; its error is the largest difference in a tensor relative to the
largest update of that tensor. Bound: 5e-4.
"""

import numpy as np
import pytest
from mindspore import nn

from labkit import reference
from labkit.algorithms.thor import ThorStep
from labkit.migration.names import pairs
from labkit.nets.resnet import ResidualBlockBase, ResNet
from labkit.steps.losses import LossNet
from tests.support.migrating import by_rule
from tests.support.thor_cells import error, three_updates
from tests.support.trainings import loss_fn

pytestmark = pytest.mark.usefixtures("runtime")

BOUND = 5e-4


def small_resnets(torch):
    """Return four blocks with the rule's weights, for 64 x 64 images, and PyTorch's in float64."""
    from tests.support import torch_resnet

    widths = [4, 8, 16, 32]
    network = ResNet(ResidualBlockBase, [1] * 4, [4, *widths[:3]], widths, [1, 2, 2, 2], 5)
    module = torch_resnet.ResNet(torch_resnet.BasicBlock, [1] * 4, 5, 4).double().train()
    state = {n: torch.from_numpy(np.array(v)) for n, v in by_rule(network).items()}
    module.load_state_dict(state)
    return network, module


def torch_gradients(torch, module, names, images, labels):
    """Return (gradients by MindSpore name, layers) of ``module`` in its present state."""
    seen, outputs = {}, {}
    kinds = (torch.nn.Conv2d, torch.nn.Linear)
    layers = {name: cell for name, cell in module.named_modules() if isinstance(cell, kinds)}

    def keep(cell, inputs, output):
        seen[cell], outputs[cell] = inputs[0].detach().numpy(), output

    hooks = [cell.register_forward_hook(keep) for cell in layers.values()]
    logits = module(torch.from_numpy(images).double())
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels).long())
    own = dict(module.named_parameters())
    slopes = torch.autograd.grad(loss, [*own.values(), *outputs.values()])
    slopes = [slope.numpy() for slope in slopes]
    for hook in hooks:
        hook.remove()
    gradients = dict(zip((names[name] for name in own), slopes[: len(own)], strict=True))
    by_cell = dict(zip(outputs, slopes[len(own) :], strict=True))
    made = []
    for name, cell in layers.items():
        window = None
        if isinstance(cell, torch.nn.Conv2d):
            vertical, horizontal = cell.padding
            around = (vertical, vertical, horizontal, horizontal)
            window = reference.Window(cell.kernel_size, cell.stride, around)
        made.append(reference.Layer(name, seen[cell], by_cell[cell], window))
    return gradients, made


def resnet_batch(seed, size=16):
    """Return noisy images of coloured blocks, as in ``labkit.migration.rule.batch``, and labels."""
    random = np.random.default_rng(seed)
    blocks = random.uniform(-1.5, 1.5, size=(size, 3, 4, 4)).repeat(16, 2).repeat(16, 3)
    images = blocks + random.uniform(-0.5, 0.5, size=blocks.shape)
    return images.astype(np.float32), random.integers(0, 5, size).astype(np.int32)


@pytest.mark.long
def test_a_small_resnet_with_batch_norm():
    """THOR updates all convolutions and the dense layer; BatchNorm's parameters take the gradient.

    The rule's weights keep most inputs of ReLUs away from zero. Measured: 1.3e-4 at most; 4.5e-4
    with twice the channels. With a tenth of the learning rate BatchNorm's beta would be further
    off: weights of 3 that move by 2e-4 are rounded to 2e-7.
    """
    torch = pytest.importorskip("torch")
    network, module = small_resnets(torch)
    names = {pair.torch: pair.mindspore for pair in pairs(network)}
    optimizer = nn.Momentum(network.trainable_params(), 0.2, 0.9, weight_decay=5e-4)
    step = ThorStep(LossNet(network, loss_fn()), optimizer, 0.1, frequency=3)
    assert len(step.update.layers) == 13
    parameters = {p.name: p.asnumpy().astype(np.float64) for p in network.trainable_params()}
    plain = {n for n in parameters if n.endswith((".gamma", ".beta"))}
    # MindSpore's optimizers do not decay Parameters with these names.
    decays = {name: 0.0 if name in plain else 5e-4 for name in parameters}
    twin = reference.Thor(0.2, 0.1, weight_decay=decays, frequency=3)

    def gradients_of(parameters, *batch):
        with torch.no_grad():
            for name, value in module.named_parameters():
                value.copy_(torch.from_numpy(parameters[names[name]]))
        return torch_gradients(torch, module, names, *batch)

    batches = [resnet_batch(seed) for seed in range(3)]
    moves = list(three_updates(step, network, twin, parameters, batches, gradients_of))
    assert len(moves) == 3 and max(error(moved) for moved in moves)[0] <= BOUND
    assert len(plain) == 24
