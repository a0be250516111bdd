"""Folders of snapshots, shared by the tests of snapshots and of the basis."""

import numpy as np
from safetensors.numpy import save_file

SHAPES = {"conv.weight": (3, 2, 2), "bias": (4,), "dense.weight": (5, 7), "scale": ()}
SIZE = 52  # M


def split(row):
    """Split a row of M numbers into arrays by name, in the order of ``SHAPES``."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES.values()])
    parts = zip(SHAPES.items(), np.split(np.asarray(row, np.float32), ends[:-1]), strict=True)
    return {name: np.array(part).reshape(shape) for (name, shape), part in parts}


def write(folder, rows, name="step-{:09d}.safetensors"):
    """Write rows (N, M) as snapshots 1 .. N."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, row in enumerate(rows, 1):
        save_file(split(row), folder / name.format(number))


def with_spectrum(count, numbers, values, seed=0, mean=0.0):
    """Return rows (count, numbers) float32 whose centred matrix has about these singular values."""
    random = np.random.default_rng(seed)
    left = np.column_stack([np.ones(count), random.normal(size=(count, len(values)))])
    left = np.linalg.qr(left)[0][:, 1:]
    right = np.linalg.qr(random.normal(size=(numbers, len(values))))[0]
    return ((left * values) @ right.T + mean).astype(np.float32)
