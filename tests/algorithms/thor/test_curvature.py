"""Factors, inverses and directions against float64; the residual, retries, and ranks' shares."""

import contextlib

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, nn

from labkit import reference
from labkit.algorithms.thor.curvature import (
    RESIDUAL,
    Inverses,
    Inversion,
    LayerCurvature,
    _damped_inverse,
    share_out,
)
from labkit.algorithms.thor.layers import geometry_of
from labkit.runtime import pynative
from labkit.steps.state import set_state
from tests import twins
from tests.support.step_cells import assert_bit_equal, snapshot
from tests.support.thor_layers import FACTOR, normal, off

pytestmark = pytest.mark.usefixtures("runtime")


def factors_of(layer, rows=40, seed=0):
    """Return (A, G, T = 3), float64, of ``rows`` rows of random numbers, group by group."""
    random = np.random.default_rng(seed)
    made = []
    for size in (layer.inputs, layer.outputs):
        columns = random.normal(size=(layer.groups, size, rows))
        made.append(columns @ columns.swapaxes(1, 2) / rows)
    return (*made, 3)


def in_blocks(factor, blocks):
    """Return the blocks (groups k, b, b) of (groups, n, n), the last one padded with zeros."""
    groups, n = len(factor), factor.shape[-1]
    padded = np.zeros((groups, blocks.count * blocks.size, blocks.count * blocks.size))
    padded[:, :n, :n] = factor
    cut = [slice(k * blocks.size, (k + 1) * blocks.size) for k in range(blocks.count)]
    return np.stack([padded[g][part, part] for g in range(groups) for part in cut])


def curvature(cell, *, bias=True, split=128):
    """Return the layer's curvature with the factors of ``factors_of``."""
    layer = LayerCurvature("it", geometry_of(cell, homogeneous=bias, split=split))
    a_factor, g_factor, positions = factors_of(layer)
    set_state(layer.a_factor, in_blocks(a_factor, layer.a_blocks))
    set_state(layer.g_factor, in_blocks(g_factor, layer.g_blocks))
    set_state(layer.positions, np.array([positions, positions]))
    return layer


def dense(inputs, outputs):
    return nn.Dense(inputs, outputs, weight_init="zeros")


def grouped(inputs, outputs, groups=2):
    sizes = (groups * inputs, groups * outputs, (3, 2))
    return nn.Conv2d(*sizes, group=groups, has_bias=True, weight_init="zeros")


SIZES = st.integers(1, 12), st.integers(1, 12)


@settings(deadline=None, max_examples=50)
@given(
    st.builds(dense, *SIZES) | st.builds(grouped, st.integers(1, 3), SIZES[1], st.integers(1, 3)),
    st.booleans(),
    st.sampled_from([None, 1, 2, 3, 5, 7]),
    st.sampled_from(["equal", "pi"]),
)
def test_directions_are_the_references(cell, bias, split, damping_split):
    """U solves the whole damped Kronecker system, written out as one matrix; any remainder."""
    layer = curvature(cell, bias=bias, split=split)
    weight, own = normal(cell.weight.shape), normal(cell.bias.shape, 1)
    with pynative():
        residual = Inversion([layer], damping_split)(Tensor(0.3, ms.float32))
        direction, direction_bias = layer(Tensor(weight), Tensor(own))
    assert 0 <= float(residual.asnumpy()[0]) < 1e-4 and direction.dtype == ms.float32
    matrix = reference.gradient_matrix(weight, own if bias else None, layer.groups)
    options = dict(split=split, damping_split=damping_split)
    expected = twins.kronecker_solve(*factors_of(layer), matrix, 0.3, **options)
    direction, direction_bias = direction.asnumpy(), direction_bias.asnumpy()
    made = reference.gradient_matrix(direction, direction_bias if bias else None, layer.groups)
    assert off(made, expected) <= FACTOR
    if not bias:
        np.testing.assert_array_equal(direction_bias, own)


def sums(layer, seed=0):
    a_factor, g_factor, t = factors_of(layer, seed=seed)
    a_sum, g_sum = in_blocks(a_factor, layer.a_blocks), in_blocks(g_factor, layer.g_blocks)
    return t * a_sum, np.array([t, t]), t * g_sum


def observe(layer, sums, keep):
    """Store the averages with a batch's sums; return [T, tr A (x) G, whether they are finite]."""
    with pynative():
        sums = [Tensor(x.astype(np.float32)) for x in sums]
        a_new, g_new, summary = layer.averaged(*sums, Tensor(keep, ms.float32))
        layer.observe(a_new, g_new, sums[1], summary[2] > 0)
        return summary.asnumpy()


@pytest.mark.parametrize("make", [dense, grouped])
def test_sums_become_running_averages(make):
    layer = LayerCurvature("it", geometry_of(make(4, 3), homogeneous=True, split=4))
    a_factor, g_factor = None, None
    for batch in range(3):
        summary = observe(layer, sums(layer, seed=batch), 0.0 if batch == 0 else 0.7)
        new = factors_of(layer, seed=batch)
        a_factor = reference.running_average(a_factor, new[0], 0.7)
        g_factor = reference.running_average(g_factor, new[1], 0.7)
        assert off(layer.a_factor.asnumpy(), in_blocks(a_factor, layer.a_blocks)) <= FACTOR
        assert off(layer.g_factor.asnumpy(), in_blocks(g_factor, layer.g_blocks)) <= FACTOR
        assert (summary[0], summary[2]) == (3, 1)
        trace = reference.trace_of_fisher(a_factor, g_factor, 3, 0.25)
        assert layer.trace(summary[0], summary[1], 0.25) == pytest.approx(trace, rel=1e-5)
    np.testing.assert_array_equal(layer.positions.asnumpy(), [3, 3])


@pytest.mark.parametrize("place, fault", [(0, np.nan), (2, np.inf)])
@pytest.mark.parametrize("where", [(0, 0, 0), (0, 1, 1)])
def test_what_is_not_finite_is_reported_and_left_out(place, fault, where):
    """A row that is not finite has its square on the diagonal, so faults there are enough."""
    layer = LayerCurvature("it", geometry_of(nn.Dense(5, 4), homogeneous=True, split=None))
    observe(layer, sums(layer), 0.0)
    before = snapshot(layer)
    spoiled = sums(layer, seed=1)
    spoiled[place][where] = fault
    assert observe(layer, spoiled, 0.5)[2] == 0
    assert_bit_equal(snapshot(layer), before)


def inverted(matrix, damping):
    """Return (inverse, residual) of one float32 matrix, inverted as the layers are."""
    with pynative():
        made = _damped_inverse(Tensor(matrix[None].astype(np.float32)), Tensor(damping, ms.float32))
    return made[0].asnumpy()[0].astype(np.float64), float(made[1].asnumpy())


def refresh(layer, damping, damping_split="equal", *, compiled=False):
    with contextlib.nullcontext() if compiled else pynative():
        return float(Inversion([layer], damping_split)(Tensor(damping, ms.float32)).asnumpy()[0])


# (condition, least and largest residual of four matrices)
CONDITIONS = [(1e1, 0, 4e-6), (1e4, 0, 3e-4), (1e5, 0, 2e-3), (1e6, 3e-3, 4e-2)]
CONDITIONS += [(1e7, 5 * RESIDUAL, np.inf), (1e12, 0.99, np.inf)]


@pytest.mark.parametrize("size", (16, 128))
@pytest.mark.parametrize("condition, least, largest", CONDITIONS)
def test_residual_by_condition(condition, least, largest, size):
    """The figures in RESIDUAL's comment, measured again.

    Sound inverses are right within it, accepted ones to 1 %, and lost ones are refused.
    """
    made = []
    for seed in range(4):
        vectors = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]
        matrix = vectors * np.geomspace(1, 1 / condition, size) @ vectors.T
        inverse, residual = inverted(matrix, 1e-30)
        matrix = matrix.astype(np.float32).astype(np.float64)
        made.append((residual, off(inverse, np.linalg.inv(matrix))))
    residual, error = np.array(made).T
    assert least <= residual.min() and residual.max() <= largest
    assert (error[residual <= RESIDUAL] <= 1e-2).all()
    if condition <= 1e4:
        assert (error <= residual).all()
    if condition > 1e7:
        assert (error > 0.5).all()


@pytest.mark.parametrize(
    "matrix",
    [np.zeros((5, 5)), np.ones((5, 5)), np.zeros((1, 1)), np.diag([1, 1, 1, 1, np.nan])],
)
def test_residual_of_singular_matrices(matrix):
    assert not inverted(matrix, 0.0)[1] <= RESIDUAL


@pytest.mark.parametrize(
    "place, fault, compiled",
    [("a_factor", "nan", False), ("g_factor", "nan", True), ("g_factor", "singular", False)],
)
def test_what_has_no_inverse_leaves_the_old_ones(place, fault, compiled):
    """The residual detects NaN and singular matrices, and that factor's inverse does not change."""
    layer = curvature(nn.Dense(5, 4))
    assert refresh(layer, 0.1) <= RESIDUAL
    before, bad, damping = snapshot(layer), getattr(layer, place).asnumpy().copy(), 0.1
    if fault == "nan":
        bad[0, 1, 1] = np.nan
    else:  # all ones: beside them the damping is lost in rounding
        bad[:], damping = 1.0, 1e-20
    set_state(getattr(layer, place), bad)
    assert not refresh(layer, damping, compiled=compiled) <= RESIDUAL
    assert_bit_equal(snapshot(layer), before | {f"thor.it.{place}": bad})


@pytest.mark.parametrize("zero", ["a_factor", "g_factor"])
def test_a_factor_of_zeros_does_not_take_the_damping_away(zero):
    """pi stays between 1e-3 and 1e3, as in the reference."""
    layer = curvature(nn.Dense(5, 4))
    a_factor, g_factor, positions = factors_of(layer)
    set_state(getattr(layer, zero), np.zeros(getattr(layer, zero).shape))
    a_factor, g_factor = a_factor * (zero != "a_factor"), g_factor * (zero != "g_factor")
    refresh(layer, 0.1, "pi")
    pair = reference.damping_pair(a_factor, g_factor, positions, 0.1, "pi")
    damped_inverse = reference.kronecker.damped_inverse
    assert off(layer.a_inverse.asnumpy()[0], damped_inverse(a_factor[0], pair[0])) <= 1e-4
    expected = damped_inverse(g_factor[0], pair[1]) / positions
    assert off(layer.g_inverse.asnumpy()[0], expected) <= 1e-4


@given(st.lists(st.floats(0.1, 1e6), max_size=40), st.integers(1, 8))
def test_every_layer_once_and_loads_balanced(costs, ranks):
    owners = share_out(costs, ranks)
    assert len(owners) == len(costs) and all(0 <= owner < ranks for owner in owners)
    loads, cheapest = [0.0] * ranks, [0.0] * ranks
    for owner, cost in sorted(zip(owners, costs, strict=True), key=lambda pair: -pair[1]):
        loads[owner], cheapest[owner] = loads[owner] + cost, cost
    # Before it got its last layer, the cheapest, each rank had the smallest load.
    for load, last in zip(loads, cheapest, strict=True):
        assert load - last <= min(loads) * (1 + 1e-9)


# A matrix of ones has one eigenvalue 5 and four of 0, which only the damping lifts.
ONES, EYE = np.ones((1, 5, 5)), np.eye(5)[None]


def make(damping, *factors):
    """Invert layers 5 -> 4, of one position, with the given A and G = I; return (retries, layers).

    Their inverses are identities before.
    """
    layers = []
    for number, a_factor in enumerate(factors):
        geometry = geometry_of(nn.Dense(5, 4), homogeneous=False, split=None)
        layers.append(LayerCurvature(f"layer {number}", geometry))
        np.testing.assert_array_equal(layers[-1].a_inverse.asnumpy(), EYE)
        set_state(layers[-1].a_factor, a_factor)
        set_state(layers[-1].g_factor, np.eye(4)[None])
        set_state(layers[-1].positions, np.ones(2))
    with pynative():
        return Inverses(layers, "equal").make(range(len(layers)), damping), layers


def damping_of(layer):
    """Return 1 over the largest eigenvalue of the layer's A_inverse: for ``ONES`` A's damping."""
    values = np.linalg.eigvalsh(layer.a_inverse.asnumpy()[0].astype(np.float64))
    return 1 / values.max()


def test_sound_ones_need_no_retry():
    retries, layers = make(0.04, EYE, ONES)
    assert retries.tolist() == [0, 0]
    # sqrt(damping) is 0.2.
    assert damping_of(layers[0]) == pytest.approx(1.2, rel=1e-6)
    assert damping_of(layers[1]) == pytest.approx(0.2, rel=1e-4)
    np.testing.assert_allclose(layers[0].g_inverse.asnumpy(), np.eye(4)[None] / 1.2, rtol=1e-6)


def test_others_are_tried_with_ten_times_the_damping():
    """The condition is 5e6 at first and falls by the root of ten at each try."""
    retries, layers = make(1e-12, EYE, ONES, EYE)
    assert retries[0] == retries[2] == 0 and 1 <= retries[1] <= 4
    assert damping_of(layers[1]) == pytest.approx(1e-6 * 10 ** (retries[1] / 2), rel=0.02)
    # The others keep the inverses made with the requested damping.
    assert damping_of(layers[0]) == damping_of(layers[2]) == pytest.approx(1.0, rel=1e-6)


def test_what_no_damping_helps_is_named():
    said = r"'layer 1' have no inverse in float32.* damping 1e\+05, 1e\+06 times what was asked for"
    with pytest.raises(FloatingPointError, match=said):
        make(0.1, EYE, np.full((1, 5, 5), np.nan))
