"""THOR in float16: factors are float32 sums of what the float16 network saw, without loss scale."""

import mindspore as ms
import numpy as np
import pytest

from labkit.steps.gradients import DynamicLossScale, set_state
from tests.support.step_cells import rows, snapshot, tensors
from tests.support.thor_cells import factors, thor_step, values
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")

# Inputs whose squares float16 does not hold (its largest is 65504), and derivatives whose squares
# it does not hold either (its smallest is 6e-8), scaled or not.
INPUTS_SCALE, TARGETS_SCALE = 300.0, 1e-3


def trained(once, updates=1, *, scale=None, **options):
    """Train ``mlp`` on large inputs and small errors; return (step, network, the losses).

    scale  what a dynamic loss scale has come to
    """
    network, step = thor_step(once, frequency=2, nan="drop", **options)
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
def float32(once):
    """The factors of a first update in float32."""
    return factors(trained(once)[0].update)


SCALES = {
    "128": 128.0,
    "2**16": 2.0**16,
    "dynamic": DynamicLossScale(2.0**10, 2.0, 3),
}


@pytest.mark.parametrize("scale", SCALES)
def test_factors_are_those_of_float32(float32, scale, once):
    """Largest entry of A: above 300^2; of G: 1e-5, and at least 0.1 where it is not unscaled."""
    step, _, _ = trained(once, precision="O2", loss_scale=SCALES[scale])
    assert not int(step.dropped.asnumpy())
    for name, came in factors(step.update).items():
        expected = float32[name]
        largest = np.abs(expected).max()
        # Products of two numbers of 11 bits: 1e-3 of the largest.
        np.testing.assert_allclose(came, expected, rtol=0, atol=2e-3 * largest, err_msg=name)
    assert np.abs(float32["0.a_factor"]).max() > 65504
    assert np.abs(float32["2.g_factor"]).max() < 1e-3


def test_factors_do_not_depend_on_the_scale(once):
    """Powers of two are exact in float32, and large enough no derivative underflows."""
    first, second = (
        factors(trained(once, precision="O2", loss_scale=scale)[0].update)
        for scale in (2.0**14, 2.0**16)
    )
    for name in first:
        largest = np.abs(second[name]).max()
        np.testing.assert_allclose(first[name], second[name], rtol=0, atol=1e-3 * largest)


@pytest.mark.parametrize("exponent", [0, 16, 66, 100, 120])
def test_scaled_float32_is_float32(float32, exponent, once):
    """Up to the largest that a dynamic scale grows to; with its square G left float32 at 2**66."""
    dynamic = DynamicLossScale(2.0**16)
    step, _, _ = trained(once, scale=2.0**exponent, loss_scale=dynamic)
    assert step.last_update.number == 1
    for name, came in factors(step.update).items():
        np.testing.assert_allclose(came, float32[name], rtol=1e-6, err_msg=name)


def test_a_training_is_that_of_float32(once):
    """Three updates, the second one between refreshes."""
    _, plain, losses = trained(once, 3)
    for scale in SCALES.values():
        step, half, half_losses = trained(once, 3, precision="O2", loss_scale=scale)
        assert step.last_update.number == 3
        expected = values(plain)
        for name, came in values(half).items():
            np.testing.assert_allclose(came, expected[name], **TOLERANCE["float16 network"])
        assert half_losses == pytest.approx(losses, rel=0.02)


def test_an_overflow_drops_the_batch_and_shrinks_the_scale(once):
    """2**24 overflows float16: halved until it does not; no factor and no weight is touched."""
    dynamic = DynamicLossScale(2.0**30, 2.0**6, 1000)
    step, _, _ = trained(once, 1, precision="O2", loss_scale=dynamic)
    state = snapshot(step)
    assert int(step.dropped.asnumpy()) == 1 and step.last_update.number == 0
    assert not any(value.any() for value in factors(step.update).values())
    assert state["step.loss_scale"] == 2.0**24
    step, _, _ = trained(once, 6, precision="O2", loss_scale=dynamic)
    assert step.last_update.number == 6 - int(step.dropped.asnumpy()) > 0
    assert all(np.isfinite(value).all() for value in snapshot(step).values())
    assert step.gradient.loss_scale.dtype == ms.float32
