"""Networks with their loss: what a step differentiates."""

import itertools
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.ops import functional as F
from mindspore.ops.primitive import constexpr

from labkit.base.arguments import choice, integer, number, wrong
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
from labkit.steps.options import CONVENTIONS

# Called with logits and labels alone, they equal nn.CrossEntropyLoss() and nn.NLLLoss().
FUNCTIONS = (ops.cross_entropy, ops.nll_loss)
# Means over the labels that are not ignored, of logits with the classes in axis 1.
OVER_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, mint.nn.CrossEntropyLoss, mint.nn.NLLLoss)
OVER_ELEMENTS = (
    *(nn.MSELoss, nn.L1Loss, nn.MAELoss, nn.SmoothL1Loss, nn.HuberLoss),
    *(nn.BCELoss, nn.BCEWithLogitsLoss, nn.SoftMarginLoss, mint.nn.MSELoss),
)
# Number of classes of the outputs, by ``key`` of the loss net; a compilation tells it.
_CLASSES: dict[int, int] = {}
_KEYS = itertools.count()


class _OfClasses(nn.Cell):
    """A network and a loss that knows its number of classes once it is compiled."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        if not isinstance(network, nn.Cell) or isinstance(network, nn.LossBase):
            raise wrong("network", network, "a Cell that is not a loss")
        self.network, self.key = network, next(_KEYS)

    @property
    def classes(self) -> int | None:
        """How many classes the labels of a compiled graph have; None if they are no classes."""
        return _CLASSES.get(self.key)


class LossNet(_OfClasses):
    """A network and a loss function as one cell: ``loss_net(*inputs, labels)`` -> (loss, weight).

    The loss is a mean, and the weight says over how much, both float32 (), so that micro-batches
    and ranks of any size average to the mean over all of them together:

        labels    nn.CrossEntropyLoss, nn.NLLLoss, those of mint.nn, ops.cross_entropy,
                  ops.nll_loss, CrossEntropySmooth: labels that are not ignored, or the sum of
                  their classes' weights; where there are none, loss and weight are 0
        rows      nn.SoftmaxCrossEntropyWithLogits, and MindSpore's above with targets (B, C)
        elements  nn.MSELoss, L1, MAE, SmoothL1, Huber, BCE, BCEWithLogits, SoftMargin

    Args:
        network: Cell, inputs -> outputs.
        loss_fn: Cell or function, (outputs, labels) -> scalar; it receives float32 outputs,
            whatever type the network computes in.
        per: ``rows`` says of a loss of your own that it is a mean over the rows of the batch.
            Without it such a loss is returned alone, which only ``PlainStep`` on one process takes.

    Raises:
        InputError: if an argument is anything else, or the loss has reduction "none"; at
            compilation, if labels of a loss over elements would broadcast.

    A label of no class makes the loss NaN. A loss that is the mean of micro-batches' means, or has
    no rows, is a Cell of your own that returns ``(loss, 1)``.
    """

    def __init__(self, network: nn.Cell, loss_fn: Callable, *, per: str | None = None):
        super().__init__(network)
        if not callable(loss_fn):
            raise wrong("loss_fn", loss_fn, "a function or Cell of (outputs, labels)")
        if per is not None:
            choice("per", per, ("rows",))
        # Some of MindSpore's losses keep their reduction as a word, some as two flags.
        average, reduce = getattr(loss_fn, "average", True), getattr(loss_fn, "reduce", True)
        reduction = "none" if not reduce else "mean" if average else "sum"
        reduction = getattr(loss_fn, "reduction", reduction)
        self.loss_fn = loss_fn
        self.loss_name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
        if reduction == "none":
            raise wrong(f"reduction of {self.loss_name}", reduction, "'mean' or 'sum'")
        self.is_sum = reduction == "sum"
        over, self.class_axis = _traits(loss_fn)
        self.over = per or (over if reduction == "mean" else None)
        self.same_shape = over == "elements"
        self.checks_labels = is_exactly(loss_fn, CrossEntropySmooth)
        ignore_index = IGNORE_INDEX if loss_fn in FUNCTIONS else None
        self.ignore_index = getattr(loss_fn, "ignore_index", ignore_index)
        # MindSpore's mean is 0 / 0 where no label counts: the loss of this label replaces it.
        self.may_be_undefined = self.class_axis == 1 and reduction == "mean"
        self.stand_in = int(self.ignore_index == 0)
        self.class_weights = getattr(loss_fn, "weight", None) if self.may_be_undefined else None
        if self.class_weights is not None:
            values = self.class_weights.asnumpy().astype(np.float32)
            self.class_weights = Tensor(values)
            counted = [-1.0 if i == self.ignore_index else w for i, w in enumerate(values)]
            self.stand_in = int(np.argmax(counted))

    def construct(self, *batch: Tensor) -> tuple[Tensor, Tensor] | Tensor:
        return self.of_outputs(self.network(*batch[:-1]), batch[-1])

    def of_outputs(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | Tensor:
        """Return (loss, weight) of outputs and labels; the loss alone if no mean is known."""
        if self.same_shape and F.isconstant(outputs.shape) and F.isconstant(labels.shape):
            _check_shape("labels", outputs.shape, labels.shape)
        weight, defined, factor = self._weight(labels), None, None
        if self.class_axis is not None and labels.dtype in INTEGERS:
            if self.may_be_undefined:
                defined = self.counted(labels) > 0
                labels = ops.where(defined, labels, ops.full_like(labels, self.stand_in))
            labels = as_int32(labels)
            if outputs.ndim > 1:
                classes = outputs.shape[self.class_axis]
                if F.isconstant(classes):
                    _note_classes(self.key, classes)
                if not self.checks_labels:
                    # A label of no class makes the loss NaN: no exception can leave a graph.
                    labels, factor = only_known(labels, classes, self.ignore_index)
        loss = self.loss_fn(ops.cast(outputs, ms.float32), labels)
        if factor is not None:
            loss = loss * factor
        if weight is None:
            return loss
        loss = ops.cast(loss, ms.float32)
        if defined is not None:
            defined = ops.cast(defined, ms.float32)
            loss, weight = loss * defined, weight * defined
        return loss, weight

    def _weight(self, labels: Tensor) -> Tensor | None:
        """Return what the loss is a mean over, float32 ()."""
        if self.over is None:
            return None
        if self.over == "labels" and labels.dtype in INTEGERS:
            return self.counted(labels)
        if self.over == "elements":
            return ops.cast(ops.size(labels), ms.float32)
        if self.over == "labels" and labels.ndim > 1:  # targets (B, V, ...)
            return ops.cast(ops.size(labels), ms.float32) / labels.shape[1]
        return ops.cast(labels.shape[0], ms.float32)

    def counted(self, labels: Tensor) -> Tensor:
        """Return how many labels are not ignored, or the sum of their classes' weights."""
        labels = ops.cast(labels, ms.int64)
        counts = ops.cast(labels != self.ignore_index, ms.float32)
        if self.class_weights is not None:
            index, _ = masks(labels, self.class_weights.shape[0], self.ignore_index)
            counts = counts * ops.gather(self.class_weights, index, 0)
        return ops.reduce_sum(counts)


class TokenLossNet(_OfClasses):
    """Cross entropy over the labels that count: (mean loss, token count), both float32 ().

    Args:
        network: Cell, inputs -> logits (B, T, V), or of any other shape (..., V); there may be
            several inputs, such as tokens and a mask.
        ignore_index: label of positions that are ignored (padding).

    Raises:
        InputError: at compilation, if labels do not fit logits.
        TypeError: at compilation, if the labels are not integers.

    Called as ``loss_net(*inputs, labels)`` with integer labels (B, T), each 0 .. V - 1 or
    ``ignore_index``; any other label makes the loss NaN.
    """

    def __init__(self, network: nn.Cell, ignore_index: int = IGNORE_INDEX):
        super().__init__(network)
        self.ignore_index = check_ignore_index(ignore_index)
        self.over = "tokens"

    def construct(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        logits, labels = ops.cast(self.network(*batch[:-1]), ms.float32), batch[-1]
        classes = logits.shape[-1]
        if F.isconstant(labels.shape) and F.isconstant(logits.shape):
            _check_shape("labels", logits.shape[:-1], labels.shape)
            _note_classes(self.key, classes)
        index, factor = masks(labels, classes, self.ignore_index)
        log_probability = ops.log_softmax(logits, -1)
        index = ops.expand_dims(index, -1)
        loss = -ops.squeeze(ops.gather_elements(log_probability, -1, index), -1)
        total = ops.reduce_sum(count_only(loss, factor))
        counts = ops.reduce_sum(ops.cast(factor != 0, ms.float32))
        return total / ops.maximum(counts, 1.0), counts


def as_loss_net(loss_net: nn.Cell) -> nn.Cell:
    """Return a loss net; MindSpore's ``nn.WithLossCell`` counts as a ``LossNet``."""
    if not isinstance(loss_net, nn.Cell):
        raise wrong("loss_net", type(loss_net).__name__, "an nn.Cell: network and loss")
    if is_exactly(loss_net, nn.WithLossCell):
        return LossNet(loss_net.backbone_network, loss_net._loss_fn)
    return loss_net


@constexpr
def _note_classes(key: int, classes: int) -> bool:
    """Keep the number of classes of a loss net, which only a compilation knows."""
    _CLASSES[key] = classes
    return True


@constexpr
def _check_shape(name: str, expected: tuple, got: tuple) -> bool:
    """Refuse labels that do not have the shape of what they are compared with."""
    if expected != got:
        raise InputError(f"{name} of the loss: expected the shape {expected}, got {got}")
    return True


class CrossEntropySmooth(nn.LossBase):
    r"""Cross entropy against smoothed labels: ``loss(logits, labels)``.

        L = -sum_c t_c log softmax(z)_c,   t = on at the label, off at the C - 1 other classes

        convention="mindspore":  on = 1 - s,          off = s / (C - 1)
        convention="pytorch":    on = 1 - s + s / C,  off = s / C

    ``mindspore`` is that of the source documents (r1.6 sample code), ``pytorch`` that of
    torch.nn.CrossEntropyLoss(label_smoothing=s): s (C - 1) / C in the other convention.

    Args:
        sparse: True: integer labels (B,), each 0 .. C - 1 or ``ignore_index``.
            ``nn.SoftmaxCrossEntropyWithLogits`` takes targets instead.
        reduction: ``mean`` (0 where no label counts) or ``sum`` over the labels that are not
            ignored; or ``none``: all B losses, 0 for ignored labels.
        smooth_factor: s, 0 .. 1.
        num_classes: C, the width of the logits.
        convention: ``mindspore`` or ``pytorch``.
        ignore_index: label of rows that are ignored.

    Raises:
        InputError: if an argument has any other value; at compilation, if shapes do not match.

    Logits (B, C) are converted to float32. Any other label makes the loss and its gradients NaN;
    without smoothing, MindSpore's one_hot would let such a row add nothing to the loss.
    """

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
        choice("reduction", reduction, ("mean", "sum", "none"))
        choice("convention", convention, CONVENTIONS)
        super().__init__(reduction)
        if sparse is not True:
            raise wrong("sparse", sparse, "True: labels, not targets")
        self.num_classes = integer("num_classes", num_classes, 2)
        smooth = number("smooth_factor", smooth_factor, at_least=0, at_most=1)
        self.ignore_index = check_ignore_index(ignore_index)
        others = self.num_classes - 1
        if convention == "pytorch":
            smooth *= others / self.num_classes
        self.on_value = Tensor(1.0 - smooth, ms.float32)
        self.off_value = Tensor(smooth / others, ms.float32)
        self.ce = nn.SoftmaxCrossEntropyWithLogits()

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        if F.isconstant(labels.shape) and F.isconstant(logits.shape):
            rows = logits.shape[:1]
            _check_shape("logits", rows + (self.num_classes,), logits.shape)
            _check_shape("labels", rows, labels.shape)
        logits = ops.cast(logits, ms.float32)
        index, factor = masks(labels, self.num_classes, self.ignore_index)
        targets = ops.one_hot(index, self.num_classes, self.on_value, self.off_value)
        losses = count_only(self.ce(logits, targets), factor)
        if self.average and self.reduce:
            counts = ops.reduce_sum(ops.cast(factor != 0, ms.float32))
            return ops.reduce_sum(losses) / ops.maximum(counts, 1.0)
        return self.get_loss(losses)


def _traits(loss_fn: Any) -> tuple[str | None, int | None]:
    """Return (what the mean of a known loss is over, the axis of classes in its logits)."""
    if loss_fn in FUNCTIONS or is_exactly(loss_fn, *OVER_CLASSES):
        return "labels", 1
    if is_exactly(loss_fn, CrossEntropySmooth):
        return "labels", -1
    if is_exactly(loss_fn, nn.SoftmaxCrossEntropyWithLogits):
        return "rows", -1 if loss_fn.sparse else None
    return "elements" if is_exactly(loss_fn, *OVER_ELEMENTS) else None, None


def is_exactly(cell: Any, *classes: Any) -> bool:
    """Return whether a cell is of one of the classes and does not override its ``construct``."""
    return any(isinstance(cell, c) and type(cell).construct is c.construct for c in classes)
