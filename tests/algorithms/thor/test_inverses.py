"""Retries with more damping, and the distribution of layers among ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import nn

from labkit.algorithms.thor.curvature import LayerCurvature
from labkit.algorithms.thor.inverses import Inverses, share_out
from labkit.algorithms.thor.layers import geometry_of
from labkit.runtime import pynative
from labkit.steps.state import set_state

pytestmark = pytest.mark.usefixtures("runtime")


class TestShareOut:
    @given(st.lists(st.floats(0.1, 1e6), max_size=40), st.integers(1, 8))
    def test_every_layer_once_and_loads_balanced(self, costs, ranks):
        owners = share_out(costs, ranks)
        assert len(owners) == len(costs) and all(0 <= owner < ranks for owner in owners)
        loads, cheapest = [0.0] * ranks, [0.0] * ranks
        for owner, cost in sorted(zip(owners, costs, strict=True), key=lambda pair: -pair[1]):
            loads[owner], cheapest[owner] = loads[owner] + cost, cost
        # Before it got its last layer, the cheapest, each rank had the smallest load.
        for load, last in zip(loads, cheapest, strict=True):
            assert load - last <= min(loads) * (1 + 1e-9)


# A matrix of ones has one eigenvalue 5 and four of 0, which only the damping lifts.
ONES = np.ones((1, 5, 5))
EYE = np.eye(4)[None]


def layers(*factors):
    """Return layers 5 -> 4, of one position, with the given A."""
    made = []
    for number, a_factor in enumerate(factors):
        geometry = geometry_of(nn.Dense(5, 4), homogeneous=False, split=None)
        layer = LayerCurvature(f"layer {number}", geometry)
        set_state(layer.a_factor, a_factor)
        set_state(layer.g_factor, EYE)
        set_state(layer.positions, np.ones(2))
        made.append(layer)
    return made


def made_with(layer):
    """Return 1 over the largest eigenvalue of the layer's A_inverse: for ``ONES`` A's damping."""
    values = np.linalg.eigvalsh(layer.a_inverse.asnumpy()[0].astype(np.float64))
    return 1 / values.max()


class TestMake:
    def test_sound_ones_need_no_more(self):
        several = layers(np.eye(5)[None], ONES)
        with pynative():
            assert Inverses(several, "equal").make([0, 1], 0.04) == {0: 0, 1: 0}
        # sqrt(damping) is 0.2.
        assert made_with(several[0]) == pytest.approx(1.2, rel=1e-6)
        assert made_with(several[1]) == pytest.approx(0.2, rel=1e-4)
        np.testing.assert_allclose(several[0].g_inverse.asnumpy(), EYE / 1.2, rtol=1e-6)

    def test_others_are_tried_with_ten_times_the_damping(self):
        """The condition is 5e6 at first and falls by the root of ten at each try."""
        several = layers(np.eye(5)[None], ONES, np.eye(5)[None])
        with pynative():
            tries = Inverses(several, "equal").make([0, 1, 2], 1e-12)
        assert tries[0] == tries[2] == 0 and 1 <= tries[1] <= 4
        assert made_with(several[1]) == pytest.approx(1e-6 * 10 ** (tries[1] / 2), rel=0.02)
        # The others keep the inverses made with the requested damping.
        assert made_with(several[0]) == made_with(several[2]) == pytest.approx(1.0, rel=1e-6)

    def test_what_no_damping_helps_is_named(self):
        several = layers(np.eye(5)[None], np.full((1, 5, 5), np.nan))
        with pynative(), pytest.raises(FloatingPointError) as caught:
            Inverses(several, "equal").make([0, 1], 0.1)
        said = str(caught.value)
        assert "'layer 1' have no inverse in float32" in said
        assert "damping 1e+05, 1e+06 times what was asked for" in said
        np.testing.assert_array_equal(several[1].a_inverse.asnumpy()[0], np.eye(5))
