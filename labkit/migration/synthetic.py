"""Synthetic weights and images, from a rule: the same numbers on every machine, without a file.

A tensor's numbers follow from its name and shape alone: PCG64 seeded by the SHA-256 of the name,
24 bits per number, without NumPy's distributions (which may change). By PyTorch name:

    more than one dimension   uniform, mean 0, standard deviation sqrt(2 / fan_in)
    BatchNorm's weight        uniform in 0.9 .. 1.1
    BatchNorm's bias          three channels of four in 2.5 .. 3.5, the fourth in -3.5 .. -2.5
    running_mean              uniform in -0.1 .. 0.1
    running_var               uniform in 0.5 .. 1.5
    num_batches_tracked       0
    anything else             uniform in -0.1 .. 0.1

The reason for BatchNorm's bias: a ReLU whose input is near zero may be active in one float32
computation and inactive in another. With biases near 0, PyTorch's own float32 gradients of
ResNet-50 differ from float64 by 1 to 2 % in half of the tensors (batch 32 at 64x64), and no two
implementations can be compared more closely. With these biases it is 3e-5 in the worst tensor.
Each channel is clearly active or inactive, and both kinds occur.
"""

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from labkit.base.arguments import wrong


def uniform(name: str, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """Return float32 numbers from low to high that depend on ``name`` and ``shape`` alone.

    From 0 to 1 they are below 1; in other ranges a number may be rounded up to ``high``.
    """
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    bits = np.random.PCG64(seed).random_raw(math.prod(shape)) >> np.uint64(40)
    # Exact in float64; one rounding to float32.
    return (low + (high - low) * (bits / 2.0**24)).astype(np.float32).reshape(shape)


def state(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return the rule's tensors for PyTorch names and shapes."""
    return {name: _tensor(name, tuple(shape), shapes) for name, shape in shapes.items()}


def _tensor(name: str, shape: tuple[int, ...], shapes: Mapping) -> np.ndarray:
    module, _, last = name.rpartition(".")
    if last == "num_batches_tracked":
        return np.zeros(shape, np.int64)
    if last == "running_var":
        return uniform(name, shape, 0.5, 1.5)
    if len(shape) >= 2:
        # A uniform distribution in +-a has the standard deviation a / sqrt(3).
        edge = math.sqrt(3 * 2 / math.prod(shape[1:]))
        return uniform(name, shape, -edge, edge)
    if f"{module}.running_var" in shapes and last == "weight":
        return uniform(name, shape, 0.9, 1.1)
    if f"{module}.running_var" in shapes and last == "bias":
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
    images = np.repeat(np.repeat(blocks, side // 4, axis=2), side // 4, axis=3)
    images = images + uniform("noise", images.shape, -0.5, 0.5)
    return images, (uniform("labels", (size,)) * classes).astype(np.int32)
