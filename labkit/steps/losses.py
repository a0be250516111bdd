"""Networks with their loss: what a step differentiates."""

from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from mindspore.ops import functional as F

from labkit.base.arguments import choice, flag, integer, names_checked, number, wrong
from labkit.errors import InputError
from labkit.steps.labels import (
    IGNORE_INDEX,
    INTEGERS,
    as_int32,
    check_ignore_index,
    count_only,
    masks,
    only_known,
)
from labkit.steps.options import CONVENTIONS as CONVENTIONS

_REDUCTIONS = ("mean", "sum", "none")
# Called with logits and labels alone, they equal nn.CrossEntropyLoss() and nn.NLLLoss().
FUNCTIONS = (ops.cross_entropy, ops.nll_loss)
# Means over the labels that are not ignored, of logits with the classes in axis 1.
OVER_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, mint.nn.CrossEntropyLoss, mint.nn.NLLLoss)


class LossNet(nn.Cell):
    """A network and a loss function as one cell: ``loss_net(*inputs, labels)`` is the mean loss.

    Args:
        network: Cell, inputs -> outputs.
        loss_fn: Cell or function, (outputs, labels) -> scalar; it receives float32 outputs,
            whatever type the network computes in.

    Raises:
        InputError: if ``network`` is not a Cell or is a loss, or ``loss_fn`` is not callable.
    """

    @names_checked
    def __init__(self, network: nn.Cell, loss_fn: Callable):
        super().__init__(auto_prefix=False)
        _check_network(network)
        if not callable(loss_fn):
            raise wrong("loss_fn", loss_fn, "a function or Cell of (outputs, labels)")
        self.network, self.loss_fn = network, loss_fn
        self.class_axis = class_axis(loss_fn)
        self.ignored_label = getattr(loss_fn, "ignore_index", None)

    def construct(self, *batch: Tensor) -> Tensor:
        outputs, labels = self.network(*batch[:-1]), batch[-1]
        factor = None
        if self.class_axis is not None:
            labels = as_int32(labels)
            if outputs.ndim > 1 and labels.dtype in INTEGERS:
                # A label of no class makes the loss NaN: no exception can leave a graph.
                classes = outputs.shape[self.class_axis]
                labels, factor = only_known(labels, classes, self.ignored_label)
        loss = self.loss_fn(ops.cast(outputs, ms.float32), labels)
        return loss if factor is None else loss * factor


class TokenLossNet(nn.Cell):
    """Cross entropy over the labels that count: (loss sum, token count), both shape ().

    Args:
        network: Cell, inputs -> logits (B, T, V), or of any other shape (..., V); there may be
            several inputs, such as tokens and a mask.
        ignore_index: label of positions that are ignored (padding).

    Raises:
        InputError: if ``network`` is not a Cell or is a loss, or ``ignore_index`` is not an integer
            that fits in int32.
        ValueError: at compilation, if the labels do not fit the logits.
        TypeError: at compilation, if the labels are not integers.

    Called as ``loss_net(*inputs, labels)`` with integer labels (B, T), each 0 .. V - 1 or
    ``ignore_index``. A step refuses any other label before it runs (``InputError``); if this Cell
    is called by itself, such a label makes the loss NaN.

    A step weights its micro-batches by their token counts: the same number of sequences can hold
    different numbers of tokens, so the mean of their means is not the mean over tokens.
    """

    @names_checked
    def __init__(self, network: nn.Cell, ignore_index: int = IGNORE_INDEX):
        super().__init__(auto_prefix=False)
        _check_network(network)
        self.network = network
        self.ignore_index = check_ignore_index(ignore_index)

    def construct(self, *batch: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        logits, labels = ops.cast(self.network(*batch[:-1]), ms.float32), batch[-1]
        if _differ(labels.shape, logits.shape[:-1]):
            raise ValueError(
                f"the labels have shape {labels.shape}, the logits {logits.shape}; expected one "
                "label for each vector of logits"
            )
        classes = logits.shape[-1]
        index, factor = masks(labels, classes, self.ignore_index)
        log_probability = ops.log_softmax(logits, -1)
        index = ops.expand_dims(index, -1)
        loss = -ops.squeeze(ops.gather_elements(log_probability, -1, index), -1)
        total = ops.reduce_sum(count_only(loss, factor))
        counts = ops.reduce_sum(ops.cast(factor != 0, ms.float32))
        return total, counts


class CrossEntropySmooth(nn.LossBase):
    r"""Cross entropy against smoothed labels: ``loss(logits, labels)``.

        L = -sum_c t_c log softmax(z)_c,   t = on at the label, off at the C - 1 other classes

        convention="mindspore":  on = 1 - s,          off = s / (C - 1)
        convention="pytorch":    on = 1 - s + s / C,  off = s / C

    ``mindspore`` is that of the source documents (r1.6 sample code), ``pytorch`` that of
    torch.nn.CrossEntropyLoss(label_smoothing=s), which smooths less: its s corresponds to
    s (C - 1) / C in the other convention, to 0.09 for s = 0.1 and 10 classes.

    Args:
        sparse: True: integer labels (B,), each 0 .. C - 1 or ``ignore_index``; False: targets
            (B, C) whose rows sum to 1, used as they are (so smooth_factor must be 0).
        reduction: ``mean`` (0 if there is nothing to average) or ``sum`` over the losses of the
            labels that are not ignored; or ``none``: all B losses, 0 for ignored labels.
        smooth_factor: s, 0 .. 1.
        num_classes: C, the width of the logits.
        convention: ``mindspore`` or ``pytorch``.
        ignore_index: label of rows that are ignored.

    Raises:
        InputError: if an argument has any other value.
        ValueError: at compilation, if the shapes of logits and labels do not match.

    Logits (B, C) are converted to float32. A step refuses any other label before it runs
    (``InputError``); if the loss is called by itself, such a label makes it and its gradients NaN:
    no exception can leave a compiled graph, and MindSpore's one_hot would give ``off`` for every
    class, so that without smoothing such a row would add nothing to the loss.
    """

    @names_checked
    def __init__(
        self,
        sparse: bool = True,
        reduction: str = "mean",
        smooth_factor: float = 0.0,
        num_classes: int = 1000,
        *,
        convention: str = "mindspore",
        ignore_index: int = IGNORE_INDEX,
    ):
        choice("reduction", reduction, _REDUCTIONS)
        choice("convention", convention, CONVENTIONS)
        super().__init__(reduction)
        self.sparse = flag("sparse", sparse)
        self.num_classes = integer("num_classes", num_classes, 2)
        smooth = number("smooth_factor", smooth_factor, at_least=0, at_most=1)
        if smooth and not sparse:
            raise InputError(
                f"smooth_factor is {smooth_factor} and sparse False: targets are used as they are; "
                "expected smooth_factor=0, or labels with sparse=True"
            )
        self.ignore_index = check_ignore_index(ignore_index)
        others = self.num_classes - 1
        if convention == "pytorch":
            smooth *= others / self.num_classes
        self.on_value = Tensor(1.0 - smooth, ms.float32)
        self.off_value = Tensor(smooth / others, ms.float32)
        self.ce = nn.SoftmaxCrossEntropyWithLogits()

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        if logits.ndim != 2 or logits.shape[1] != self.num_classes:
            raise ValueError(
                f"the logits have shape {logits.shape}; expected (B, {self.num_classes}), "
                "num_classes of the loss"
            )
        logits = ops.cast(logits, ms.float32)
        if not self.sparse:
            if labels.shape != logits.shape:
                raise ValueError(
                    f"the targets have shape {labels.shape}, the logits {logits.shape}; expected "
                    "the same with sparse=False"
                )
            return self.get_loss(self.ce(logits, ops.cast(labels, ms.float32)))
        if labels.ndim != 1 or labels.shape[0] != logits.shape[0]:
            raise ValueError(
                f"the labels have shape {labels.shape}, the logits {logits.shape}; expected one "
                "label for each row of logits"
            )
        index, factor = masks(labels, self.num_classes, self.ignore_index)
        targets = ops.one_hot(index, self.num_classes, self.on_value, self.off_value)
        losses = count_only(self.ce(logits, targets), factor)
        if self.average and self.reduce:
            counts = ops.reduce_sum(ops.cast(factor != 0, ms.float32))
            return ops.reduce_sum(losses) / ops.maximum(counts, 1.0)
        return self.get_loss(losses)


def class_axis(loss_fn: Any) -> int | None:
    """Return the axis of classes in the logits, or None if the labels are not class numbers."""
    if loss_fn in FUNCTIONS or is_exactly(loss_fn, *OVER_CLASSES):
        return 1
    if is_exactly(loss_fn, nn.SoftmaxCrossEntropyWithLogits, CrossEntropySmooth):
        return -1 if loss_fn.sparse else None
    return None


def is_exactly(cell: Any, *classes: Any) -> bool:
    """Return whether a cell is of one of the classes and does not override its ``construct``."""
    return any(isinstance(cell, c) and type(cell).construct is c.construct for c in classes)


def _check_network(network: object) -> None:
    if not isinstance(network, nn.Cell) or isinstance(network, nn.LossBase):
        raise wrong("network", network, "a Cell that is not a loss")


def _differ(shape: tuple, expected: tuple) -> bool:
    """Return whether two shapes are known, in a compiled graph, and differ."""
    if F.isconstant(shape) and F.isconstant(expected):
        return shape != expected
    return False
