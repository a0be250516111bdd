"""A THOR step in a training: loops, NaN, interruptions, float16; the content of its graphs."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from labkit.algorithms.thor import ThorStep
from labkit.algorithms.thor.curvature import Inverses
from labkit.nets.small import NormNet
from labkit.runtime import pynative
from labkit.steps.losses import LossNet
from labkit.steps.options import DynamicLossScale
from labkit.steps.state import set_state
from labkit.steps.step import PlainStep
from tests.support.compiled import compiled_operators
from tests.support.step_cells import (
    Once,
    assert_bit_equal,
    assert_close,
    digits,
    momentum,
    rows,
    snapshot,
    tensors,
)
from tests.support.thor_cells import (
    Twin,
    accumulated,
    call,
    factors,
    inverses,
    rows64,
    thor_step,
    values,
)
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")

NAN = np.float32(np.nan)


# The first call refreshes, the second one is cached.
def test_a_nan_loss_stops_with_the_layers_name(once):
    network, step = thor_step(once, frequency=2)
    call(step, 0)
    # tanh is 1 everywhere, and four times 3e38 overflows float32.
    set_state(network[0].bias, np.full(4, 50.0, np.float32))
    set_state(network[2].weight, np.full((2, 4), 3e38, np.float32))
    before = snapshot(step)
    said = r"at update 2: layer '2' is the first .* finite.*damping \(now 0.1\)"
    for calls in (1, 2):
        with pytest.raises(FloatingPointError, match=said):
            call(step, 1)
        assert_bit_equal(snapshot(step), before | {"step.dropped": np.int32(calls)})


def test_with_drop_a_training_goes_on_as_if_the_batch_had_never_existed(once):
    """It does not count for the next refresh either."""
    network, step = thor_step(once, frequency=2, nan="drop")
    twin = Twin(values(network), frequency=2)
    for number in range(5):
        assert np.isnan(call(step, number, scale=NAN))
        call(step, number)
        twin(*rows64(number))
    assert_close(values(network), twin.parameters, **TOLERANCE["float32, many updates"])
    assert int(step.dropped.asnumpy()) == 5 and step.update.refreshes.asnumpy().tolist() == [3, 3]


def test_a_nan_factor_stops_and_leaves_averages_and_weights(once, eager):
    """If the gradients are not checked, the factors are checked before the update."""
    network, step = thor_step(once, frequency=1, factor_decay=0.5, nonfinite="propagate")
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
        twin(*rows64(number))
    assert_close(values(network), twin.parameters, **TOLERANCE["float32, many updates"])


def test_retries_are_counted_over_the_whole_training(once, eager):
    """A rank-1 matrix of trace 1e4 plus 1e-3 on its diagonal has no inverse in float32."""
    network, step = thor_step(once, 1e-6, frequency=1, split=None)
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


def _interrupted(*_):
    raise KeyboardInterrupt


# Before which of four calls, and with which batches, of which the last is interrupted: the third
# given again, or a group left out.
@pytest.mark.parametrize(("at", "batches"), [(2, [2]), (0, [98, 99])], ids=["third", "group"])
def test_what_an_interrupted_call_held_is_not_applied_later(at, batches, monkeypatch, once):
    """A call that stops between the gathering and the updating graph makes no update.

    No weight, moment or counter changes, and the next batch or group starts from nothing.
    """
    held = ("held.", "thor.", "grad_sum.", "step.last_", "step.thor.held", "step.thor.seen")
    # A group's sums are cleared in the graph that holds its gradients.
    held += ("step.images", "step.loss_sum", "step.weight_sum", "step.micro_step")
    states = []
    for interrupted in (False, True):
        grouped = len(batches) > 1
        _, step = once(accumulated, 2) if grouped else thor_step(once, frequency=2)
        for number in range(4):
            if interrupted and number == at:
                for batch in batches[:-1]:
                    call(step, batch)
                before = snapshot(step)
                with monkeypatch.context() as patch:
                    patch.setattr(Inverses, "make", _interrupted)
                    with pytest.raises(KeyboardInterrupt):
                        call(step, batches[-1])
                after = snapshot(step)
                names = {name for name in before if not name.startswith(held)}
                assert {"0.weight", "moments.0.weight", "step.updates"} <= names
                assert "step.thor.refreshes" in names
                assert_bit_equal({n: after[n] for n in names}, {n: before[n] for n in names})
            call(step, number)
        assert step.last_update.number == 4 // len(batches)
        states.append(snapshot(step))
    assert_bit_equal(*states)


CURVATURE = {"Im2Col", "MatrixInverse", "Cholesky", "MatrixTriangularSolve", "Eye"}
PRODUCTS = {"MatMul", "MatMulExt", "BatchMatMul"}


def built(kind, *options):
    network = NormNet()
    loss_net = LossNet(network, nn.CrossEntropyLoss())
    return kind(loss_net, momentum(network, weight_decay=1e-4), *options)


@pytest.mark.long
def test_only_the_refreshing_graph_holds_curvature():
    """Between refreshes a call compiles no curvature, nor any product with the inverses."""
    step, batch = built(ThorStep, 0.3), tensors(*digits(6))
    refreshing, cached = (compiled_operators(step, *batch) for _ in range(2))
    assert {"Im2Col", "MatrixInverse"} <= {o.name for o in refreshing}
    assert not CURVATURE & {o.name for o in cached}
    graphs = cached, compiled_operators(built(PlainStep), *batch)
    products, plain = (sum(o.name in PRODUCTS for o in graph) for graph in graphs)
    assert products == plain  # the update's graph, compiled at the first call, is used again


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


@pytest.mark.parametrize(
    ("precision", "loss_scale", "reached"),
    [
        *((level, scale, None) for level in ("O2", "auto") for scale in SCALES),
        # Up to the largest dynamic scale: with the scale's square G overflowed at 2**66.
        *(("O0", DynamicLossScale(2.0**16), 2.0**exponent) for exponent in (16, 66, 120)),
    ],
)
def test_factors_are_those_of_float32(float32, precision, loss_scale, reached, eager):
    """A's largest entry is above 300^2; G's is 1e-5, and at least 0.1 if it is not unscaled."""
    step, _, _ = trained(scale=reached, precision=precision, loss_scale=loss_scale)
    assert step.last_update.number == 1
    assert np.abs(float32["0.a_factor"]).max() > 65504
    assert np.abs(float32["2.g_factor"]).max() < 1e-3
    for name, value in factors(step.update).items():
        # Products of two 11-bit numbers: 1e-3 of the largest.
        half = dict(rtol=0, atol=2e-3 * np.abs(float32[name]).max())
        tolerance = dict(rtol=1e-6) if precision == "O0" else half
        np.testing.assert_allclose(value, float32[name], **tolerance, err_msg=name)


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
