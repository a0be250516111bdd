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
    """Refuse what is not flat tensors, features of float64, and columns in another order."""
    if len(batch) < 2 or not all(isinstance(part, Tensor) for part in batch):
        kinds = ", ".join(type(part).__name__ for part in batch) or "nothing"
        raise InputError(f"the batch: expected Tensors, inputs first and labels last, got {kinds}")
    first, labels = batch[0], batch[-1]
    if not labels.ndim or not labels.shape[0]:
        raise InputError(f"the labels: expected at least one row, got shape {labels.shape}")
    for number, part in enumerate(batch[:-1]):
        if part.dtype == ms.float64:
            raise InputError(
                f"the batch's tensor {number} is float64, NumPy's default: expected float32, by "
                ".astype(np.float32)"
            )
    swapped = first.dtype in INTEGERS and first.ndim == 1 and labels.dtype not in INTEGERS
    if swapped and labels.ndim > 1 and getattr(loss_net, "class_axis", None) is not None:
        raise InputError(
            f"the batch begins with integers {first.shape} and ends with {labels.dtype} "
            f"{labels.shape}: expected inputs first and labels last; are the columns swapped?"
        )


def check_labels_of(loss_net: nn.Cell, batch: tuple) -> None:
    """Refuse a label that is neither a class nor ignored, once the number of classes is known."""
    of_classes = hasattr(loss_net, "classes") and getattr(loss_net, "class_axis", -1) is not None
    if of_classes and batch[-1].dtype in INTEGERS:
        check_labels(batch[-1].asnumpy(), loss_net.classes, loss_net.ignore_index)


def check_labels(
    labels: np.ndarray, classes: int | None = None, ignore_index: int | None = IGNORE_INDEX
) -> None:
    """Refuse labels that are neither known nor ignored, and name the first one's place.

    Args:
        labels: array of any shape, of an integer type.
        classes: V; None if it is unknown: then labels must only not be negative.
        ignore_index: label that is ignored, or None if every label counts.

    Raises:
        InputError: if they are not integers, or one is neither.
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
