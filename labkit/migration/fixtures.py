"""Recorded PyTorch steps, small enough to ship, for use where PyTorch is not installed.

A digest of each tensor is kept: some of its numbers, and a few sums of all its numbers with random
signs. A digest cannot detect an error in a few numbers of a large tensor that misses the kept ones
and is small compared with sqrt(size) times the tolerance.

Weights and batch are those of ``labkit.migration.synthetic``; ``data_scripts/record_steps.py``
made the files, in float64, so that they agree on every machine.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.base.files import open_file, parse_json, whole_file
from labkit.errors import InputError, refuse_unknown
from labkit.migration import synthetic
from labkit.migration.trace import Trace

FOLDER = Path(__file__).parent / "steps"
KEPT, SUMS = 24, 4
_UNPACKED = 64 << 20  # bytes; a ResNet-50 takes 0.2 MB


@dataclass(frozen=True)
class Digest:
    """The digest of a tensor.

    Attributes:
        shape: shape of the tensor.
        largest: its largest absolute value.
        kept: some of its numbers.
        sums: sum_i s_i x_i / sqrt(n) with signs s_i = +-1; their error is of the size of one
            number's error if the errors are independent of one another.
    """

    shape: tuple[int, ...]
    largest: float
    kept: np.ndarray
    sums: np.ndarray

    @classmethod
    def of(cls, value: np.ndarray) -> "Digest":
        """Return the digest of an array."""
        value = np.asarray(value, np.float64)
        flat = value.ravel()
        largest = float(np.abs(flat).max(initial=0.0))
        return cls(value.shape, largest, flat[_positions(flat.size)], _sums(flat))

    def distance(self, value: np.ndarray) -> float:
        """Return the largest difference seen between an array of this shape and the original."""
        other = Digest.of(value)
        by_number = float(np.abs(other.kept - self.kept).max(initial=0.0))
        by_sum = float(np.abs(other.sums - self.sums).max(initial=0.0))
        # Equal tensors may differ here: another machine may add float64 numbers in another order.
        by_sum = by_sum if by_sum > 1e-12 * self.largest else 0.0
        return max(abs(other.largest - self.largest), by_number, by_sum)


def _positions(size: int) -> np.ndarray:
    """Return which numbers are kept: all of a small tensor, else evenly spread with a jitter."""
    if size <= KEPT:
        return np.arange(size)
    step = size / KEPT
    return (np.arange(KEPT) * step + synthetic.uniform("positions", (KEPT,)) * step).astype(int)


def _sums(flat: np.ndarray) -> np.ndarray:
    # The signs of each number as SUMS bits: one pass adds up each of the 16 combinations of signs.
    kinds = np.random.PCG64(flat.size).random_raw(flat.size) >> np.uint64(20)
    kinds &= np.uint64(2**SUMS - 1)
    by_kind = np.bincount(kinds.view(np.int64), flat, 2**SUMS)
    signs = 1 - 2 * (np.arange(2**SUMS) >> np.arange(SUMS)[:, None] & 1)
    return signs @ by_kind / math.sqrt(max(flat.size, 1))


def names() -> list[str]:
    """Return the recorded steps: ``resnet18``, ``resnet50``, and ``tiny``, which lab 02 shows."""
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def load(name: str) -> Trace:
    """Return a recorded step; ``settings(name)`` returns its settings."""
    header, arrays = _read(name)
    stages: dict[str, dict[str, object]] = {}
    start = 0
    for stage, tensor, shape, largest in header["tensors"]:
        size = min(math.prod(shape), KEPT)
        kept, sums = np.split(arrays[start : start + size + SUMS], [size])
        stages.setdefault(stage, {})[tensor] = Digest(tuple(shape), largest, kept, sums)
        start += size + SUMS
    return Trace(header["origin"], stages)


def settings(name: str) -> dict:
    """Return the settings of a recorded step, and ``losses``, those of ten steps on its batch.

    They are depth, classes, batch size, side of the images, label smoothing (PyTorch's), learning
    rates (of the step, and of the ten), momentum, and weight decay (of weights with more than one
    dimension). ``tiny`` has no depth, smoothing or decay, one learning rate, and ``running_var``,
    BatchNorm's running variance after the ten steps.
    """
    return _read(name)[0]["settings"]


def save(name: str, trace: Trace, settings: dict) -> Path:
    """Write a PyTorch step as ``name``; return the path of the file."""
    tensors, arrays = [], []
    for stage, values in trace.stages.items():
        for tensor, value in values.items():
            digest = Digest.of(np.asarray(value))
            tensors.append([stage, tensor, list(digest.shape), digest.largest])
            arrays += [digest.kept, digest.sums]
    header = {"origin": trace.origin, "settings": settings, "tensors": tensors}
    path = FOLDER / f"{name}.npz"
    text, numbers = np.array(json.dumps(header)), np.concatenate(arrays)
    with whole_file(path, "the recorded step") as temporary:
        np.savez_compressed(temporary, header=text, numbers=numbers)
    return path


def _read(name: str) -> tuple[dict, np.ndarray]:
    refuse_unknown("recorded step", name, names())
    path = FOLDER / f"{name}.npz"
    try:
        with open_file(path) as packed, np.load(packed, allow_pickle=False) as file:
            if sum(info.file_size for info in file.zip.infolist()) > _UNPACKED:
                raise ValueError(f"unpacks to more than {_UNPACKED} bytes")
            header, numbers = parse_json(str(file["header"])), file["numbers"]
            sizes = [math.prod(map(_length, shape)) for _, _, shape, _ in header["tensors"]]
            if numbers.shape != (sum(min(size, KEPT) + SUMS for size in sizes),):
                raise ValueError(f"{len(sizes)} tensors and numbers {numbers.shape}")
            header["origin"], header["settings"]
            return header, numbers
    # NumPy, zipfile and a malformed header raise many kinds of errors: TokenError, BadZipFile, ...
    except Exception as error:
        raise InputError(f"the recorded step {path} is damaged ({error})") from error


def _length(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a length")
    return value
