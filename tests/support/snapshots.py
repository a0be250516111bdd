"""Folders of snapshots, shared by the tests of snapshots and of the basis."""

import numpy as np
from safetensors.numpy import save_file

SHAPES = {"conv.weight": (3, 2, 2), "bias": (4,), "dense.weight": (5, 7), "scale": ()}


def split(row, shapes=None):
    """Split a row of M numbers into arrays by name, in the order of ``shapes``."""
    parts, start = {}, 0
    for name, shape in (shapes or SHAPES).items():
        count = int(np.prod(shape, dtype=int))
        parts[name] = row[start : start + count].reshape(shape)
        start += count
    assert start == len(row), (start, len(row))
    return parts


def size(shapes=None):
    """Return M, the number of entries in a snapshot."""
    return sum(int(np.prod(shape, dtype=int)) for shape in (shapes or SHAPES).values())


def write(folder, rows, shapes=None, name="step-{:09d}.safetensors", order=None):
    """Write rows (N, M) as snapshots of parameters of ``shapes``; return pairs (name, shape).

    order  indices of the rows in the order in which the files are written
    """
    folder.mkdir(parents=True, exist_ok=True)
    for index in order if order is not None else range(len(rows)):
        row = np.asarray(rows[index], np.float32)
        arrays = {key: np.array(value) for key, value in split(row, shapes).items()}
        save_file(arrays, folder / name.format(index + 1))
    return list((shapes or SHAPES).items())


def with_spectrum(count, numbers, values, seed=0, mean=0.0):
    """Return rows (count, numbers) float32 whose centred matrix has about these singular values."""
    random = np.random.default_rng(seed)
    left = np.column_stack([np.ones(count), random.normal(size=(count, len(values)))])
    left = np.linalg.qr(left)[0][:, 1:]
    right = np.linalg.qr(random.normal(size=(numbers, len(values))))[0]
    return ((left * values) @ right.T + mean).astype(np.float32)
