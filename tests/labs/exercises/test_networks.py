"""Exercises on LeNet and on a ResNet get independent copies of their networks."""

import copy

import numpy as np
import pytest

from labkit import migration
from labkit.labs.exercises.migration import OnResNet
from labkit.labs.exercises.on_lenet import OnLeNet
from tests.support.step_cells import snapshot

pytestmark = pytest.mark.usefixtures("runtime")


def same(values, others):
    return all(np.array_equal(a, b) for a, b in zip(values, others, strict=True))


def weights(lenet):
    return [parameter.asnumpy().copy() for parameter in lenet.parameters]


def trained(lenet, updates):
    for _ in range(updates):
        lenet.update(lenet.gradients(*lenet.micro_batches([4])[0]))
    return weights(lenet)


def test_copies_of_lenet_begin_alike_and_are_trained_by_nobody_else():
    lenet = OnLeNet(1)
    begin, other = weights(lenet), copy.deepcopy(lenet)
    twice = trained(OnLeNet(1), 2)
    once = trained(lenet, 1)
    assert not same(begin, once) and not same(once, twice)
    assert same(weights(other), begin)
    # It continues from its own state, momentum included, after other copies were trained.
    assert same(trained(lenet, 1), twice)
    assert not same(weights(OnLeNet(2)), begin)


def test_copies_of_the_resnet_begin_alike_and_are_loaded_by_nobody_else():
    resnet = OnResNet("layer2")
    begin, other = snapshot(resnet.network), copy.deepcopy(resnet)
    logits = resnet.logits()
    migration.load(resnet.network, resnet.state)
    assert not same(snapshot(resnet.network).values(), begin.values())
    assert same(snapshot(other.network).values(), begin.values())
    assert np.array_equal(other.logits(), logits) and not np.allclose(resnet.logits(), logits)


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
