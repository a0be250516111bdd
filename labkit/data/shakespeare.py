"""Ten plays of Shakespeare as characters: train on eight, choose on Macbeth, report The Tempest."""

import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

IGNORED = -100  # label of padding, by ``TokenLossNet``


class Plays(NamedTuple):
    """Texts as int32 codes (n,): ``alphabet[code]`` is the character."""

    train: np.ndarray  # eight plays, 1 070 685 characters
    validation: np.ndarray  # Macbeth
    test: np.ndarray  # The Tempest
    alphabet: str  # the characters of all ten, sorted


def load(folder: str | os.PathLike) -> Plays:
    """Return the texts in ``prepare("shakespeare")``."""
    names = ("train", "validation", "test")
    texts = [gzip.decompress((Path(folder) / f"{n}.txt.gz").read_bytes()).decode() for n in names]
    alphabet = "".join(sorted(set().union(*texts)))
    codes = {character: code for code, character in enumerate(alphabet)}
    train, validation, test = (np.array([codes[c] for c in text], np.int32) for text in texts)
    return Plays(train, validation, test, alphabet)


def windows(text: np.ndarray, starts: Sequence[int] | np.ndarray, length: int) -> tuple:
    """Return tokens and labels, the next tokens, each int32 (starts, length)."""
    rows = text[np.asarray(starts)[:, None] + np.arange(length + 1)]
    return rows[:, :-1].copy(), rows[:, 1:].copy()


def random_windows(text: np.ndarray, rows: int, length: int, seed: int, number: int) -> tuple:
    """Return batch ``number``, 0, 1, ..., of a training with ``seed``, as ``windows`` does."""
    random = np.random.default_rng((seed, number))
    return windows(text, random.integers(0, len(text) - length, rows), length)


def even_windows(text: np.ndarray, rows: int, length: int) -> tuple:
    """Return windows at even distances over the whole text, to judge a network by."""
    return windows(text, np.linspace(0, len(text) - length - 1, rows).astype(int), length)


def lines_of(text: np.ndarray, line_feed: int) -> list[np.ndarray]:
    """Return the lines of a text that have a character to predict besides their line feed."""
    lines = np.split(text, np.flatnonzero(text == line_feed) + 1)
    return [line for line in lines if len(line) > 2]


def padded(lines: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens, padded with 0, and labels, padded with -100, each int32 (lines, length)."""
    tokens = np.zeros((len(lines), length), np.int32)
    labels = np.full((len(lines), length), IGNORED, np.int32)
    for row, line in enumerate(lines):
        line = line[: length + 1]
        tokens[row, : len(line) - 1], labels[row, : len(line) - 1] = line[:-1], line[1:]
    return tokens, labels


def micro_batches(
    lines: Sequence[np.ndarray], count: int, rows: int, length: int, random: np.random.Generator
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return ``count`` padded micro-batches of lines drawn by ``random``, short lines together."""
    drawn = random.choice(len(lines), count * rows, replace=False)
    chosen = sorted((lines[i] for i in drawn), key=len)
    return [padded(chosen[i : i + rows], length) for i in range(0, len(chosen), rows)]
