"""Recorded PyTorch steps, small enough to ship, and the rule that their weights and images follow.

``data_scripts/record_steps.py`` made the files, in float64, so that they agree on every machine.

The rule gives the same numbers on every machine, without a file. They follow from a tensor's name
and shape alone: PCG64 seeded by the SHA-256 of the name, 24 bits per number, without NumPy's
distributions (which may change). By PyTorch name:

    more than one dimension   uniform, mean 0, standard deviation sqrt(2 / fan_in)
    BatchNorm's weight        uniform in 0.9 .. 1.1, as LayerNorm's: one dimension, and a bias
    BatchNorm's bias          three channels of four in 2.5 .. 3.5, the fourth in -3.5 .. -2.5
    running_var               uniform in 0.5 .. 1.5
    num_batches_tracked       0
    anything else             uniform in -0.1 .. 0.1

BatchNorm's biases keep ReLU's inputs away from zero, where rounding decides which are active: with
biases near 0 PyTorch's own float32 gradients of ResNet-50 differ from float64 by 1 to 2 %.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.base.arguments import wrong
from labkit.base.files import whole_file
from labkit.errors import refuse_unknown
from labkit.migration.trace import Trace, Value

FOLDER = Path(__file__).parent / "steps"
SMALL_RESNET = Path(__file__).parent / "places" / "small_resnet.npz"  # a labkit.migration.Trace
KEPT, SUMS = 24, 4
_ENDS = ("running_var", "weight", "bias")


def uniform(name: str, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """Return float32 numbers from low to high that depend on ``name`` and ``shape`` alone."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    bits = np.random.PCG64(seed).random_raw(math.prod(shape)) >> np.uint64(40)
    # Exact in float64; one rounding to float32.
    return (low + (high - low) * (bits / 2.0**24)).astype(np.float32).reshape(shape)


def state(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return the rule's tensors for PyTorch names and shapes."""
    ends = {
        last: {n.rpartition(".")[0] for n in shapes if n.endswith(f".{last}")} for last in _ENDS
    }
    norms, both = ends["running_var"], ends["weight"] & ends["bias"]
    gains = norms | {module for module in both if len(shapes[f"{module}.weight"]) == 1}
    return {name: _tensor(name, tuple(shape), norms, gains) for name, shape in shapes.items()}


def _tensor(name: str, shape: tuple[int, ...], norms: set[str], gains: set[str]) -> np.ndarray:
    module, _, last = name.rpartition(".")
    if last == "num_batches_tracked":
        return np.zeros(shape, np.int64)
    if last == "running_var":
        return uniform(name, shape, 0.5, 1.5)
    if len(shape) >= 2:
        # A uniform distribution in +-a has the standard deviation a / sqrt(3).
        edge = math.sqrt(3 * 2 / math.prod(shape[1:]))
        return uniform(name, shape, -edge, edge)
    if module in gains and last == "weight":
        return uniform(name, shape, 0.9, 1.1)
    if module in norms and last == "bias":
        sign = np.where(uniform(f"{name}, sign", shape) < 0.75, 1, -1).astype(np.float32)
        return sign * uniform(name, shape, 2.5, 3.5)
    return uniform(name, shape, -0.1, 0.1)


def batch(size: int, side: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images, float32 (size, 3, side, side) in -2 .. 2, and labels, int32 (size,).

    Each image is 4 x 4 blocks of colour plus noise: images of noise alone look alike to the deep
    layers, and BatchNorm then amplifies rounding errors. ``side`` is a multiple of 4.
    """
    if side % 4:
        raise wrong("side", side, "a multiple of 4")
    blocks = uniform("blocks", (size, 3, 4, 4), -1.5, 1.5)
    images = np.kron(blocks, np.ones((side // 4, side // 4), np.float32))
    images = images + uniform("noise", images.shape, -0.5, 0.5)
    return images, (uniform("labels", (size,)) * classes).astype(np.int32)


@dataclass(frozen=True)
class Digest:
    """Some of a tensor's numbers, and a few sums of all of them with random signs.

    Of a large tensor it cannot show an error in a few numbers that are not kept, if that is small
    compared with sqrt(size) times the tolerance.
    """

    shape: tuple[int, ...]
    largest: float  # the largest absolute value
    kept: np.ndarray  # all numbers of a small tensor, else some, evenly spread with a jitter
    sums: np.ndarray  # sum_i s_i x_i / sqrt(n), s_i = +-1: off as one number is if all are so

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
    if size <= KEPT:
        return np.arange(size)
    step = size / KEPT
    return (np.arange(KEPT) * step + uniform("positions", (KEPT,)) * step).astype(int)


def _sums(flat: np.ndarray) -> np.ndarray:
    # The signs of each number as SUMS bits: one pass adds up each of the 16 combinations of signs.
    kinds = np.random.PCG64(flat.size).random_raw(flat.size) >> np.uint64(20)
    kinds &= np.uint64(2**SUMS - 1)
    by_kind = np.bincount(kinds.view(np.int64), flat, 2**SUMS)
    signs = 1 - 2 * (np.arange(2**SUMS) >> np.arange(SUMS)[:, None] & 1)
    return signs @ by_kind / math.sqrt(max(flat.size, 1))


def load(name: str) -> Trace:
    """Return a recorded step: ``resnet18``, ``resnet50`` or ``gpt``."""
    header, numbers = _read(name)
    stages: dict[str, dict[str, Value]] = {}
    for stage, tensor, shape, largest, noise in header["tensors"]:
        size = min(math.prod(shape), KEPT)
        kept, sums, numbers = np.split(numbers, [size, size + SUMS])
        digest = Digest(tuple(shape), largest, kept, sums)
        stages.setdefault(stage, {})[tensor] = Value(digest, noise)
    return Trace(header["origin"], stages)


def settings(name: str) -> dict:
    """Return a recorded step's settings, and ``losses``, those of ten steps on its batch."""
    return _read(name)[0]["settings"]


def save(name: str, trace: Trace, settings: dict) -> Path:
    """Write a PyTorch step as ``name``; return the path of the file."""
    tensors, arrays = [], []
    batch = zip(("images", "labels"), map(np.asarray, trace.batch), strict=True)
    stages = {"preprocessing": {name: Value(array) for name, array in batch}} | trace.stages
    for stage, values in stages.items():
        for tensor, (value, noise) in values.items():
            digest = Digest.of(value)
            tensors.append([stage, tensor, digest.shape, digest.largest, noise])
            arrays += [digest.kept, digest.sums]
    header = json.dumps({"origin": trace.origin, "settings": settings, "tensors": tensors})
    path = FOLDER / f"{name}.npz"
    with whole_file(path, "the recorded step") as temporary:
        np.savez_compressed(temporary, header=np.array(header), numbers=np.concatenate(arrays))
    return path


def _read(name: str) -> tuple[dict, np.ndarray]:
    refuse_unknown("recorded step", name, sorted(path.stem for path in FOLDER.glob("*.npz")))
    with np.load(FOLDER / f"{name}.npz") as file:
        return json.loads(str(file["header"])), file["numbers"]
