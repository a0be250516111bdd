"""Kronecker blocks against the exact empirical Fisher matrix, both from compiled graphs.

The exact one is the mean over rows of g g^T, g the gradient of one row's loss, each computed alone.
"""

import itertools

import numpy as np
import pytest
from mindspore import ParameterTuple, Tensor, nn, ops

from labkit import reference
from tests.support.thor_layers import Weighted, fill, normal, updated, whole

pytestmark = pytest.mark.usefixtures("runtime")

BOUND = 1e-5


def errors(network, x, c):
    """Return {layer: error of T A (x) G}, over the exact block; by Frobenius norms."""
    network = fill(network)
    parameters = ParameterTuple(network.trainable_params())
    gradient = ops.value_and_grad(Weighted(network), None, parameters)
    rows = []
    for row in range(len(x)):
        _, slopes = gradient(Tensor(x[row : row + 1]), Tensor(c[row : row + 1]))
        rows.append({p.name: s.asnumpy() for p, s in zip(parameters, slopes, strict=True)})
    seen = updated(network, x, c, split=None, compiled=True)
    made = {}
    for layer in seen.step.update.layers:
        names = [f"{layer.layer_name}.{part}" for part in ("weight", "bias")]
        gradients = [
            reference.gradient_matrix(*(row[n].astype(np.float64) for n in names)) for row in rows
        ]
        exact = reference.exact_fisher(np.stack(gradients))
        factors = whole(layer.a_factor, layer.inputs), whole(layer.g_factor, layer.outputs)
        block = reference.kronecker_fisher(*factors, float(layer.positions.asnumpy()[0]))
        made[layer.layer_name] = reference.relative_error(block, exact)
    return made


def every_pair(inputs, slopes):
    """Every input with every derivative: over these rows the two are independent."""
    pairs = list(itertools.product(inputs, slopes))
    return np.stack([x for x, _ in pairs]), np.stack([c for _, c in pairs])


class TestLinearNetwork:
    """Three dense layers with bias, nothing in between.

    With a derivative at the output that does not depend on the input, E[dd^T (x) pp^T] is
    E[dd^T] (x) E[pp^T] in every layer: p is affine in the input, d linear in the output's.
    """

    @staticmethod
    def network():
        return nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 4), nn.Dense(4, 2))

    def test_with_every_input_under_every_derivative_the_blocks_are_exact(self):
        """Measured: 1e-7."""
        came = errors(self.network(), *every_pair(normal((5, 3)), normal((4, 2), 1)))
        assert set(came) == {"0", "1", "2"} and max(came.values()) <= BOUND

    def test_with_derivatives_that_know_the_input_they_are_not(self):
        """Measured: 0.41 to 0.62."""
        x = normal((20, 3))
        came = errors(self.network(), x, (x[:, :2] + 0.1 * normal((20, 2), 1)).astype(np.float32))
        assert min(came.values()) > 0.05


class TestTinyConvolution:
    """Two channels in, two out, 2x2 kernel on 3x2: two positions, with bias.

    F is the sum over pairs of positions t, u of E[d_t d_u^T (x) p_t p_u^T]; T A (x) G keeps t = u,
    each with the mean of d d^T and of p p^T over positions (Grosse and Martens 2016, section 3:
    independent, spatially homogeneous, uncorrelated derivatives).
    """

    @staticmethod
    def network():
        return nn.SequentialCell(nn.Conv2d(2, 2, 2, pad_mode="valid", has_bias=True))

    def test_where_the_papers_assumptions_hold_it_is_exact(self):
        """All signs at all positions, mixed over channels alike, under every input: d_t d_u^T is 0
        in the mean, d_t d_t^T is the same for each t. Measured: 6e-7.
        """
        signs = np.array(list(itertools.product([-1, 1], repeat=4))).reshape(16, 2, 2)
        slopes = np.einsum("oc,nct->not", normal((2, 2), 2), signs)[..., None].astype(np.float32)
        came = errors(self.network(), *every_pair(normal((5, 2, 3, 2)), slopes))
        assert came["0"] <= BOUND

    def test_derivatives_that_are_alike_at_all_positions_are_its_error(self):
        """Independent of the input still, but the same at both positions. Measured: 0.62."""
        slopes = np.repeat(normal((16, 2, 1, 1), 2), 2, axis=2)
        came = errors(self.network(), *every_pair(normal((5, 2, 3, 2)), slopes))
        assert 0.2 < came["0"] < 1

    def test_what_comes_of_random_numbers(self):
        """The error that the twins have too, not a rounding. Measured: 0.68."""
        x, c = normal((24, 2, 3, 2)), normal((24, 2, 2, 1), 1)
        came = errors(self.network(), x, c)["0"]
        patches = reference.patches(x, (2, 2))
        options = dict(homogeneous=True, layout="patches")
        exact = reference.exact_fisher(reference.per_sample_gradients(patches, c / 24.0, **options))
        factors = reference.kronecker_factors(patches, c / 24.0, **options)
        expected = reference.relative_error(reference.kronecker_fisher(*factors), exact)
        assert came == pytest.approx(expected, abs=1e-5) and expected > 0.1
