"""Class labels: each is known (0 <= label < V), ignored, or refused by an error that names it.

No exception can leave a compiled graph: a step's first batch and those of ``evaluate`` are checked
on the host; in any other batch a label that is neither makes the loss NaN.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from labkit.base.arguments import integer
from labkit.errors import InputError

# As in PyTorch, Hugging Face and MindSpore's nn.CrossEntropyLoss.
IGNORE_INDEX = -100
INTEGERS = (
    *(ms.int8, ms.int16, ms.int32, ms.int64),
    *(ms.uint8, ms.uint16, ms.uint32, ms.uint64),
)


def check_batch(loss_net: nn.Cell, batch: tuple) -> None:
    """Refuse what is not flat Tensors, features of float64, and columns in another order."""
    right = len(batch) > 1 and all(isinstance(part, Tensor) for part in batch)
    right = right and batch[-1].ndim and batch[-1].size
    if right and ms.float64 not in [part.dtype for part in batch[:-1]]:
        first, labels = batch[0], batch[-1]
        swapped = first.dtype in INTEGERS and first.ndim == 1 and labels.dtype not in INTEGERS
        if not (swapped and labels.ndim > 1 and getattr(loss_net, "class_axis", None) is not None):
            return
    got = [f"{p.dtype} {p.shape}" if isinstance(p, Tensor) else type(p).__name__ for p in batch]
    raise InputError(
        "the batch: expected Tensors of at least one row, inputs first (float32, not NumPy's "
        f"float64) and labels last, got {', '.join(got) or 'nothing'}"
    )


def check_labels(labels: np.ndarray, classes: int, ignore_index: int | None) -> None:
    """Refuse labels, an array, that are neither known nor ignored; name the first one's place."""
    if labels.dtype.kind not in "iu":
        raise InputError(f"labels: expected integers, such as int32, got {labels.dtype}")
    wrong = (labels < 0) | (labels >= classes)
    wrong &= ignore_index is None or labels != ignore_index
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        where = place[0] if len(place) == 1 else place
        ignored = "" if ignore_index is None else f", or ignore_index={ignore_index}"
        raise InputError(
            f"label {labels[place]} at index {where} is out of range: expected 0 .. {classes - 1}"
            f"{ignored}"
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

    MindSpore's losses refuse most other integer types, such as nn.CrossEntropyLoss for int64,
    NumPy's type of labels. Numbers outside the range of int32 are clipped to it.
    """
    if labels.dtype == ms.int32 or labels.dtype not in INTEGERS:
        return labels
    labels = ops.cast(labels, ms.int64)
    return ops.cast(ops.minimum(ops.maximum(labels, -(2**31)), 2**31 - 1), ms.int32)


def count_only(losses: Tensor, factor: Tensor) -> Tensor:
    """Return the losses times the factors of ``masks``; an ignored loss is 0 whatever it was."""
    return ops.masked_fill(losses * factor, factor == 0, 0.0)
