"""Whether a tensor of ours is PyTorch's, as far as rounding lets one know.

A tensor agrees if it is as near to PyTorch's float64 as PyTorch's own float32 lets one expect:

    |ours - float64| <= FACTOR |float32 - float64| + FLOOR max |float64|

A whole step is compared more coarsely, by the 2-norm of a tensor's difference over the tensor's:
rounding may open a ReLU in one framework only, and that changes every gradient below it.
"""

from dataclasses import dataclass

import numpy as np

from labkit.migration.places import fitted
from labkit.migration.trace import Value

FACTOR, FLOOR, COARSE = 16, 4e-6, 0.05


@dataclass(frozen=True)
class Row:
    """One tensor at one place."""

    stage: str
    place: str
    tensor: str
    difference: float  # the largest over the largest value of PyTorch's, or infinite
    tolerance: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the tensors agree."""
        return self.difference <= self.tolerance


def judged(
    stage: str, place: str, tensor: str, actual: np.ndarray, expected: Value, coarse: bool = False
) -> Row:
    """Compare one tensor with PyTorch's; axes of length 1 and joined rows do not matter."""
    known, shape = expected.value, tuple(expected.value.shape)
    same = fitted(np.asarray(actual, np.float64), shape)
    if same is None:
        hint = ": transposed?" if np.shape(actual) == shape[::-1] else ""
        note = f"{tensor} has shape {np.shape(actual)}, expected {shape}{hint}"
        return Row(stage, place, tensor, np.inf, 0.0, note)
    if isinstance(known, np.ndarray):
        equal = np.isinf(known) & (same == known)  # a mask before softmax
        same, known = np.where(equal, 0, same), np.where(equal, 0, known)
        norm = np.linalg.norm if coarse else largest
        scale, off = norm(known.ravel()), norm((same - known).ravel())
    else:
        scale, off = known.largest, known.distance(same)
    if not (np.isfinite(scale) and np.isfinite(off)):
        what = "holds NaN" if np.isnan(same).any() else "is infinite elsewhere than PyTorch's"
        return Row(stage, place, tensor, np.inf, 0.0, f"{tensor} {what}")
    allowed = FACTOR * expected.noise + (COARSE if coarse else FLOOR) * scale
    return Row(stage, place, tensor, float(off / (scale or 1)), float(allowed / (scale or 1)))


def largest(values: np.ndarray) -> float:
    return float(np.abs(values).max(initial=0.0))
