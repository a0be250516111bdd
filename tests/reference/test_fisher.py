"""Kronecker blocks against the exact empirical Fisher matrix: equal where theory says so, only."""

import numpy as np
import pytest

from labkit import reference

RANDOM = np.random.default_rng(0)


def all_pairs(inputs, slopes):
    """Every input with every derivative: the two are independent over the batch's rows."""
    rows = [(x, d) for x in inputs for d in slopes]
    # The mean loss' derivatives: a row's own over the number of rows.
    return np.array([x for x, _ in rows]), np.array([d for _, d in rows]) / len(rows)


def linear_chain(inputs, slopes, weights):
    """[(inputs, derivatives)] of each dense layer of W_n .. W_1 x, by derivatives of the last."""
    seen, derivatives = [inputs], [slopes]
    for weight in weights[:-1]:
        seen.append(seen[-1] @ weight.T)
    for weight in reversed(weights[1:]):
        derivatives.insert(0, derivatives[0] @ weight)
    return list(zip(seen, derivatives, strict=True))


def errors(layers, **options):
    """Relative error of each layer's Kronecker block, cut out of the whole Fisher matrix."""
    gradients = [reference.per_sample_gradients(*layer, **options) for layer in layers]
    whole, sizes = reference.exact_fisher(gradients), [g[0].size for g in gradients]
    assert len(whole) == sum(sizes)
    return [
        reference.relative_error(
            reference.kronecker_fisher(*reference.kronecker_factors(*layer, **options)),
            reference.layer_block(whole, sizes, index),
        )
        for index, layer in enumerate(layers)
    ]


WEIGHTS = [RANDOM.normal(size=shape) for shape in ((4, 5), (3, 4), (2, 3))]


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_linear_network_with_derivatives_independent_of_inputs_has_kronecker_blocks(
    depth, homogeneous
):
    weights = WEIGHTS[-depth:]
    inputs = RANDOM.normal(size=(6, weights[0].shape[1]))
    batch = all_pairs(inputs, RANDOM.normal(size=(5, 2)))
    # Measured 6e-16.
    assert max(errors(linear_chain(*batch, weights), homogeneous=homogeneous)) < 1e-10


def test_per_sample_gradients_by_hand_and_their_mean():
    inputs, slopes = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0], [6.0]])
    came = reference.per_sample_gradients(inputs, slopes, homogeneous=True)
    np.testing.assert_array_equal(came, [[[[10, 20, 10]]], [[[36, 48, 12]]]])
    np.testing.assert_allclose(came.mean(axis=0)[0, :, :2], slopes.T @ inputs)


def test_exact_fisher_by_hand():
    gradients = [np.array([[1.0], [3.0]]), np.array([[2.0, 0.0], [0.0, 4.0]])]
    fisher = reference.exact_fisher(gradients)
    np.testing.assert_allclose(fisher, [[5, 1, 6], [1, 2, 0], [6, 0, 8]])
    np.testing.assert_array_equal(reference.layer_block(fisher, [1, 2], 0), [[5]])
    np.testing.assert_array_equal(reference.layer_block(fisher, [1, 2], 1), [[2, 0], [0, 8]])
    np.testing.assert_array_equal(reference.exact_fisher(gradients[1]), [[2, 0], [0, 8]])


@pytest.mark.parametrize("positions", [1, 2, 7])
def test_a_constant_convolution_is_underestimated_by_its_number_of_positions(positions):
    """p = D = 1 everywhere: the row's gradient is T, exact F = T^2; the factors say T."""
    seen, slopes = np.ones((1, 1, 1, positions)), np.ones((1, 1, 1, positions))
    options = dict(homogeneous=False, layout="patches")
    exact = reference.exact_fisher(reference.per_sample_gradients(seen, slopes, **options))
    came = reference.kronecker_fisher(*reference.kronecker_factors(seen, slopes, **options))
    assert exact[0, 0] == positions**2 and came[0, 0] == positions
    error = reference.relative_error(came, exact)
    assert error == pytest.approx(1 - 1 / positions)
