"""Exercises on LeNet and on a ResNet get independent copies of their networks."""

import copy

import numpy as np
import pytest

from labkit import migration
from labkit.labs.exercises.migration import OnResNet
from labkit.labs.exercises.on_lenet import OnLeNet
from tests.support.step_cells import snapshot

pytestmark = pytest.mark.usefixtures("runtime")


def values(network):
    if isinstance(network, OnResNet):
        return [network.logits(), *snapshot(network.network).values()]
    return [parameter.asnumpy().copy() for parameter in network.parameters]


def change(network):
    """Load a ResNet's weights, or train a LeNet for one update."""
    if isinstance(network, OnResNet):
        migration.load(network.network, network.state)
    else:
        network.update(network.gradients(*network.micro_batches([4])[0]))


def same(some, others):
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("make", [lambda: OnLeNet(1), lambda: OnResNet("layer2")],
                         ids=["LeNet", "ResNet"])  # fmt: skip
def test_copies_begin_alike_and_are_changed_by_nobody_else(make):
    original, begin = make(), values(make())
    other = copy.deepcopy(original)
    for network in (other, other, original):
        change(network)
    assert not same(values(original), begin)
    # It continues from its own state, momentum included, after another copy was trained.
    change(original)
    assert same(values(original), values(other))
    assert same(values(copy.deepcopy(original)), begin)


@pytest.mark.parametrize("fault", ["maxpool", "layer2", "layer3", "layer4"])
def test_both_resnets_have_the_tensors_and_one_stage_differs(fault):
    resnet = OnResNet(fault)
    assert same(snapshot(resnet.right).values(), snapshot(resnet.wrong).values())
    state = migration.state_dict(resnet.right)
    assert all(np.array_equal(state[name], value) for name, value in resnet.state.items())
    modes = [
        {name: c.pad_mode.lower() for name, c in net.cells_and_names() if hasattr(c, "pad_mode")}
        for net in (resnet.right, resnet.wrong)
    ]
    differing = {name.split(".")[0] for name in modes[0] if modes[0][name] != modes[1][name]}
    assert differing == {fault}
