"""Networks with their loss: what a step differentiates; and class labels.

No exception can leave a compiled graph: a step's first batch and those of ``evaluate`` are checked
on the host; in any other batch a label that is neither known nor ignored makes the loss NaN.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.common import dtype as mstype
from mindspore.ops import functional as F
from mindspore.ops.primitive import constexpr

from labkit.base.arguments import choice, integer, number, wrong
from labkit.errors import InputError
from labkit.runtime import pynative
from labkit.steps.batches import INTEGERS, labels_of, refuse, tensors_of
from labkit.steps.options import CONVENTIONS, Convention
from labkit.steps.state import running_statistics, set_state

# As in PyTorch, Hugging Face and MindSpore's nn.CrossEntropyLoss.
IGNORE_INDEX = -100
# Called with logits and labels alone, they equal nn.CrossEntropyLoss() and nn.NLLLoss().
FUNCTIONS = (ops.cross_entropy, ops.nll_loss)
_F = mint.nn.functional
# Means over the labels that are not ignored, of logits with the classes in axis 1.
OVER_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, mint.nn.CrossEntropyLoss, mint.nn.NLLLoss)
# Means over the elements of outputs and labels of the same shape.
OVER_ELEMENTS = (
    *(nn.MSELoss, nn.L1Loss, nn.MAELoss, nn.SmoothL1Loss, nn.HuberLoss),
    *(nn.BCELoss, nn.BCEWithLogitsLoss, nn.SoftMarginLoss, nn.HingeEmbeddingLoss),
    *(nn.PoissonNLLLoss, nn.KLDivLoss, nn.MultiLabelSoftMarginLoss),
    *(mint.nn.MSELoss, mint.nn.L1Loss, mint.nn.SmoothL1Loss, mint.nn.KLDivLoss),
)
# The square root of a mean is none, and the others do not say whether they are sums.
OF_SAME_SHAPES = (nn.RMSELoss, mint.nn.BCELoss, mint.nn.BCEWithLogitsLoss)
ELEMENT_FUNCTIONS = (
    *(ops.mse_loss, ops.l1_loss, ops.huber_loss, ops.soft_margin_loss, ops.hinge_embedding_loss),
    *(ops.binary_cross_entropy, ops.binary_cross_entropy_with_logits, ops.kl_div),
    *(ops.multilabel_soft_margin_loss, _F.mse_loss, _F.l1_loss, _F.smooth_l1_loss),
    *(_F.binary_cross_entropy, _F.binary_cross_entropy_with_logits),
)
STATISTICS = "BatchNorm's running statistics"
_NO_LOGITS = (
    "the network's first output is a scalar or nested, or it returns a dictionary without "
    "'logits'; expected logits first, or a loss_net of your own, a Cell that returns (loss, weight)"
)
_SEVERAL = (
    "labels of {}: expected one Tensor, got several; give LossNet a function of your own of "
    "(outputs, labels), or write a loss_net, a Cell that returns (loss, weight)"
)
_INT32 = -(2**31), 2**31 - 1
# Number of classes of the outputs, by ``key`` of the loss net; a compilation tells it.
_CLASSES: dict[int, int] = {}
_KEYS = itertools.count()


class _OfClasses(nn.Cell):
    """A network and its loss, called with the network's inputs and, last, the labels."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        if not isinstance(network, nn.Cell) or isinstance(network, nn.LossBase):
            raise wrong("network", network, "a Cell that is not a loss")
        self.network, self.key = network, next(_KEYS)

    @property
    def classes(self) -> int | None:
        """How many classes the labels of a compiled graph have; None if they are no classes."""
        return _CLASSES.get(self.key)

    def construct(self, *batch: Tensor) -> Any:
        return self.of_outputs(self.network(*batch[:-1]), batch[-1])


class LossNet(_OfClasses):
    """A network and a loss function as one cell: ``loss_net(*inputs, labels)`` -> (loss, weight).

    The loss is a mean, and the weight says over how much, both float32 (), so that micro-batches
    and ranks of any size average to the mean over all of them together:

        labels    nn.CrossEntropyLoss, nn.NLLLoss, those of mint.nn, ops.cross_entropy,
                  ops.nll_loss, CrossEntropySmooth: labels that are not ignored, or the sum of
                  their classes' weights; where there are none, loss and weight are 0
        rows      nn.SoftmaxCrossEntropyWithLogits, and MindSpore's above with targets (B, C)
        elements  nn.MSELoss, L1, MAE, SmoothL1, Huber, BCE, BCEWithLogits, SoftMargin, KLDiv and
                  others, those of mint.nn, ops.mse_loss and the like: labels shaped as outputs

    Args:
        network: Its first output, or ``logits`` of a dictionary, goes to the losses listed above;
            all of them, as they are nested, go to a function of your own.
        loss_fn: Cell or function, (outputs, labels) -> scalar; it receives float32 outputs. Outputs
            and labels that would broadcast to more than either, as (B, 1) and (B,), are refused
            whatever it does with them, unless their shapes are unknown (``set_inputs``). In a
            function of your own (B, B) and (B,) pass, and a loss net of your own is not asked.
        per: ``rows`` says of a loss of your own that it is a mean over the rows of the batch.
            Without it such a loss is returned alone, which only ``PlainStep`` on one process takes.

    Raises:
        InputError: if an argument is anything else, or the loss has reduction "none"; at
            compilation, if shapes do not fit, or a loss listed above gets nested labels.
    """

    def __init__(self, network: nn.Cell, loss_fn: Callable, *, per: str | None = None):
        super().__init__(network)
        if not callable(loss_fn):
            raise wrong("loss_fn", loss_fn, "a function or Cell of (outputs, labels)")
        if per is not None:
            choice("per", per, ("rows",))
        # Some of MindSpore's losses keep their reduction as a word, some as two flags.
        reduction = "mean" if getattr(loss_fn, "average", True) else "sum"
        if not getattr(loss_fn, "reduce", True):
            reduction = "none"
        reduction = getattr(loss_fn, "reduction", reduction)
        self.loss_fn = loss_fn
        self.loss_name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
        if reduction == "none":
            raise wrong(f"reduction of {self.loss_name}", reduction, "'mean' or 'sum'")
        self.is_sum = reduction == "sum"
        over, self.class_axis = _traits(loss_fn)
        self.over = per or {"mean": over, "batchmean": over and "rows"}.get(reduction)
        self.same_shape = over == "elements" or is_exactly(loss_fn, *OF_SAME_SHAPES)
        self.is_known = over is not None or self.same_shape
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

    def of_outputs(self, outputs: Any, labels: Any) -> tuple[Tensor, Tensor] | Tensor:
        """Return (loss, weight) of outputs and labels; the loss alone if no mean is known."""
        if self.is_known:
            outputs = first_output(outputs)
        if isinstance(labels, (tuple, list, dict)) or isinstance(outputs, (tuple, list, dict)):
            return self._of_nested(outputs, labels)
        integers = labels.dtype in INTEGERS
        if F.isconstant(outputs.shape) and F.isconstant(labels.shape):
            _check_shapes(outputs.shape, labels.shape, integers, self.class_axis, self.same_shape)
        elif self.same_shape:
            _check_shape("labels", ("?",) * outputs.ndim, ("?",) * labels.ndim)
        weight, defined, factor = self._weight(labels), None, None
        if self.class_axis is not None and integers:
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

    def _of_nested(self, outputs: Any, labels: Any) -> tuple[Tensor, Tensor] | Tensor:
        """Return what a function of the user's own makes of several outputs or labels."""
        if self.is_known:
            refuse(_SEVERAL, self.loss_name)
        loss = self.loss_fn(F.mixed_precision_cast(mstype.float32, outputs), labels)
        if self.over is None:
            return loss
        return ops.cast(loss, ms.float32), ops.cast(labels_of(labels).shape[0], ms.float32)

    def _weight(self, labels: Tensor) -> Tensor | None:
        """Return what the loss is a mean over, float32 ()."""
        if self.over is None:
            return None
        if self.over == "elements":
            return ops.cast(ops.size(labels), ms.float32)
        if self.over == "labels" and labels.dtype in INTEGERS:
            return self.counted(labels)
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

    Called as ``loss_net(*inputs, labels)``, with logits (B, T, V), or (..., V), of the network (its
    first output, or ``logits`` of a dictionary) and labels (B, T), each 0 .. V - 1 or
    ``ignore_index`` (padding); any other makes the loss NaN. For lengths see ``Step``.

    Raises ``InputError`` or ``TypeError`` at compilation if labels do not fit or are no integers.
    """

    def __init__(self, network: nn.Cell, ignore_index: int = IGNORE_INDEX):
        super().__init__(network)
        self.ignore_index = integer("ignore_index", ignore_index, *_INT32)
        self.over = "tokens"

    def of_outputs(self, outputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return (loss, count) of the network's outputs, the logits first, and labels."""
        if isinstance(labels, (tuple, list, dict)):
            refuse(_SEVERAL, "TokenLossNet")
        logits = ops.cast(first_output(outputs), ms.float32)
        classes = logits.shape[-1]
        if F.isconstant(classes):
            _note_classes(self.key, classes)
        if F.isconstant(labels.shape) and F.isconstant(logits.shape):
            _check_shape("labels", logits.shape[:-1], labels.shape)
        index, factor = masks(labels, classes, self.ignore_index)
        log_probability = ops.log_softmax(logits, -1)
        index = ops.expand_dims(index, -1)
        loss = -ops.squeeze(ops.gather_elements(log_probability, -1, index), -1)
        total = ops.reduce_sum(ops.masked_fill(loss * factor, factor == 0, 0.0))
        counts = ops.reduce_sum(ops.cast(factor != 0, ms.float32))
        return total / ops.maximum(counts, 1.0), counts


def as_loss_net(loss_net: nn.Cell) -> nn.Cell:
    """Return a loss net; MindSpore's ``nn.WithLossCell`` counts as a ``LossNet``."""
    if not isinstance(loss_net, nn.Cell):
        raise wrong("loss_net", type(loss_net).__name__, "an nn.Cell: network and loss")
    if is_exactly(loss_net, nn.WithLossCell):
        return LossNet(loss_net.backbone_network, loss_net._loss_fn)
    return loss_net


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


def check_known(loss_net: Any, labels: Any) -> None:
    """Refuse labels of a compiled batch that its loss net neither knows nor ignores."""
    classes = getattr(loss_net, "classes", None)
    if hasattr(loss_net, "ignore_index") and classes and labels.dtype in INTEGERS:
        check_labels(labels.asnumpy(), classes, loss_net.ignore_index)


def masks(labels: Tensor, classes: int, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Return (labels, 0 for unknown ones; 1 if known, 0 if ignored, else NaN), inside a graph."""
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
    """Return integers, clipped, as the int32 that MindSpore's losses expect; others unchanged."""
    if labels.dtype == ms.int32 or labels.dtype not in INTEGERS:
        return labels
    labels = ops.cast(labels, ms.int64)
    return ops.cast(ops.minimum(ops.maximum(labels, -(2**31)), 2**31 - 1), ms.int32)


@constexpr
def _note_classes(key: int, classes: int) -> bool:
    _CLASSES[key] = classes
    return True


@constexpr
def _check_shape(name: str, expected: object, got: object, more: str = "") -> bool:
    if expected != got:
        raise InputError(f"{name} of the loss: expected the shape {expected}, got {got}{more}")
    return True


@constexpr
def _check_shapes(
    outputs: tuple, labels: tuple, integers: bool, class_axis: int | None, same: bool
) -> bool:
    """Refuse labels that do not fit the outputs, and those that would broadcast to more."""
    more = "" if integers or class_axis is None else "; classes are integers, got floats"
    expected = outputs
    if class_axis is not None and integers:
        axis = class_axis % max(len(outputs), 1)
        expected = outputs[:axis] + outputs[axis + 1 :]
        if axis == 1 and labels == outputs[:-1]:
            more = ", with the classes in axis 1; TokenLossNet(network) takes them in the last one"
    elif class_axis is None and not same:
        sizes = math.prod(outputs), math.prod(labels)
        try:
            larger = math.prod(np.broadcast_shapes(outputs, labels)) > max(sizes)
        except ValueError:  # they do not broadcast: the loss knows what to do
            return True
        # Integers of another size may be classes, of sequences of one step.
        if not larger or (integers and sizes[0] != sizes[1]):
            return True
        more = (
            ": elementwise they would broadcast to more than either; give labels of that shape, or "
            "squeeze the outputs in the network"
        )
    return _check_shape("labels", expected, labels, more)


def first_output(outputs: Any) -> Tensor:
    """Return the logits among a network's outputs: the first, or ``logits`` of a dictionary."""
    if isinstance(outputs, dict) and "logits" in outputs:
        outputs = outputs["logits"]
    elif isinstance(outputs, (tuple, list)):
        outputs = outputs[0]
    elif not isinstance(outputs, dict):
        return outputs
    if isinstance(outputs, (tuple, list, dict)) or outputs.ndim == 0:
        refuse(_NO_LOGITS)
    return outputs


class CrossEntropySmooth(nn.LossBase):
    r"""Cross entropy against smoothed labels: ``loss(logits, labels)``.

        L = -sum_c t_c log softmax(z)_c,   t = on at the label, off at the C - 1 other classes

        convention="mindspore":  on = 1 - s,          off = s / (C - 1)
        convention="pytorch":    on = 1 - s + s / C,  off = s / C

    ``mindspore`` is that of the source documents (r1.6 sample code), ``pytorch`` that of
    torch.nn.CrossEntropyLoss(label_smoothing=s): s (C - 1) / C in the other convention. Logits are
    (B, C), labels integers (B,), each 0 .. C - 1 or ``ignore_index``; any other makes the loss and
    its gradients NaN.

    Args:
        sparse: True; ``nn.SoftmaxCrossEntropyWithLogits`` takes targets.
        reduction: ``mean`` (0 where no label counts) or ``sum`` over the labels that are not
            ignored; or ``none``: all B losses, 0 for ignored labels.
        smooth_factor: s, 0 .. 1.

    Raises ``InputError`` if an argument has any other value; at compilation, if shapes differ.
    """

    def __init__(
        self,
        sparse: bool = True,
        reduction: Literal["mean", "sum", "none"] = "mean",
        smooth_factor: float = 0.0,
        num_classes: int = 1000,
        *,
        convention: Convention = "mindspore",
        ignore_index: int = IGNORE_INDEX,
    ):
        choice("reduction", reduction, ("mean", "sum", "none"))
        choice("convention", convention, CONVENTIONS)
        super().__init__(reduction)
        if sparse is not True:
            raise wrong("sparse", sparse, "True: labels, not targets")
        self.num_classes = integer("num_classes", num_classes, 2)
        smooth = number("smooth_factor", smooth_factor, at_least=0, at_most=1)
        self.ignore_index = integer("ignore_index", ignore_index, *_INT32)
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
        losses = ops.masked_fill(self.ce(logits, targets) * factor, factor == 0, 0.0)
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
    elements = loss_fn in ELEMENT_FUNCTIONS or is_exactly(loss_fn, *OVER_ELEMENTS)
    return "elements" if elements else None, None


def is_exactly(cell: Any, *classes: Any) -> bool:
    """Return whether a cell is of one of the classes and does not override its ``construct``."""
    return any(isinstance(cell, c) and type(cell).construct is c.construct for c in classes)


def first_nonfinite(loss_net: nn.Cell, batch: tuple) -> str:
    """Return a sentence that names the first of batch, weights and layers that is not finite."""
    for place, part in enumerate(batch):
        if not _finite(part):
            return f"the batch's tensor {place} is not finite"
    for path, cell in loss_net.cells_and_names():
        for parameter in cell.get_parameters(expand=False):
            if parameter.requires_grad and not _finite(parameter):
                return f"weight {parameter.name!r} of layer {_name(path)!r} is not finite"
    nonfinite: list[str] = []
    handles = [
        cell.register_forward_hook(_noting(nonfinite, _name(path)))
        for path, cell in loss_net.cells_and_names()
        if path and not cell.name_cells() and path.split(".")[0] != "loss_fn"
    ]
    kept = [(p, p.asnumpy().copy()) for p in running_statistics(loss_net)]
    try:
        with pynative():
            loss = loss_net(*batch)
        spoiled = [p.name for p in running_statistics(loss_net) if not _finite(p)]
    finally:
        for handle in handles:
            handle.remove()
        for statistic, value in kept:
            set_state(statistic, value)
    if nonfinite:
        return f"layer {nonfinite[0]!r} is the first whose output is not finite"
    if not _finite(loss):
        return "all layers' outputs are finite, the loss function's is not"
    if spoiled:
        return f"{STATISTICS} {spoiled[0]!r} would not be finite, as after a batch of one row"
    return "loss and layers' outputs are finite when computed once more"


def _noting(names: list[str], name: str) -> Callable:
    def note(cell: nn.Cell, inputs: tuple, output: object) -> None:
        if not _finite(output):
            names.append(name)

    return note


def _finite(value: object) -> bool:
    return all(np.isfinite(tensor.asnumpy()).all() for tensor in tensors_of(value))


def _name(path: str) -> str:
    return path.removeprefix("network.").removesuffix(".layer")
