"""The tree in a graph: its rule for any number of rows, and the metric form that knows products."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from labkit import reference
from labkit.algorithms.adasum.tree import Tree

pytestmark = pytest.mark.usefixtures("runtime")


def of_tree(rows, *products, metric=False):
    """Adasum of rows (..., N, d), and its soundness."""
    tree = Tree(rows.shape[-2], metric=metric)
    tensors = [Tensor(np.ascontiguousarray(one), ms.float32) for one in (rows, *products)]
    combined, soundness = tree(*tensors)
    return combined.asnumpy(), float(soundness)


# Pairs, three, pairs of unequal counts (5), three of unequal counts (7, 14), both above one another
# (11, 23), a power of two: what each level combines, as numbers of workers.
LEVELS = {
    1: [],
    2: [(2,)],
    3: [(3,)],
    5: [(2, 3), (5,)],
    7: [(2, 2, 3), (7,)],
    8: [(2, 2, 2, 2), (4, 4), (8,)],
    11: [(2, 2, 2, 2, 3), (4, 7), (11,)],
    14: [(2,) * 7, (4, 4, 6), (14,)],
    23: [(2,) * 10 + (3,), (4, 4, 4, 4, 7), (8, 15), (23,)],
}


@pytest.mark.parametrize("count", LEVELS)
def test_what_each_level_combines(count):
    assert [level.combined for level in Tree(count).levels] == LEVELS[count]


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(3).normal(size=(2, 7, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def basis():
    vectors = np.random.default_rng(4).normal(size=(5, 9))
    vectors[1] = vectors[0] + 0.5 * vectors[1]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class TestRows:
    """Layers of one size may be combined at once: leading axes are kept."""

    def test_each_layer_by_itself(self, rows):
        came, soundness = of_tree(rows)
        assert came.shape == (2, 1, 5) and soundness == 1
        for layer in range(2):
            expected = reference.adasum_tree(rows[layer])
            np.testing.assert_allclose(came[layer, 0], expected, rtol=1e-5, atol=1e-6)

    def test_one_row_is_itself(self, rows):
        came, soundness = of_tree(rows[:, :1])
        np.testing.assert_array_equal(came, rows[:, :1])
        assert soundness == 1


class TestMetric:
    """Rows as coefficients of a basis of unit vectors that are not orthogonal."""

    def test_equals_the_vectors_themselves(self, basis):
        coefficients = np.diag([1.0, 2.0, 0.5, 3.0, 1.0])
        came, soundness = of_tree(coefficients, basis @ basis.T, metric=True)
        expected = reference.adasum_tree(coefficients @ basis)
        np.testing.assert_allclose(came[0] @ basis, expected, rtol=1e-5, atol=1e-6)
        assert 0 < soundness <= 1

    def test_soundness_is_the_least_of_all_combinations(self):
        """e1 and -e1 + 0.1 e2, given as unit vectors and a product, and six more directions.

        The first two's Adasum c has |c|^2 / (sum of its squared coefficients) far below 1. That is
        seen in the second level, where c is one side of a pair; in the third all is sound again.
        """
        pair = np.eye(2, 8)
        pair[1, :2] = -1.0, 0.1
        vectors = np.vstack([pair, np.eye(8)[2:]])
        lengths = np.linalg.norm(vectors, axis=1)
        units = vectors / lengths[:, None]
        _, soundness = of_tree(np.diag(lengths), units @ units.T, metric=True)
        combined, product = reference.adasum_pair(*pair), pair[0] @ pair[1]
        by = (1 - product / (2 * lengths[:2] ** 2)) * lengths[:2]
        expected = combined @ combined / (by @ by)
        assert expected < 0.01
        assert soundness == pytest.approx(expected, rel=1e-3)

    def test_a_zero_row_is_sound(self, basis):
        coefficients = np.diag([1.0, 0.0, 0.5, 0.0, 1.0])
        came, soundness = of_tree(coefficients, basis @ basis.T, metric=True)
        expected = reference.adasum_tree(coefficients @ basis)
        np.testing.assert_allclose(came[0] @ basis, expected, rtol=1e-5, atol=1e-6)
        assert soundness > 0.05
