"""What the compiled graphs of a THOR step contain: a step between refreshes pays for no curvature.

Layer sizes are such that no product but a factor's has a factor's shape.
"""

import functools

import numpy as np
import pytest
from mindspore import nn

from labkit.algorithms.thor import ThorStep, ThorUpdate
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.plain import PlainStep
from tests.support.compiled import compiled_operators
from tests.support.step_cells import momentum, tensors

pytestmark = pytest.mark.usefixtures("runtime")

CURVATURE = {"Im2Col", "MatrixInverse", "Cholesky", "MatrixTriangularSolve", "Eye"}
PRODUCTS = {"MatMul", "MatMulExt", "BatchMatMul"}


class Network(nn.Cell):
    """(B, 2, 8, 8) -> (B, 7), with 2, 3, 5 and 7 channels or outputs."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 3, 3, pad_mode="pad", padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.conv2 = nn.Conv2d(3, 5, 3, stride=2, pad_mode="valid", has_bias=True)
        self.flatten = nn.Flatten()
        self.dense = nn.Dense(45, 7, activation="relu")

    def construct(self, x):
        return self.dense(self.flatten(self.conv2(self.norm(self.conv1(x)))))


def batch():
    random = np.random.default_rng(0)
    images = random.normal(size=(6, 2, 8, 8)).astype(np.float32)
    return tensors(images, (np.arange(6) % 7).astype(np.int32))


def built(kind):
    network = Network()
    loss_net = LossNet(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    optimizer = momentum(network, weight_decay=1e-4)
    if kind == "plain":
        return PlainStep(loss_net, optimizer)
    if kind == "thor":
        return ThorStep(loss_net, optimizer, 0.3, split=16)
    update = ThorUpdate(loss_net, optimizer, 0.3, split=16)
    return AccumulatedStep(loss_net, optimizer, micro_steps=1, update=update)


def factor_shapes(update):
    shapes = set()
    for layer in update.layers:
        for factor in (layer.a_factor, layer.g_factor):
            shapes |= {factor.shape, factor.shape[1:]}
            # A batch's products before they are added up over its six images, or in one.
            shapes |= {(6, *factor.shape), (1, *factor.shape)}
    return shapes


def factor_products(operators, shapes):
    return [o for o in operators if o.name in PRODUCTS and set(o.outputs) & shapes]


@pytest.fixture(scope="module")
def compiled(runtime):
    """A function of (kind, stage): (update, operators of a refreshing call, of a cached one)."""

    @functools.cache
    def compile_once(kind, stage):
        step = built(kind)
        calls = [compiled_operators(step, *batch(), stage=stage) for _ in range(2)]
        return step.update, *calls

    return compile_once


@pytest.mark.parametrize(
    ("kind", "stage"),
    [("thor", "optimised"), ("thor", "kernels"), ("accumulated", "optimised")],
)
def test_only_the_refreshing_graphs_hold_curvature(kind, stage, compiled):
    update, refreshing, cached = compiled(kind, stage)
    shapes = factor_shapes(update)
    names = {o.name for o in refreshing}
    assert {"Im2Col", "MatrixInverse"} <= names
    # A and G of three layers, and for each the residual of its inverse.
    assert len(factor_products(refreshing, shapes)) >= 12
    assert not CURVATURE & {o.name for o in cached}
    assert factor_products(cached, shapes) == []


def test_the_cached_graph_adds_two_products_a_layer_to_the_plain_one(compiled):
    update, _, cached = compiled("thor", "optimised")
    came = [o for o in cached if o.name in PRODUCTS]
    plain = compiled_operators(built("plain"), *batch())
    expected = [o for o in plain if o.name in PRODUCTS]
    assert len(came) == len(expected) + 2 * len(update.layers)
