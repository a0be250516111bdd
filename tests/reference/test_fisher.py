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


def test_a_linear_network_with_a_quadratic_loss_has_not():
    """Its derivative is y - target: it depends on the input."""
    inputs = RANDOM.normal(size=(30, 5))
    outputs = inputs @ (WEIGHTS[2] @ WEIGHTS[1] @ WEIGHTS[0]).T
    slopes = (outputs - RANDOM.normal(size=outputs.shape)) / len(inputs)
    assert min(errors(linear_chain(inputs, slopes, WEIGHTS), homogeneous=False)) > 0.05


def test_a_network_with_a_nonlinearity_has_not():
    inputs, slopes = all_pairs(RANDOM.normal(size=(6, 5)), RANDOM.normal(size=(5, 3)))
    hidden = inputs @ WEIGHTS[0].T
    first = (inputs, (slopes @ WEIGHTS[1]) * (hidden > 0))
    second = (np.maximum(hidden, 0.0), slopes)
    broken, sound = errors([first, second], homogeneous=True)
    # The derivatives behind the ReLU know the sign of its input; those above it know nothing.
    assert broken > 0.05 and sound < 1e-10


def test_one_row_of_a_dense_layer_is_a_kronecker_product():
    one = RANDOM.normal(size=(1, 4)), RANDOM.normal(size=(1, 3))
    two = RANDOM.normal(size=(2, 4)), RANDOM.normal(size=(2, 3))
    assert errors([one], homogeneous=True)[0] < 1e-12
    assert errors([two], homogeneous=True)[0] > 0.05


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


def test_order_of_the_kronecker_product_is_that_of_a_matrix_row_by_row():
    a, g = np.diag([1.0, 2.0])[None], np.diag([10.0, 100.0])[None]
    np.testing.assert_array_equal(np.diag(reference.kronecker_fisher(a, g, 3)), [30, 60, 300, 600])


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


def test_a_convolution_has_kronecker_blocks_where_its_derivatives_are_alike_and_uncorrelated():
    """Kroneckers for convolutions: independent of the inputs, position by position, and alike."""
    images = RANDOM.normal(size=(5, 1, 6, 4))
    maps = []
    for channels in RANDOM.normal(size=(3, 2)):
        for position in range(4):
            maps.append(np.zeros((2, 2, 2)))
            maps[-1].reshape(2, 4)[:, position] = channels
    batch = all_pairs(images, maps)
    # Measured 4e-16.
    assert errors([batch], homogeneous=False, layout="patches")[0] < 1e-10
    # Independent still, but a row has derivatives at all its positions: correlated.
    batch = all_pairs(images, RANDOM.normal(size=(3, 2, 2, 2)))
    assert errors([batch], homogeneous=False, layout="patches")[0] > 0.05
    # Uncorrelated, but only at the first position: not alike.
    batch = all_pairs(images, maps[::4])
    assert errors([batch], homogeneous=False, layout="patches")[0] > 0.05


def test_a_generic_convolution_is_an_approximation_of_stated_size():
    """LeNet's first convolution, 32 rows: the size of the error, both from above and below."""
    random = np.random.default_rng(0)
    parameters = reference.lenet_parameters(0)
    images, labels = random.normal(size=(32, 1, 32, 32)), random.integers(0, 10, 32)
    _, _, layers = reference.lenet_gradients(parameters, images, labels)
    seen = reference.patches(images, (5, 5))
    options = dict(homogeneous=False, layout="patches")
    error = errors([(seen, layers[0].derivatives)], **options)[0]
    assert 0.3 < error < 1.0
    # It is better than saying nothing (1), and no better where the block is cut.
    a, g, positions = reference.kronecker_factors(seen, layers[0].derivatives, **options)
    gradients = reference.per_sample_gradients(seen, layers[0].derivatives, **options)
    cut = reference.kronecker_fisher(reference.block_diagonal(a, 8), g, positions)
    assert reference.relative_error(cut, reference.exact_fisher(gradients)) != error
