"""Exercises on a ResNet get networks that differ in one stage, and independent copies."""

import copy

import numpy as np
import pytest

from labkit import migration
from labkit.labs.exercises.on_resnet import OnResNet

pytestmark = pytest.mark.usefixtures("runtime")


def values(network):
    return {parameter.name: parameter.asnumpy().copy() for parameter in network.get_parameters()}


def same(values, others):
    return all(np.array_equal(values[name], others[name]) for name in values | others)


def modes(network):
    """Return the padding mode of each cell that pads."""
    cells = network.cells_and_names()
    return {name: cell.pad_mode.lower() for name, cell in cells if hasattr(cell, "pad_mode")}


def test_copies_begin_alike_and_are_loaded_by_nobody_else():
    resnet = OnResNet("layer2")
    begin, other = values(resnet.network), copy.deepcopy(resnet)
    logits = resnet.logits()
    migration.load(resnet.network, resnet.state)
    assert not same(values(resnet.network), begin) and same(values(other.network), begin)
    assert np.array_equal(other.logits(), logits) and not np.allclose(resnet.logits(), logits)
    assert other == resnet != OnResNet("layer4") and hash(other) == hash(resnet)


@pytest.mark.parametrize("fault", ["maxpool", "layer2", "layer3", "layer4"])
def test_both_networks_have_the_tensors_and_one_stage_differs(fault):
    resnet = OnResNet(fault)
    assert same(values(resnet.right), values(resnet.wrong))
    state = migration.state_dict(resnet.right)
    assert all(np.array_equal(state[name], value) for name, value in resnet.state.items())
    right, wrong = modes(resnet.right), modes(resnet.wrong)
    assert {name.split(".")[0] for name in right if right[name] != wrong[name]} == {fault}
    assert resnet.images.shape == (2, 3, 32, 32)
