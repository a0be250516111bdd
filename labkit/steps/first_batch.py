"""Checks of the first batch of a step, on the host: one sentence for each mistake.

Later batches are not looked at: no label is read from the device at each call.
"""

import mindspore as ms
from mindspore import Tensor, nn

from labkit.errors import InputError
from labkit.steps.labels import INTEGERS, check_labels


def check_batch(loss_net: nn.Cell, batch: tuple) -> None:
    """Refuse what is not flat tensors, features of float64, and columns in another order."""
    if len(batch) < 2 or not all(isinstance(part, Tensor) for part in batch):
        kinds = ", ".join(type(part).__name__ for part in batch) or "nothing"
        raise InputError(f"the batch: expected Tensors, inputs first and labels last, got {kinds}")
    if not batch[-1].ndim or not batch[-1].shape[0]:
        raise InputError(f"the labels: expected at least one row, got shape {batch[-1].shape}")
    for number, part in enumerate(batch[:-1]):
        if part.dtype == ms.float64:
            raise InputError(
                f"the batch's tensor {number} is float64, NumPy's default: expected float32, by "
                ".astype(np.float32)"
            )
    first, labels = batch[0], batch[-1]
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
