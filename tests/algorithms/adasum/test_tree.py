"""The tree in a graph: its rule for any number of rows."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from labkit import reference
from labkit.algorithms.adasum.tree import Tree

pytestmark = pytest.mark.usefixtures("runtime")


def of_tree(rows):
    """Adasum of rows (..., N, d)."""
    return Tree(rows.shape[-2])(Tensor(np.ascontiguousarray(rows), ms.float32)).asnumpy()


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


class TestRows:
    """Layers of one size may be combined at once: leading axes are kept."""

    def test_each_layer_by_itself(self, rows):
        came = of_tree(rows)
        assert came.shape == (2, 1, 5)
        for layer in range(2):
            expected = reference.adasum_tree(rows[layer])
            np.testing.assert_allclose(came[layer, 0], expected, rtol=1e-5, atol=1e-6)

    def test_one_row_is_itself(self, rows):
        np.testing.assert_array_equal(of_tree(rows[:, :1]), rows[:, :1])
