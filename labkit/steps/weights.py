"""The weight of a micro-batch: the number that its loss is a mean over.

The mean losses L_i of micro-batches, weighted by w_i, average to the mean over all of them together
if w_i is what L_i was divided by. It is known for a ``LossNet`` (or MindSpore's ``WithLossCell``)
with a mean over

    labels    nn.CrossEntropyLoss, nn.NLLLoss, those of mint.nn, CrossEntropySmooth: labels that
              are not ignored, or the sum of their classes' weights. If all are ignored,
              MindSpore's losses are 0 / 0, NaN by themselves; in a step such a micro-batch has
              loss 0 and weight 0
    rows      nn.SoftmaxCrossEntropyWithLogits, and the losses above with targets (B, C)
    elements  nn.MSELoss and others that are a mean over elements: elements of the labels
    pair      TokenLossNet: the loss net returns it, as (loss sum, token count)

Any other loss is taken for a mean over rows if the labels are (B,) and its code shows no sign of
ignoring some; otherwise it is refused. A sign is an ``ignore_index``, or a call of
``cross_entropy`` or ``nll_loss`` with more than outputs and labels. The limit: a mask or weights
that the loss computes itself, in a product or in a function that its code calls, are not detected.
Such a loss is not a mean over rows and needs ``normalise``, or must be one of the losses above.
"""

import dis
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np
from mindspore import mint, nn

from labkit.steps.losses import (
    FUNCTIONS,
    OVER_CLASSES,
    CrossEntropySmooth,
    LossNet,
    TokenLossNet,
    is_exactly,
)

_ELEMENTS = (
    *(nn.MSELoss, nn.L1Loss, nn.MAELoss, nn.SmoothL1Loss, nn.HuberLoss),
    *(nn.BCELoss, nn.BCEWithLogitsLoss, nn.SoftMarginLoss, mint.nn.MSELoss),
)
_NO_MEAN = (nn.RMSELoss, nn.DiceLoss, nn.MultiClassDiceLoss)
_CROSS_ENTROPIES = ("cross_entropy", "nll_loss")
# Arguments with which these are not a mean over rows.
_OTHER_MEANS = ("ignore_index", "weight", "reduction")


@dataclass(frozen=True)
class Mean:
    """What a loss is a mean over.

    Attributes:
        over: ``labels``, ``rows``, ``elements``, ``pair``, or ``unknown``.
        ignore_index: that of a loss over labels, else None.
        class_weights: likewise, an array (V,) or None.
        classes: whether the labels are class numbers.
        dense: whether the labels may also be dense targets.
        why_not: why no weight can be derived from the loss, or "".
        undefined: whether the mean is 0 / 0 if no label counts.
        ignores: for an unknown loss, the labels that the known losses in it ignore.
    """

    over: str
    ignore_index: int | None = None
    class_weights: np.ndarray | None = None
    classes: bool = False
    dense: bool = False
    why_not: str = ""
    undefined: bool = False
    ignores: tuple[int, ...] = ()


def mean_of(loss_net: nn.Cell) -> Mean:
    """Return what is known about the loss of ``loss_net``."""
    if is_exactly(loss_net, TokenLossNet):
        return Mean("pair", loss_net.ignore_index, classes=True)
    if not is_exactly(loss_net, LossNet, nn.WithLossCell):
        return _unknown(loss_net)
    return mean_of_loss(getattr(loss_net, "loss_fn", None) or loss_net._loss_fn)


def mean_of_loss(loss_fn: Any) -> Mean:
    """Return what is known about a loss, (outputs, labels) -> loss."""
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


def _unknown(loss: Any, why_not: str = "") -> Mean:
    """Return what is known about a custom loss, from the known means in it and from its code."""
    cells = [cell for _, cell in loss.cells_and_names()] if isinstance(loss, nn.Cell) else []
    known = [cell for cell in cells if is_exactly(cell, *OVER_CLASSES, CrossEntropySmooth)]
    known = [cell for cell in known if mean_of_loss(cell).class_weights is None]
    known = [cell for cell in known if _reduction(cell) == "mean"]
    cells = [cell for cell in cells if not any(cell is other for other in known)]
    ignores = tuple(cell.ignore_index for cell in known)
    return Mean("unknown", why_not=why_not or _ignores(loss, cells), ignores=ignores)


def _reduction(loss_fn: object) -> str:
    """Return the reduction of MindSpore's losses; some keep it as two flags, some as a word."""
    word = getattr(loss_fn, "reduction", None)
    average, reduce = getattr(loss_fn, "average", True), getattr(loss_fn, "reduce", True)
    return word or ("sum" if reduce and not average else "mean")


def _ignores(loss: Any, cells: list[nn.Cell]) -> str:
    """Return a sentence if a loss shows that it ignores or weights labels, or may, else "".

    ``cells`` are the Cells of the loss whose code is examined.
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


def _weighted_call(function: Callable) -> str:
    """Return the name of ``cross_entropy`` or ``nll_loss`` if called for a different mean, else "".

    The call is searched for in the bytecode: two arguments, and ``label_smoothing`` by name, are
    those of a mean over rows. Calls made by other functions are not examined.
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


def _function_name(function: Callable, instruction: dis.Instruction) -> str:
    """Return the name by which an instruction loads one of these functions, else ""."""
    name = instruction.argval
    if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_DEREF"):
        if name in _CROSS_ENTROPIES:
            return name
        if instruction.opname == "LOAD_GLOBAL":
            value = getattr(function, "__globals__", {}).get(name)
            return name if getattr(value, "__name__", "") in _CROSS_ENTROPIES else ""
    return ""


def _plain_call(instructions: list[dis.Instruction], code: CodeType) -> bool:
    """Return whether the function that is loaded first is called with (outputs, labels)."""
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
            keywords = code.co_consts[instruction.arg or 0]
        elif instruction.opname == "CALL":
            keywords = ()
        depth += dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if depth < 0:
            return False
    return False


def _names(function: Callable) -> set[str]:
    """Return the names that the code of a function uses, keywords of its calls included."""
    code = getattr(function, "__code__", None)
    if code is None:
        return set()
    keywords = {name for part in code.co_consts if isinstance(part, tuple) for name in part}
    return {*code.co_names, *code.co_varnames, *code.co_freevars, *keywords}
