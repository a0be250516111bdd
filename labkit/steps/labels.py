"""Class labels: each is known (0 <= label < V), ignored, or refused by an error that names it.

No exception can leave a compiled graph: those of a step's first batch and of ``evaluate`` are
checked on the host; in any other batch a label that is neither makes the loss NaN.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from labkit.base.arguments import integer
from labkit.errors import InputError

# As in PyTorch, Hugging Face and MindSpore's nn.CrossEntropyLoss.
IGNORE_INDEX = -100
INTEGERS = (
    *(ms.int8, ms.int16, ms.int32, ms.int64),
    *(ms.uint8, ms.uint16, ms.uint32, ms.uint64),
)


def check_labels(
    labels: np.ndarray, classes: int | None = None, ignore_index: int | None = IGNORE_INDEX
) -> None:
    """Check that every label is known or ignored.

    Args:
        labels: array of any shape, of an integer type.
        classes: V, the number of classes; None if it is unknown: then labels must only not be
            negative.
        ignore_index: label that is ignored, or None if every label counts.

    Raises:
        InputError: if they are not integers, or one is neither; its place is named.
    """
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu":
        raise InputError(f"labels: expected integers, such as int32, got {labels.dtype}")
    wrong = labels < 0 if classes is None else (labels < 0) | (labels >= classes)
    if ignore_index is not None:
        wrong &= labels != ignore_index
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        where = first[0] if len(first) == 1 else first
        upper = ">= 0" if classes is None else f"0 .. {classes - 1}"
        ignored = "" if ignore_index is None else f", or ignore_index={ignore_index}"
        raise InputError(
            f"label {labels[first]} at index {where} is out of range: expected {upper}{ignored}"
        )


def check_ignore_index(value: object) -> int:
    """Return ``value`` if it is an integer that fits in int32, else raise ``InputError``."""
    return integer("ignore_index", value, -(2**31), 2**31 - 1)


def masks(labels: Tensor, classes: int, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Return (labels, 0 in place of those not known; factor of each one's loss), inside a graph.

    The factor is 1 for a known label, 0 for an ignored one, and NaN for any other. Raises
    ``TypeError``, at compilation, if the labels are not integers.
    """
    if labels.dtype not in INTEGERS:
        raise TypeError(f"labels: expected integers, such as int32, got {labels.dtype}")
    if labels.dtype != ms.int32:
        labels = ops.cast(labels, ms.int64)
    ignored = labels == ignore_index
    known = ops.logical_and(labels >= 0, labels < classes)
    factor = ops.where(ignored, 0.0, ops.where(known, 1.0, float("nan")))
    return ops.where(known, labels, 0 * labels), factor


def only_known(labels: Tensor, classes: int, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Return (labels, 0 in place of invalid ones; 1, or NaN if any is invalid), inside a graph."""
    known = ops.logical_and(labels >= 0, labels < classes)
    if ignore_index is not None:
        known = ops.logical_or(known, labels == ignore_index)
    return ops.where(known, labels, 0 * labels), ops.where(known.all(), 1.0, float("nan"))


def as_int32(labels: Tensor) -> Tensor:
    """Return integers as int32, inside a graph, and any other labels unchanged.

    MindSpore's losses refuse most other integer types, some with a C++ stack trace, such as
    nn.CrossEntropyLoss for int64, NumPy's and PyTorch's type of labels. Numbers outside the range
    of int32 are clipped to it.
    """
    if labels.dtype == ms.int32 or labels.dtype not in INTEGERS:
        return labels
    labels = ops.cast(labels, ms.int64)
    return ops.cast(ops.minimum(ops.maximum(labels, -(2**31)), 2**31 - 1), ms.int32)


def count_only(losses: Tensor, factor: Tensor) -> Tensor:
    """Return the losses times the factors of ``masks``; an ignored loss is 0 whatever it was."""
    return ops.masked_fill(losses * factor, factor == 0, 0.0)
