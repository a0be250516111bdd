"""IDX files, written according to the format's description."""

import gzip
from pathlib import Path

import numpy as np


def write_idx(path: Path, array: np.ndarray) -> Path:
    """Write images (count, rows, columns) or labels (count,), uint8; gzipped if named .gz."""
    header = np.array([{3: 2051, 1: 2049}[array.ndim], *array.shape], ">u4").tobytes()
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_set(folder: Path, usage: str, images: np.ndarray, labels: np.ndarray, end="") -> None:
    """Write a set, "train" or "test", under MNIST's names into a folder."""
    prefix = {"train": "train", "test": "t10k"}[usage]
    folder.mkdir(parents=True, exist_ok=True)
    write_idx(folder / f"{prefix}-images-idx3-ubyte{end}", images)
    write_idx(folder / f"{prefix}-labels-idx1-ubyte{end}", labels)
