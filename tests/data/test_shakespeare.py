"""The plays: texts, windows, lines by length, and the n-gram references against plain counting."""

import numpy as np
import pytest

from labkit.data import shakespeare
from labkit.data.prepare import prepare


@pytest.fixture(scope="module")
def plays():
    return shakespeare.load(prepare("shakespeare"))


def test_texts_are_whole_and_in_one_alphabet(plays):
    assert [len(text) for text in plays[:3]] == [1_070_685, 101_894, 96_881]
    assert len(plays.alphabet) == 67 and plays.alphabet == "".join(sorted(set(plays.alphabet)))
    text = "".join(plays.alphabet[code] for code in plays.validation)
    assert "To-morrow, and to-morrow, and to-morrow," in text and plays.train.dtype == np.int32
    assert "such stuff\nAs dreams are made on" in "".join(plays.alphabet[c] for c in plays.test)
    for phrase in ("To-morrow, and to-morrow", "such stuff\nAs dreams"):
        assert phrase not in "".join(plays.alphabet[c] for c in plays.train)


def test_labels_are_the_next_characters(plays):
    for tokens, labels in (
        shakespeare.random_windows(plays.train, 5, 8, seed=1, number=3),
        shakespeare.even_windows(plays.train, 5, 8),
        shakespeare.windows(plays.train, [0, len(plays.train) - 9], 8),
    ):
        assert tokens.shape == labels.shape and tokens.dtype == labels.dtype == np.int32
        np.testing.assert_array_equal(tokens[:, 1:], labels[:, :-1])
    np.testing.assert_array_equal(labels[-1], plays.train[-8:])
    tokens, _ = shakespeare.even_windows(plays.train, 2, 8)
    np.testing.assert_array_equal(tokens[0], plays.train[:8])
    draws = [
        shakespeare.random_windows(plays.train, 5, 8, *key)[0] for key in ((1, 3), (1, 4), (2, 3))
    ]
    np.testing.assert_array_equal(draws[0], shakespeare.random_windows(plays.train, 5, 8, 1, 3)[0])
    assert not (draws[0] == draws[1]).all() and not (draws[0] == draws[2]).all()


def test_lines_are_padded_and_short_ones_come_together():
    text = np.array([1, 0, 2, 3, 0, 0, 4, 5, 6, 0, 7, 8], np.int32)  # 0 is the line feed
    lines = shakespeare.lines_of(text, 0)
    assert [line.tolist() for line in lines] == [[2, 3, 0], [4, 5, 6, 0]]
    tokens, labels = shakespeare.padded(lines, 2)
    assert tokens.tolist() == [[2, 3], [4, 5]] and labels.tolist() == [[3, 0], [5, 6]]
    tokens, labels = shakespeare.padded(lines, 4)
    assert tokens.tolist() == [[2, 3, 0, 0], [4, 5, 6, 0]]
    assert labels.tolist() == [[3, 0, -100, -100], [5, 6, 0, -100]]
    many = [np.arange(3 + number % 9, dtype=np.int32) for number in range(40)]
    parts = shakespeare.micro_batches(many, 4, 5, 12, np.random.default_rng(0))
    counts = [(labels >= 0).sum(1) for _, labels in parts]
    assert [len(count) for count in counts] == 4 * [5]
    assert all(a.max() <= b.min() for a, b in zip(counts, counts[1:], strict=False))
    other = shakespeare.micro_batches(many, 4, 5, 12, np.random.default_rng(1))
    assert any((a != b).any() for (a, _), (b, _) in zip(parts, other, strict=True))
