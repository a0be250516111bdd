"""A THOR step in a training: loops, NaN, interruptions, float16; the content of its graphs."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from labkit.algorithms.thor import ThorStep, ThorUpdate
from labkit.algorithms.thor.curvature import Inverses
from labkit.runtime import pynative
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.options import DynamicLossScale
from labkit.steps.state import set_state
from labkit.steps.step import PlainStep
from tests.support.compiled import compiled_operators
from tests.support.step_cells import (
    Once,
    assert_bit_equal,
    assert_close,
    momentum,
    rows,
    snapshot,
    tensors,
)
from tests.support.thor_cells import (
    DAMPING,
    Twin,
    call,
    factors,
    inverses,
    mlp,
    optimizer,
    thor_step,
    values,
)
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")


NAN = np.float32(np.nan)


@pytest.fixture
def build(once):
    """``build(damping, **options)`` returns (network, step) in the initial state."""

    def make(damping=DAMPING, **options):
        return thor_step(once, damping, **options)

    return make


class TestNanLoss:
    # The first call refreshes, the second one is cached.
    def test_stops_with_the_layers_name(self, build):
        network, step = build(frequency=2)
        call(step, 0)
        # tanh is 1 everywhere, and four times 3e38 overflows float32.
        set_state(network[0].bias, np.full(4, 50.0, np.float32))
        set_state(network[2].weight, np.full((2, 4), 3e38, np.float32))
        before = snapshot(step)
        said = r"at update 2: layer '2' is the first .* finite.*damping \(now 0.1\)"
        for calls in (1, 2):
            with pytest.raises(FloatingPointError, match=said):
                call(step, 1)
            after = snapshot(step)
            assert after.pop("step.dropped") == calls
            assert_bit_equal(after, {n: v for n, v in before.items() if n != "step.dropped"})

    def test_training_goes_on_with_drop(self, build):
        """The training continues as if the batch had never existed."""
        network, step = build(frequency=2, nan="drop")
        twin = Twin(values(network), frequency=2)
        for number in range(5):
            assert np.isnan(call(step, number, scale=NAN))
            call(step, number)
            twin(*(part.astype(np.float64) for part in rows(8, number)))
        assert_close(values(network), twin.parameters, **TOLERANCE["float32, many updates"])
        assert int(step.dropped.asnumpy()) == 5


class TestNanFactor:
    def test_stops_and_leaves_averages_and_weights(self, build, eager):
        """If the gradients are not checked, the factors are checked before the update."""
        network, step = build(frequency=1, factor_decay=0.5, nonfinite="propagate")
        twin = Twin(values(network), frequency=1, factor_decay=0.5)
        call(step, 0)
        before = snapshot(network) | inverses(step.update) | factors(step.update)
        with pytest.raises(FloatingPointError, match="factors of layer '0' are not finite at upd"):
            call(step, 1, scale=NAN)
        assert_bit_equal(snapshot(network) | inverses(step.update) | factors(step.update), before)
        assert step.last_update.number == 1
        # The training continues from there.
        call(step, 1)
        for number in range(2):
            twin(*(part.astype(np.float64) for part in rows(8, number)))
        assert_close(values(network), twin.parameters, **TOLERANCE["float32, many updates"])


def test_retries_are_counted_over_the_whole_training(build, eager):
    """A rank-1 matrix of trace 1e4 plus 1e-3 on its diagonal has no inverse in float32."""
    network, step = build(1e-6, frequency=1, split=None)
    set_state(network[0].weight, network[0].weight.asnumpy() / np.float32(100))
    inputs, targets = rows(8)
    batch = tensors(np.ones_like(inputs) * inputs[:, :1] * np.float32(100), targets)
    before = values(network)
    step(*batch)
    first = step.update.retries.asnumpy().copy()
    assert 0 < first[0] < 7 and all((before[n] != v).any() for n, v in values(network).items())
    step(*batch)
    assert step.update.retries.asnumpy()[0] > first[0]
    assert float(step.update.damping.asnumpy()) == np.float32(1e-6)  # as requested


def _accumulated():
    network, loss_net = mlp()
    sgd = optimizer(network)
    update = ThorUpdate(loss_net, sgd, DAMPING, frequency=2)
    return network, AccumulatedStep(loss_net, sgd, 2, update=update)


def _interrupted(*_):
    raise KeyboardInterrupt


class TestInterrupted:
    """A call that stops between the gathering and the updating graph makes no update."""

    def interrupt(self, step, number, monkeypatch):
        """Interrupt a call of the step; check that no weight, moment or counter has changed."""
        before = snapshot(step)
        with monkeypatch.context() as patch:
            patch.setattr(Inverses, "make", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                call(step, number)
        after = snapshot(step)
        held = ("held.", "thor.", "grad_sum.", "step.last_", "step.thor.held", "step.thor.seen")
        # A group's sums are cleared in the graph that holds its gradients.
        held += ("step.images", "step.loss_sum", "step.weight_sum", "step.micro_step")
        names = {name for name in before if not name.startswith(held)}
        assert {"0.weight", "moments.0.weight", "step.updates", "step.thor.refreshes"} <= names
        assert_bit_equal({n: after[n] for n in names}, {n: before[n] for n in names})

    # Before which of four calls, and with which batches, of which the last is interrupted: the
    # third given again, or a group left out.
    @pytest.mark.parametrize(("at", "batches"), [(2, [2]), (0, [98, 99])], ids=["third", "group"])
    def test_what_was_held_is_not_applied_later(self, at, batches, monkeypatch, build, once):
        """The next batch or group starts from nothing."""
        states = []
        for interrupted in (False, True):
            _, step = build(frequency=2) if len(batches) == 1 else once(_accumulated)
            for number in range(4):
                if interrupted and number == at:
                    for batch in batches[:-1]:
                        call(step, batch)
                    self.interrupt(step, batches[-1], monkeypatch)
                call(step, number)
            assert step.last_update.number == 4 // len(batches)
            states.append(snapshot(step))
        assert_bit_equal(*states)


CURVATURE = {"Im2Col", "MatrixInverse", "Cholesky", "MatrixTriangularSolve", "Eye"}
PRODUCTS = {"MatMul", "MatMulExt", "BatchMatMul"}


class Maps(nn.Cell):
    """(B, 2, 8, 8) -> (B, 7): only products of factors have a factor's shape."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 3, 3, pad_mode="pad", padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.conv2 = nn.Conv2d(3, 5, 3, stride=2, pad_mode="valid", has_bias=True)
        self.flatten = nn.Flatten()
        self.dense = nn.Dense(45, 7, activation="relu")

    def construct(self, x):
        return self.dense(self.flatten(self.conv2(self.norm(self.conv1(x)))))


def maps():
    random = np.random.default_rng(0)
    images = random.normal(size=(6, 2, 8, 8)).astype(np.float32)
    return tensors(images, (np.arange(6) % 7).astype(np.int32))


def built(kind, *options):
    network = Maps()
    loss_net = LossNet(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    return kind(loss_net, momentum(network, weight_decay=1e-4), *options)


@pytest.mark.long
def test_only_the_refreshing_graph_holds_curvature():
    """Between refreshes a step computes no curvature except the products with the inverses."""
    step, shapes = built(ThorStep, 0.3), set()
    for layer in step.update.layers:
        for factor in (layer.a_factor.shape, layer.g_factor.shape):
            # Products of a batch before the sum over its six images, or as one product.
            shapes |= {factor, factor[1:], (6, *factor), (1, *factor)}

    def factor_products(graph):
        return sum(o.name in PRODUCTS and bool(set(o.outputs) & shapes) for o in graph)

    refreshing, cached = (compiled_operators(step, *maps()) for _ in range(2))
    assert {"Im2Col", "MatrixInverse"} <= {o.name for o in refreshing}
    # A and G of three layers, and the residual of the inverse of each.
    assert factor_products(refreshing) >= 12
    assert not CURVATURE & {o.name for o in cached} and not factor_products(cached)
    plain = compiled_operators(built(PlainStep), *maps())
    counts = [sum(o.name in PRODUCTS for o in graph) for graph in (cached, plain)]
    assert counts[0] == counts[1] + 2 * len(step.update.layers)


# Inputs whose squares float16 cannot hold (its largest is 65504), and derivatives whose squares it
# cannot hold either (its smallest is 6e-8), scaled or not.
INPUTS_SCALE, TARGETS_SCALE = 300.0, 1e-3


def trained(updates=1, *, scale=None, **options):
    """Train ``mlp`` on large inputs and small errors; return (step, network, the losses).

    scale  the value that a dynamic loss scale has reached
    """
    network, step = thor_step(Once(), frequency=2, nan="drop", **options)
    if scale is not None:
        set_state(step.gradient.loss_scale, scale)
    set_state(network[0].weight, network[0].weight.asnumpy() / INPUTS_SCALE)
    for layer, share in ((network[0], 1.0), (network[2], TARGETS_SCALE)):
        set_state(layer.bias, layer.bias.asnumpy() * share)
    set_state(network[2].weight, network[2].weight.asnumpy() * TARGETS_SCALE)
    losses = []
    for update in range(updates):
        inputs, targets = rows(8, update)
        batch = tensors(inputs * np.float32(INPUTS_SCALE), targets * np.float32(TARGETS_SCALE))
        losses.append(float(step(*batch).asnumpy()))
    return step, network, losses


@pytest.fixture(scope="module")
def float32(runtime):
    """The factors of a first update in float32."""
    with pynative():
        return factors(trained()[0].update)


SCALES = (2.0**16, DynamicLossScale(2.0**10, 2.0, 3))


@pytest.mark.parametrize("scale", SCALES)
def test_factors_are_those_of_float32(float32, scale, eager):
    """A's largest entry is above 300^2; G's is 1e-5, and at least 0.1 if it is not unscaled."""
    step, _, _ = trained(precision="O2", loss_scale=scale)
    assert not int(step.dropped.asnumpy())
    for name, value in factors(step.update).items():
        expected = float32[name]
        largest = np.abs(expected).max()
        # Products of two 11-bit numbers: 1e-3 of the largest.
        np.testing.assert_allclose(value, expected, rtol=0, atol=2e-3 * largest, err_msg=name)
    assert np.abs(float32["0.a_factor"]).max() > 65504
    assert np.abs(float32["2.g_factor"]).max() < 1e-3


@pytest.mark.parametrize("exponent", [16, 66, 120])
def test_scaled_float32_is_float32(float32, exponent, eager):
    """It holds up to the largest dynamic scale; with the scale's square G overflowed at 2**66."""
    dynamic = DynamicLossScale(2.0**16)
    step, _, _ = trained(scale=2.0**exponent, loss_scale=dynamic)
    assert step.last_update.number == 1
    for name, factor in factors(step.update).items():
        np.testing.assert_allclose(factor, float32[name], rtol=1e-6, err_msg=name)


def test_a_training_is_that_of_float32(eager):
    """Three updates agree, of which the second is between refreshes."""
    _, plain, losses = trained(3)
    for scale in SCALES:
        step, half, half_losses = trained(3, precision="O2", loss_scale=scale)
        assert step.last_update.number == 3
        expected = values(plain)
        for name, value in values(half).items():
            np.testing.assert_allclose(value, expected[name], **TOLERANCE["float16 network"])
        assert half_losses == pytest.approx(losses, rel=0.02)


def test_an_overflow_drops_the_batch_and_shrinks_the_scale(eager):
    """2**30 overflows float16: divided by 2**6 until it does not; no factor or weight changes."""
    dynamic = DynamicLossScale(2.0**30, 2.0**6, 1000)
    step, _, _ = trained(1, precision="O2", loss_scale=dynamic)
    state = snapshot(step)
    assert int(step.dropped.asnumpy()) == 1 and step.last_update.number == 0
    assert not any(value.any() for value in factors(step.update).values())
    assert state["step.loss_scale"] == 2.0**24
    step, _, _ = trained(6, precision="O2", loss_scale=dynamic)
    assert step.last_update.number == 6 - int(step.dropped.asnumpy()) > 0
    assert all(np.isfinite(value).all() for value in snapshot(step).values())
    assert step.gradient.loss_scale.dtype == ms.float32
