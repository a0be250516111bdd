"""Factors, blocks, damping, direction and Fisher: where each theorem holds, and where not."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import reference
from labkit.reference import Window
from tests import twins

RANDOM = np.random.default_rng(0)
SEEDS = st.integers(0, 99)
# Products of up to 1e3 float64 terms, and inverses of condition below 1e4: measured 2e-12.
ALGEBRA = dict(rtol=1e-9, atol=1e-10)


def factor(random, groups, n):
    """A positive definite matrix for each group."""
    columns = random.normal(size=(groups, n, 2 * n))
    return columns @ np.swapaxes(columns, 1, 2) / columns.shape[2]


def problem(groups, outputs, inputs, positions, seed):
    """A, G, T and a gradient."""
    random = np.random.default_rng(seed)
    gradient = random.normal(size=(groups, outputs, inputs))
    a_factor, g_factor = factor(random, groups, inputs), factor(random, groups, outputs)
    return a_factor, g_factor, positions, gradient


SIZES = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(1, 5))
SPLITS = st.sampled_from([None, 1, 2, 3, 128]), st.sampled_from(["equal", "pi"])


@settings(max_examples=25)
@given(SIZES, *SPLITS, st.floats(1e-2, 1e2), SEEDS)
def test_direction_solves_the_whole_damped_kronecker_system(
    sizes, split, damping_split, damping, seed
):
    case = problem(*sizes, seed)
    options = dict(split=split, damping_split=damping_split)
    actual = reference.thor_direction(*case, damping, **options)
    np.testing.assert_allclose(actual, twins.kronecker_solve(*case, damping, **options), **ALGEBRA)


def test_direction_by_hand():
    """T = 4, damping 1: both factors get sqrt(1 / 4); a pair of positions damps each by its own."""
    a, g = np.diag([0.5, 1.5])[None], np.array([[[3.5]]])
    actual = reference.thor_direction(a, g, 4, np.array([[[8.0, 16.0]]]), 1.0)
    np.testing.assert_allclose(actual, [[[8 / 4 / 4 / 1, 16 / 4 / 4 / 2]]], rtol=1e-14)
    one = np.array([[[1.0]]])
    actual = reference.thor_direction(one, 2 * one, (4, 9), one, 36.0)
    assert actual.item() == pytest.approx(1 / 4 / (1 + 3) / (2 + 2), rel=1e-14)


@given(st.integers(1, 1000), st.integers(1, 200))
def test_blocks_are_few_and_of_one_size_but_the_last(n, split):
    bounds = reference.block_bounds(n, split)
    sizes = [end - first for first, end in bounds]
    assert [first for first, _ in bounds] == [0, *np.cumsum(sizes)[:-1]] and sum(sizes) == n
    count = math.ceil(n / split)
    assert len(sizes) == count and set(sizes[:-1]) <= {math.ceil(n / count)}
    assert 0 < sizes[-1] <= max(sizes) <= split
    assert reference.block_bounds(5, 4) == [(0, 3), (3, 5)]


def test_pi_is_the_ratio_of_mean_eigenvalues_over_all_groups():
    a, g = np.stack([np.eye(2) * 6, np.eye(2) * 12]), np.stack([np.eye(3), np.zeros((3, 3))])
    for pair, pi in (((a, g), math.sqrt(18)), ((a, 0 * g), 1e3), ((0 * a, g), 1e-3)):
        dampings = reference.damping_pair(*pair, 1, 4.0, "pi")
        assert dampings == pytest.approx((2 * pi, 2 / pi))


def test_factors_by_hand():
    """Two rows, one output: N d are the rows' own derivatives, 2 and 6."""
    inputs, derivatives = np.array([[1.0, 2.0], [3.0, 0.0]]), np.array([[1.0], [3.0]])
    a, g, positions = reference.kronecker_factors(inputs, derivatives, homogeneous=True)
    np.testing.assert_allclose(a, [[[5, 1, 2], [1, 2, 1], [2, 1, 1]]], rtol=1e-14)
    assert g[0, 0, 0] == (4 + 36) / 2 and positions == 1


def of_patches(inputs, derivatives, window, homogeneous=False):
    seen = reference.patches(inputs, window)
    options = dict(homogeneous=homogeneous, layout="patches")
    return reference.kronecker_factors(seen, derivatives, **options)


def test_a_1x1_convolution_is_a_dense_layer_on_every_pixel():
    inputs, derivatives = RANDOM.normal(size=(3, 2, 4, 5)), RANDOM.normal(size=(3, 6, 4, 5))
    conv = of_patches(inputs, derivatives, Window((1, 1)), homogeneous=True)
    last = [np.moveaxis(array, 1, -1) for array in (inputs, derivatives)]
    dense = reference.kronecker_factors(*last, homogeneous=True)
    assert conv[2] == dense[2] == 20
    for factor, other in zip(conv[:2], dense[:2], strict=True):
        np.testing.assert_allclose(factor, other, **ALGEBRA)


def test_the_groups_of_a_convolution_are_convolutions_of_their_own():
    inputs, derivatives = RANDOM.normal(size=(3, 4, 5, 5)), RANDOM.normal(size=(3, 6, 3, 3))
    whole = of_patches(inputs, derivatives, Window((3, 3), groups=2))
    for group, channels, outputs in ((0, slice(0, 2), slice(0, 3)), (1, slice(2, 4), slice(3, 6))):
        alone = of_patches(inputs[:, channels], derivatives[:, outputs], Window((3, 3)))
        for factor, other in zip(whole[:2], alone[:2], strict=True):
            np.testing.assert_allclose(factor[group], other[0], **ALGEBRA)


def test_weights_and_bias_come_back_from_their_matrix():
    weight, bias = RANDOM.normal(size=(4, 3, 2, 2)), RANDOM.normal(size=4)
    matrix = reference.gradient_matrix(weight, bias, groups=2)
    np.testing.assert_array_equal(matrix[1, 0], [*weight[2].reshape(-1), bias[2]])
    back = reference.weight_and_bias(matrix, weight.shape, True)
    np.testing.assert_array_equal(back[0], weight)
    np.testing.assert_array_equal(back[1], bias)


# ---- Kronecker blocks against the exact empirical Fisher matrix

DRAWS = np.random.default_rng(0)


def all_pairs(inputs, slopes):
    """Every input with every derivative: the two are independent over the batch's rows."""
    rows = [(x, d) for x in inputs for d in slopes]
    # Derivatives of the mean loss: each row's own, divided by the number of rows.
    return np.array([x for x, _ in rows]), np.array([d for _, d in rows]) / len(rows)


def linear_chain(inputs, slopes, weights):
    """Return [(inputs, derivatives)] of the dense layers of W_n .. W_1 x, given the last slopes."""
    seen, derivatives = [inputs], [slopes]
    for weight in weights[:-1]:
        seen.append(seen[-1] @ weight.T)
    for weight in reversed(weights[1:]):
        derivatives.insert(0, derivatives[0] @ weight)
    return list(zip(seen, derivatives, strict=True))


def errors(layers, **options):
    """Return the relative error of each layer's Kronecker block, against the exact Fisher's."""
    gradients = [reference.per_sample_gradients(*layer, **options) for layer in layers]
    whole, sizes = reference.exact_fisher(gradients), [g[0].size for g in gradients]
    assert len(whole) == sum(sizes)
    return [
        reference.relative_error(
            reference.kronecker_fisher(*reference.kronecker_factors(*layer, **options)),
            twins.layer_block(whole, sizes, index),
        )
        for index, layer in enumerate(layers)
    ]


WEIGHTS = [DRAWS.normal(size=shape) for shape in ((4, 5), (3, 4), (2, 3))]


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_linear_network_with_derivatives_independent_of_inputs_has_kronecker_blocks(
    depth, homogeneous
):
    weights = WEIGHTS[-depth:]
    inputs = DRAWS.normal(size=(6, weights[0].shape[1]))
    batch = all_pairs(inputs, DRAWS.normal(size=(5, 2)))
    # Measured 6e-16.
    assert max(errors(linear_chain(*batch, weights), homogeneous=homogeneous)) < 1e-10


def test_per_sample_gradients_by_hand_and_their_mean():
    inputs, slopes = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0], [6.0]])
    actual = reference.per_sample_gradients(inputs, slopes, homogeneous=True)
    np.testing.assert_array_equal(actual, [[[[10, 20, 10]]], [[[36, 48, 12]]]])
    np.testing.assert_allclose(actual.mean(axis=0)[0, :, :2], slopes.T @ inputs)


def test_exact_fisher_by_hand():
    gradients = [np.array([[1.0], [3.0]]), np.array([[2.0, 0.0], [0.0, 4.0]])]
    fisher = reference.exact_fisher(gradients)
    np.testing.assert_allclose(fisher, [[5, 1, 6], [1, 2, 0], [6, 0, 8]])
    np.testing.assert_array_equal(twins.layer_block(fisher, [1, 2], 1), [[2, 0], [0, 8]])
    np.testing.assert_array_equal(reference.exact_fisher(gradients[1]), [[2, 0], [0, 8]])


@pytest.mark.parametrize("positions", [1, 7])
def test_a_constant_convolution_is_underestimated_by_its_number_of_positions(positions):
    """p = D = 1 everywhere: the row's gradient is T, exact F = T^2; the factors give T."""
    seen, options = np.ones((1, 1, 1, positions)), dict(homogeneous=False, layout="patches")
    exact = reference.exact_fisher(reference.per_sample_gradients(seen, seen, **options))
    actual = reference.kronecker_fisher(*reference.kronecker_factors(seen, seen, **options))
    assert exact[0, 0] == positions**2 and actual[0, 0] == positions
    error = reference.relative_error(actual, exact)
    assert error == pytest.approx(1 - 1 / positions)
