"""Exercises on LeNet get independent copies of the network."""

import copy

import numpy as np
import pytest

from labkit.labs.exercises.on_lenet import OnLeNet

pytestmark = pytest.mark.usefixtures("runtime")


def weights(lenet):
    return [parameter.asnumpy().copy() for parameter in lenet.parameters]


def same(weights, others):
    return all(np.array_equal(a, b) for a, b in zip(weights, others, strict=True))


def trained(lenet, updates):
    for _ in range(updates):
        lenet.update(lenet.gradients(*lenet.micro_batches([4])[0]))
    return weights(lenet)


def test_copies_begin_alike_and_are_trained_by_nobody_else():
    lenet = OnLeNet(1)
    begin, other = weights(lenet), copy.deepcopy(lenet)
    twice = trained(OnLeNet(1), 2)
    once = trained(lenet, 1)
    assert not same(begin, once) and not same(once, twice)
    assert same(weights(other), begin) and other == lenet != OnLeNet(2)
    # It continues from its own state, momentum included, after other copies were trained.
    assert same(trained(lenet, 1), twice)
    assert not same(weights(OnLeNet(2)), begin)


def test_the_micro_batches_are_parts_of_one_batch():
    lenet = OnLeNet(3)
    (images, labels), *rest = lenet.micro_batches([2, 4, 6])
    (whole, all_labels), *_ = lenet.micro_batches([12])
    parts = [images, *(part for part, _ in rest)]
    assert [len(part) for part in parts] == [2, 4, 6]
    assert same([np.concatenate([part.asnumpy() for part in parts])], [whole.asnumpy()])
    assert (labels.asnumpy() == all_labels.asnumpy()[:2]).all() and len(lenet.parameters) == 8
