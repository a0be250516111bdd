"""Shared by the tests of the subspace step: a basis, and a network with a float64 twin."""

import numpy as np
from mindspore import nn

from labkit.algorithms.subspace.basis import Basis
from labkit.reference.lenet import cross_entropy
from labkit.steps.losses import LossNet
from labkit.steps.state import set_state


def basis_of(parameters, components, seed=0):
    """Return a random basis of the parameters, without variances."""
    parameters = list(parameters)
    numbers = sum(parameter.size for parameter in parameters)
    columns = np.random.default_rng(seed).normal(size=(numbers, components))
    matrix = np.ascontiguousarray(np.linalg.qr(columns)[0].T, np.float32)
    return Basis(matrix, parameters, [], 1.0)


def small_network():
    """Return a network (B, 6) -> logits (B, 4) through six tanh: 70 weights, distinct names."""
    return nn.SequentialCell(nn.Dense(6, 6), nn.Tanh(), nn.Dense(6, 4))


SHAPES = ((6, 6), (6,), (4, 6), (4,))


def small_weights(seed=0):
    """Weights of ``small_network`` in one vector (70,), float64 values that float32 represents."""
    random = np.random.default_rng(seed)
    parts = [random.normal(size=shape) / np.sqrt(shape[-1]) for shape in SHAPES]
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32).astype(np.float64)


def small_rows(count, seed):
    """Inputs (count, 6) and labels (count,) that one linear map gives, with noise."""
    random = np.random.default_rng(500 + seed)
    inputs = random.normal(size=(count, 6)).astype(np.float32)
    map_ = np.random.default_rng(4).normal(size=(6, 4))
    labels = (inputs @ map_ + random.normal(size=(count, 4))).argmax(axis=1)
    return inputs, labels.astype(np.int32)


def small_loss(flat, inputs, labels):
    """Return (mean cross entropy, gradient (70,)) of ``small_network`` by hand, in float64."""
    first, bias, second, last = parts_of(flat)
    inputs = inputs.astype(np.float64)
    hidden = np.tanh(inputs @ first.T + bias)
    logits = hidden @ second.T + last
    loss, slope = cross_entropy(logits, labels)
    inner = (slope @ second) * (1 - hidden**2)
    gradients = (inner.T @ inputs, inner.sum(axis=0), slope.T @ hidden, slope.sum(axis=0))
    return loss, np.concatenate([gradient.ravel() for gradient in gradients])


def parts_of(flat):
    """Cut a vector (70,) into the arrays of ``SHAPES``."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), SHAPES, strict=True)]


def small(flat=None):
    """Return (network, loss_net) with the weights of a vector."""
    network = small_network()
    parts = parts_of(small_weights() if flat is None else flat)
    for parameter, part in zip(network.trainable_params(), parts, strict=True):
        set_state(parameter, part.astype(np.float32))
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return network, LossNet(network, loss_fn)


def flat(network):
    """Return all weights of a network in one vector, in the optimizer's order."""
    return np.concatenate([p.asnumpy().ravel() for p in network.trainable_params()])
