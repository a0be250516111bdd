"""Adasum's coefficients from scalar products alone, and whether these are sound."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from labkit import reference
from labkit.algorithms.adasum.combine import SOUND, SOUND_AT_THE_END, ByGram, ByTree

pytestmark = pytest.mark.usefixtures("eager")


def of_products(vectors):
    """Return the Adasum, by layer, of vectors (L, N, d) from Gram matrices, and its soundness."""
    grams = vectors @ np.swapaxes(vectors, -1, -2)
    lengths = np.linalg.norm(vectors, axis=-1)
    cell = ByGram([1] * len(vectors), vectors.shape[1])
    weights, sound = cell.coefficients(Tensor(grams, ms.float32), Tensor(lengths, ms.float32))
    units = vectors / np.where(lengths, lengths, 1)[..., None]
    return (weights.asnumpy().astype(np.float64) @ units)[:, 0], bool(sound)


def error(vectors):
    """Return the largest distance from the float64 tree of layers (L, N, d), which are sound."""
    combined, sound = of_products(vectors)
    expected = np.array([reference.adasum_tree(layer) for layer in vectors])
    assert sound
    return max(np.linalg.norm(combined - expected, axis=1) / np.linalg.norm(expected, axis=1))


def opposite(rest):
    """Return e1 and -e1 + ``rest`` e2: their Adasum is short, and its square a small difference."""
    return np.array([[1.0, 0, 0, 0], [-1.0, rest, 0, 0]])


def soundness(a, b):
    """Return |c|^2 over the sum of its terms' squares, for c = Adasum(a, b) of one worker each."""
    combined, product = reference.adasum_pair(a, b), a @ b
    parts = [(1 - product / (2 * x @ x)) ** 2 * (x @ x) for x in (a, b)]
    return combined @ combined / sum(parts)


# One; pairs; three; three after pairs; unequal counts in a pair (11) and in three (14); three on
# two levels (23: 3 of 23, then 5 of 11 ... 2); powers of two.
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 11, 14, 23, 64])
def test_equals_the_float64_tree(count):
    random = np.random.default_rng(count)
    vectors = random.normal(size=(3, count, 50)) + random.normal(size=(3, 1, 50))
    assert error(vectors) <= 2e-6


def test_lengths_may_differ_by_any_factor():
    """As long as float32 holds their squares; the coefficients reach 1e28, and none is squared."""
    vectors = np.random.default_rng(1).normal(size=(1, 4, 50))
    assert error(vectors * np.array([1e-12, 1e17, 1.0, 1e-3])[:, None]) <= 2e-6


def test_layers_of_one_size_are_combined_at_once():
    """A single worker's row is returned as it is."""
    rows = np.random.default_rng(3).normal(size=(2, 7, 5)).astype(np.float32)
    combined = ByTree((5, 5), 7)(Tensor(np.hstack(rows))).asnumpy().reshape(2, 5)
    for layer, row in zip(rows, combined, strict=True):
        np.testing.assert_allclose(row, reference.adasum_tree(layer), rtol=1e-5, atol=1e-6)
    alone = rows[0, :1]
    np.testing.assert_array_equal(ByTree((5,), 1)(Tensor(alone)).asnumpy(), alone[0])


def beside_others(vectors, count, place):
    """Return a layer (1, count, 8): orthogonal vectors, but ``vectors`` from ``place`` on."""
    layer = np.eye(count, 8)[None].copy()
    layer[0, place : place + len(vectors)] = 0
    layer[0, place : place + len(vectors), 4 * (place > 3) :][:, :4] = vectors
    return layer


@pytest.mark.parametrize(
    ("vectors", "count", "place", "expected"),
    [
        # The last pair's square divides nothing: more may be lost before 1e-5 of the length is.
        *((opposite(rest), 2, 0, rest > 0.1) for rest in (0.3, 0.21, 0.01)),
        (opposite(0.6), 4, 0, True),
        (opposite(0.3), 4, 0, False),
        # One unsound pair decides, wherever it is and however sound the rest is.
        *((opposite(0.1), 8, place, False) for place in (0, 2, 4, 6)),
        # Two pairs of equal vectors are sound, but their combinations nearly cancel.
        (np.repeat(opposite(0.1), 2, axis=0), 8, 0, False),
        # One of the three orders begins with the two vectors that nearly cancel.
        *((opposite(0.1), count, count - 2, False) for count in (3, 5)),
    ],
)
def test_soundness(vectors, count, place, expected):
    layer, others = beside_others(vectors, count, place), np.eye(count, 8)[None]
    limit = SOUND if count > 2 else SOUND_AT_THE_END
    assert len(vectors) != 2 or (soundness(*vectors) > limit) == expected
    combined, sound = of_products(layer)
    assert sound == expected
    assert of_products(others)[1] and of_products(np.vstack([others, layer]))[1] == expected
    if count == 2:
        right = reference.adasum_tree(layer[0])
        assert (np.linalg.norm(combined[0] - right) <= 1e-5 * np.linalg.norm(right)) == expected
