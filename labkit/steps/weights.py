"""What a micro-batch counts for: the number that its loss is a mean over.

Micro-batches with mean losses L_i add up to the mean of all of them together where w_i is what
L_i was divided by. It is known of a ``LossNet`` (or MindSpore's ``WithLossCell``) over

    labels    nn.CrossEntropyLoss, nn.NLLLoss, those of mint.nn, CrossEntropySmooth: labels that
              are not ignored, or the sum of their classes' weights. Where all are ignored,
              MindSpore's are 0 / 0, NaN by themselves; in a step such a micro-batch has loss 0 and
              counts for nothing
    rows      nn.SoftmaxCrossEntropyWithLogits, targets (B, C) of these
    elements  nn.MSELoss and others that are a mean over elements: elements of the labels
    pair      TokenLossNet: the loss net says it, as (loss sum, token count)

Any other loss is taken for a mean over rows where it has labels (B,) and no sign of ignoring some,
and refused else. A sign is what its code shows: an ``ignore_index``, or a call of ``cross_entropy``
or ``nll_loss`` with more than outputs and labels. The limit of that: a mask or weights of its own
making, in a product, or in a function that its code calls, do not show. Such a loss is not a mean
over rows and needs ``normalise``, or a loss of those above.
"""

import dis
import functools
import inspect
from dataclasses import dataclass
from types import CodeType

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn
from mindspore.common import dtype as mstype

from labkit.errors import InputError
from labkit.steps.labels import INTEGERS, check_integers, check_labels, classes_of
from labkit.steps.losses import (
    FUNCTIONS,
    OVER_CLASSES,
    CrossEntropySmooth,
    LossNet,
    TokenLossNet,
    class_axis,
    is_exactly,
)
from labkit.steps.modes import modes, set_modes
from labkit.steps.rows import batch_rows

_ELEMENTS = (
    *(nn.MSELoss, nn.L1Loss, nn.MAELoss, nn.SmoothL1Loss, nn.HuberLoss),
    *(nn.BCELoss, nn.BCEWithLogitsLoss, nn.SoftMarginLoss, mint.nn.MSELoss),
)
_NO_MEAN = (nn.RMSELoss, nn.DiceLoss, nn.MultiClassDiceLoss)
FLOATS = (ms.float16, ms.bfloat16, ms.float32, ms.float64)
_CROSS_ENTROPIES = ("cross_entropy", "nll_loss")
# Arguments with which these are another mean than that over rows, or none.
_OTHER_MEANS = ("ignore_index", "weight", "reduction")
_WORDS = "expected normalise='samples', 'tokens' or 'steps'"


@dataclass(frozen=True)
class Mean:
    """What a loss is a mean over.

    over          ``labels``, ``rows``, ``elements``, ``pair``, or ``unknown``
    ignore_index  of a loss over labels, else None; class_weights  likewise, an array (V,) or None
    classes       whether the labels are class numbers; dense  whether they may be targets as well
    ignores       of an unknown one, the labels that a known loss in it ignores
    undefined     whether the mean is 0 / 0 where no label counts
    why_not       for an unknown one, why it cannot be taken for a mean over rows, or ""
    """

    over: str
    ignore_index: int | None = None
    class_weights: np.ndarray | None = None
    classes: bool = False
    dense: bool = False
    why_not: str = ""
    undefined: bool = False
    ignores: tuple[int, ...] = ()


def mean_of(loss_net) -> Mean:
    """Return what is known of the loss of ``loss_net``."""
    if is_exactly(loss_net, TokenLossNet):
        return Mean("pair", loss_net.ignore_index, classes=True)
    if not is_exactly(loss_net, LossNet, nn.WithLossCell):
        return _unknown(loss_net)
    return mean_of_loss(getattr(loss_net, "loss_fn", None) or loss_net._loss_fn)


def mean_of_loss(loss_fn) -> Mean:
    """Return what is known of a loss, (outputs, labels) -> loss."""
    if loss_fn in FUNCTIONS:
        loss_fn = (nn.CrossEntropyLoss, nn.NLLLoss)[FUNCTIONS.index(loss_fn)]()
    name = type(loss_fn).__name__
    total = f"the {name} is a sum, not a mean" if _reduction(loss_fn) == "sum" else ""
    if is_exactly(loss_fn, *OVER_CLASSES):
        weights = None if loss_fn.weight is None else loss_fn.weight.asnumpy()
        dense = isinstance(loss_fn, nn.CrossEntropyLoss | mint.nn.CrossEntropyLoss)
        return Mean("labels", loss_fn.ignore_index, weights, True, dense, total, not total)
    if is_exactly(loss_fn, CrossEntropySmooth) and loss_fn.sparse:
        return Mean("labels", loss_fn.ignore_index, classes=True, why_not=total)
    if is_exactly(loss_fn, CrossEntropySmooth, nn.SoftmaxCrossEntropyWithLogits):
        return Mean("rows", classes=loss_fn.sparse, why_not=total)
    if is_exactly(loss_fn, *_ELEMENTS):
        return Mean("elements", why_not=total)
    if isinstance(loss_fn, _NO_MEAN):
        total = f"the {name} is not a mean"
    return _unknown(loss_fn, total)


def _unknown(loss, why_not="") -> Mean:
    """Return what is known of a loss of one's own: that of the known means in it, and its code."""
    cells = [cell for _, cell in loss.cells_and_names()] if isinstance(loss, nn.Cell) else []
    known = [cell for cell in cells if is_exactly(cell, *OVER_CLASSES, CrossEntropySmooth)]
    known = [cell for cell in known if mean_of_loss(cell).class_weights is None]
    known = [cell for cell in known if _reduction(cell) == "mean"]
    cells = [cell for cell in cells if not any(cell is other for other in known)]
    ignores = tuple(cell.ignore_index for cell in known)
    return Mean("unknown", why_not=why_not or _ignores(loss, cells), ignores=ignores)


def _reduction(loss_fn) -> str:
    """Return the reduction of MindSpore's losses; some keep it as two flags, some as a word."""
    word = getattr(loss_fn, "reduction", None)
    average, reduce = getattr(loss_fn, "average", True), getattr(loss_fn, "reduce", True)
    return word or ("sum" if reduce and not average else "mean")


def _ignores(loss, cells) -> str:
    """Return a sentence where a loss shows that it ignores or weights labels, or may, else "".

    cells  those of the loss whose code is looked at
    """
    if any(hasattr(cell, "ignore_index") for cell in cells):
        return f"the {type(loss).__name__} has an ignore_index, or holds a loss that has one"
    if isinstance(loss, functools.partial):
        for name in _OTHER_MEANS:
            if name in loss.keywords:
                return f"the loss is given {'an' if name[0] in 'aeiou' else 'a'} {name}"
        loss = loss.func
    functions = list(dict.fromkeys(type(cell).construct for cell in cells))
    if not isinstance(loss, nn.Cell):
        functions = [inspect.unwrap(loss)]
    if any("ignore_index" in _names(function) for function in functions):
        return "the loss mentions an ignore_index"
    for function in functions:
        if name := _weighted_call(function):
            return (
                f"the loss calls {name} with more than the outputs and the labels, or in a way "
                "that does not show it"
            )
    return ""


def _weighted_call(function) -> str:
    """Return the name of ``ops.cross_entropy`` or its like where it is called for another mean.

    Its call is looked for in the bytecode: two arguments, and ``label_smoothing`` by name, are
    those of a mean over rows. What is called by another function is not looked at.
    """
    codes = [getattr(function, "__code__", None)]
    while codes:
        code = codes.pop()
        if code is None:
            continue
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
        instructions = list(dis.get_instructions(code))
        for start, instruction in enumerate(instructions):
            name = _function_name(function, instruction)
            if name and not _plain_call(instructions[start:], code):
                return name
    return ""


def _function_name(function, instruction) -> str:
    """Return the name that an instruction loads one of the functions by, else ""."""
    name = instruction.argval
    if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_DEREF"):
        if name in _CROSS_ENTROPIES:
            return name
        if instruction.opname == "LOAD_GLOBAL":
            value = getattr(function, "__globals__", {}).get(name)
            return name if getattr(value, "__name__", "") in _CROSS_ENTROPIES else ""
    return ""


def _plain_call(instructions, code) -> bool:
    """Return whether what the first instruction loads is called as (outputs, labels)."""
    call = "PRECALL" if "PRECALL" in dis.opmap else "CALL"  # Python 3.11, 3.12
    depth, keywords = 0, ()
    for instruction in instructions[1:]:
        jumps = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
        if jumps or instruction.opname == "CALL_FUNCTION_EX":
            return False
        if instruction.opname == call and instruction.arg == depth:
            smoothed = "label_smoothing" in keywords
            return not set(keywords).intersection(_OTHER_MEANS) and depth - smoothed == 2
        if instruction.opname == "KW_NAMES":
            keywords = code.co_consts[instruction.arg]
        elif instruction.opname == "CALL":
            keywords = ()
        depth += dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if depth < 0:
            return False
    return False


def _names(function) -> set:
    """Return the names that the code of a function uses, keywords of its calls included."""
    code = getattr(function, "__code__", None)
    if code is None:
        return set()
    keywords = {name for part in code.co_consts if isinstance(part, tuple) for name in part}
    return {*code.co_names, *code.co_varnames, *code.co_freevars, *keywords}


def check_flat(batch) -> None:
    """Raise ``InputError`` for a batch whose parts are not tensors: tuples, lists or dicts."""
    for number, part in enumerate(batch):
        if isinstance(part, tuple | list | dict):
            kind = f"a {type(part).__name__} of {len(part)}"
        elif isinstance(part, np.ndarray):
            kind = "a NumPy array"
        else:
            continue
        raise InputError(
            f"part {number} of the batch is {kind}; expected flat tensors, labels last, such as "
            "step(tokens, mask, labels)"
        )
    if not batch:
        raise InputError("the batch is empty; expected flat tensors, labels last")


class BatchCheck:
    """What a step asks of its batches before they reach a compiled graph.

    loss_net    as of ``GradientStage``
    derived     whether the weight is derived from the loss and counts for anything
    batch_axis  as of ``labkit.steps.rows.batch_rows``

    mean               what the loss is a mean over
    elements_per_row   of the first batch, for a mean over elements: the unit of their weights
    differs            whether a weight was not the number of rows so far
    """

    def __init__(self, loss_net, derived, batch_axis=None):
        self.loss_net, self.derived, self.batch_axis = loss_net, derived, batch_axis
        self.mean = mean_of(loss_net)
        self.elements_per_row = None
        self.differs = derived and self.mean.class_weights is not None
        self.flattened = False
        self._flattened = {}  # of the signatures that were looked at
        graphs = ms.get_context("mode") == ms.GRAPH_MODE
        self._compiles = graphs and hasattr(loss_net, "label_key")
        self._runs, self._classes = not self._compiles, None

    def shapes(self, batch) -> None:
        """Raise ``InputError`` for shapes no weight can be derived of; costs nothing if seen."""
        signature = tuple((type(part), getattr(part, "shape", None)) for part in batch)
        if signature in self._flattened:
            self.flattened = self._flattened[signature]
            return
        check_flat(batch)
        shapes = [tuple(part.shape) for part in batch if getattr(part, "shape", ())]
        self.flattened = self.batch_axis is None and is_flattened(shapes)
        if self.batch_axis is not None:
            batch_rows(batch, self.batch_axis)
        if self.derived:
            check_derivable(self.mean, batch, self.batch_axis)
            self._compare_with_rows(batch, shapes)
        self._flattened[signature] = self.flattened

    def _compare_with_rows(self, batch, shapes):
        """Note whether weights are others than the number of rows, as far as shapes show it."""
        labels = batch[-1]
        self.differs |= self.flattened
        if self.mean.over == "elements":
            rows = shapes[0][0] if self.flattened else batch_rows(batch, self.batch_axis)
            per_row = labels.size / rows
            self.elements_per_row = self.elements_per_row or per_row
            self.differs |= per_row != self.elements_per_row
        elif self.mean.over == "labels" and np.issubdtype(_dtype(labels), np.integer):
            self.differs |= labels.ndim != 1

    def labels(self, batch, compiled) -> None:
        """Raise ``InputError`` for labels that are wrong, or that an unknown loss may ignore.

        compiled  function that compiles the graph of the batch, which says what V is. Where there
                  is none (PyNative mode, nn.WithLossCell), the network is run once
        """
        labels = batch[-1]
        if not isinstance(labels, Tensor) or not (self.mean.classes or self._may_ignore(labels)):
            return
        array = labels.asnumpy()
        if not self.mean.classes:
            if array.size and array.min() < 0:
                raise InputError(
                    f"label {array.min()} is negative, and the loss, not a known one, may ignore "
                    f"it: what its mean is taken over is unknown; {_WORDS}"
                )
            for ignored in self.mean.ignores:
                if (array == ignored).any():
                    raise InputError(
                        f"label {ignored} is one that a loss in the {type(self.loss_net).__name__} "
                        f"ignores: what its mean is taken over is unknown; {_WORDS}"
                    )
            return
        if self.mean.dense and labels.dtype in FLOATS and array.ndim > 1:
            return
        check_integers(array)
        if self.classes is None:
            if self._compiles:
                self._compiles = False
                compiled()
            elif self._runs:
                self._runs = False
                self._classes = self._classes_of_outputs(batch)
        check_labels(array, self.classes, self.mean.ignore_index)
        if self.derived and not self.differs and self.mean.over == "labels":
            self.differs = bool((array == self.mean.ignore_index).any())

    def _may_ignore(self, labels):
        """Return whether an unknown loss, taken for a mean over rows, may ignore labels."""
        integers = labels.dtype in INTEGERS
        return self.derived and self.mean.over == "unknown" and integers

    @property
    def classes(self) -> int | None:
        """V, the number of classes; None where nothing was compiled yet."""
        loss_fn = getattr(self.loss_net, "loss_fn", None)
        loss_fn = loss_fn or getattr(self.loss_net, "_loss_fn", None)
        known = self._classes or getattr(loss_fn, "num_classes", None)
        return known or classes_of(self.loss_net)

    def _classes_of_outputs(self, batch) -> int | None:
        """Return V by a run of the network in evaluation mode, which draws no random number."""
        from labkit.steps.forward_state import (
            unchanged,  # which imports labkit.steps.gradients, and that this
        )

        if isinstance(self.loss_net, nn.WithLossCell):
            network, axis = self.loss_net.backbone_network, class_axis(self.loss_net._loss_fn)
        else:
            network, axis = self.loss_net.network, getattr(self.loss_net, "class_axis", -1)
        kept, phase = modes(network), network.phase
        try:
            with unchanged(network):
                outputs = network.set_train(False)(*batch[:-1])
        finally:
            set_modes(kept)
            network.phase = phase
        return outputs.shape[axis] if axis is not None and outputs.ndim > 1 else None


def check_derivable(mean, batch, batch_axis=None) -> None:
    """Raise ``InputError`` where no weight can be derived from a batch's loss and shapes."""
    if mean.over == "pair":
        return
    if mean.why_not:
        raise InputError(f"{mean.why_not}: what a micro-batch counts for is unknown; {_WORDS}")
    shapes = [tuple(part.shape) for part in batch if getattr(part, "shape", ())]
    labels = tuple(getattr(batch[-1], "shape", ()))
    known = mean.over != "unknown"
    if not known and len(labels) != 1:
        raise InputError(
            f"the labels have shape {labels} and the loss is not a known one: what its mean is "
            f"taken over is unknown; {_WORDS}"
        )
    if known and batch_axis is None and is_flattened(shapes):
        return
    if mean.over in ("labels", "rows"):
        # What lies between need not have an axis of rows: a causal mask (T, T), a graph's edges.
        batch = (*[part for part in batch[:-1] if getattr(part, "shape", ())][:1], batch[-1])
    try:
        rows = batch_rows(batch, batch_axis)
    except InputError as error:
        raise InputError(f"{error}; or else {_WORDS}") from None
    if not known and rows != labels[0]:
        raise InputError(
            f"the batch has {rows} rows and {labels[0]} labels, and the loss is not a known one: "
            f"what its mean is taken over is unknown; {_WORDS}"
        )


def is_flattened(shapes) -> bool:
    """Return whether labels (B T,) are those of inputs (B, T, ...), with the axes in one."""
    if not shapes or len(shapes[-1]) != 1 or len(shapes[0]) < 2:
        return False
    return shapes[-1] != shapes[0][:1] and shapes[-1][0] in np.cumprod(shapes[0])[1:]


def _dtype(tensor):
    return mstype.dtype_to_nptype(tensor.dtype)
