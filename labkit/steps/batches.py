"""Batches as they come, see ``Step``; rows are counted along the labels' first axis."""

import contextlib
import inspect
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn
from mindspore.common import dtype as mstype
from mindspore.ops.primitive import constexpr

from labkit.base.arguments import wrong
from labkit.errors import InputError

NESTED = (tuple, list, dict)
INTEGERS = (*mstype.int_type, *mstype.uint_type)


@constexpr
def refuse(text: str, *values: object) -> None:
    """Raise ``InputError`` when the graph is compiled; ``values`` fill the braces of ``text``."""
    raise InputError(text.format(*values))


def labels_of(part: Any) -> Any:
    """Return the labels of a batch, or of a part of it, inside a graph or outside."""
    if isinstance(part, dict):
        return labels_of(part["labels"] if "labels" in part else list(part.values())[-1])
    if isinstance(part, (tuple, list)):  # as a graph knows it
        return labels_of(part[-1])
    return part


def rows_of(batch: tuple) -> int:
    """Return how many rows a batch has, inside a graph or outside."""
    return labels_of(batch).shape[0]


def nodes(part: Any) -> list:
    """Return a part of a batch and all that it holds, in order."""
    inside = part.values() if isinstance(part, dict) else part if isinstance(part, NESTED) else ()
    return [part, *(node for each in inside for node in nodes(each))]


def tensors_of(part: Any) -> list[Tensor]:
    """Return the Tensors in a part of a batch, in order."""
    return [node for node in nodes(part) if isinstance(node, Tensor)]


def mapped(function: Any, part: Any) -> Any:
    """Return a part of a batch with ``function`` applied to its Tensors."""
    if isinstance(part, dict):
        return {name: mapped(function, each) for name, each in part.items()}
    if isinstance(part, (tuple, list)):
        kind = tuple if isinstance(part, tuple) else list
        return kind(mapped(function, each) for each in part)
    return function(part) if isinstance(part, Tensor) else part


def variable(batch: tuple) -> tuple:
    """Return a batch whose nested parts a graph takes as inputs.

    To MindSpore Tensors in a tuple are constants otherwise, and every call compiles anew.
    """
    try:
        return tuple(ms.mutable(part) if isinstance(part, NESTED) else part for part in batch)
    except TypeError:
        raise _wrong_batch(batch) from None


def cut(batch: tuple, count: int) -> list[tuple]:
    """Return a batch as ``count`` batches of consecutive rows, sizes equal or one apart."""
    sizes = {tensor.shape[:1] for tensor in tensors_of(batch)}
    if len(sizes) != 1 or not (rows := min(sizes)) or rows[0] < count:
        raise InputError(
            f"split={count}: expected Tensors of one number of rows, at least {count}, got "
            f"{said(batch)}"
        )
    ends = [rows[0] * place // count for place in range(count + 1)]
    parts = itertools.starmap(slice, itertools.pairwise(ends))
    return [mapped(operator.itemgetter(part), batch) for part in parts]


def arranged(
    loss_net: nn.Cell,
    batch: tuple,
    named: Mapping[str, Any] = MappingProxyType({}),
    columns: Sequence[str] = (),
) -> tuple:
    """Return a batch, or the columns of one by name, in the order in which ``loss_net`` takes it.

    See ``Step`` for what ``named`` and a batch of one nested part are.
    """
    if columns and not named:
        batch, named = (), dict(zip(columns, batch, strict=True))
    known = has_network(loss_net)
    if known and not named and len(batch) == 1 and isinstance(batch[0], NESTED):
        whole = batch[0]
        batch, named = ((), whole) if isinstance(whole, dict) else (tuple(whole), {})
    if not named:
        return batch
    names = {name: part for name, part in named.items() if not (known and name == "labels")}
    cell = loss_net.network if known else loss_net
    cell = getattr(cell, "_backbone", cell)  # without the wrapper of mixed precision
    arguments = inspect.signature(cell.construct).parameters
    try:
        bound = inspect.signature(cell.construct).bind(*batch, **names)
        end = max((list(arguments).index(name) + 1 for name in bound.arguments), default=0)
        bound.apply_defaults()
        if known and "labels" not in named:
            raise TypeError("missing a required argument: 'labels'")
        if apart := names.keys() & bound.kwargs.keys():
            raise TypeError(f"{min(apart)!r} has no place among its arguments")
    except TypeError as error:
        expected = ", ".join([*arguments, "labels"] if known else arguments)
        text = f"the batch, by name: expected {expected}; {type(cell).__name__}: {error}"
        raise InputError(text) from None
    batch = bound.args[:end] if names else batch
    return (*batch, named["labels"]) if known else batch


def has_network(loss_net: nn.Cell) -> bool:
    """Return whether a loss net is a ``LossNet`` or ``TokenLossNet``: network and loss apart."""
    return hasattr(loss_net, "of_outputs")


@contextlib.contextmanager
def first_batch(loss_net: nn.Cell, batch: tuple) -> Iterator[None]:
    """Refuse what is not Tensors, features of float64, columns in another number, and inputs that
    are not floats and fail in the block: uint8 images, labels before the images."""
    known = has_network(loss_net)
    tensors = tensors_of(batch)
    labels: Any = labels_of(batch) if tensors else None
    # None and True: the defaults of what a call by name leaves out.
    allowed = (Tensor, bool, type(None), *NESTED)
    right = all(isinstance(node, allowed) for node in nodes(batch))
    right = right and len(batch) >= (2 if known else 1)  # an autoencoder's own has no labels
    right = right and isinstance(labels, Tensor) and labels.ndim and labels.size
    inputs = [part for part in tensors if part is not labels]
    if not right or ms.float64 in [part.dtype for part in inputs]:
        raise _wrong_batch(batch)
    cell, given = (loss_net.network, batch[:-1]) if known else (loss_net, batch)
    try:
        inspect.signature(cell.construct).bind(*given)
    except TypeError:
        expected = f"network and loss, as LossNet(network, loss_fn), for {len(batch)} columns"
        raise wrong("loss_net", type(cell).__name__, expected) from None
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError) or all(part.dtype in mstype.float_type for part in inputs):
            raise
        raise _wrong_batch(batch, f": {str(error).strip().splitlines()[0][:200]}") from error


def _wrong_batch(batch: tuple, more: str = "") -> InputError:
    return InputError(
        "the batch: expected Tensors of at least one row, as dataset.batch makes them, inputs "
        "first (float32, not NumPy's float64; integers to look up) and labels last, got "
        f"{said(batch) or 'nothing'}{more}"
    )


def said(batch: tuple) -> str:
    """Return types and shapes of what a batch holds."""
    parts = [node for node in nodes(batch) if not isinstance(node, NESTED)]
    got = [f"{p.dtype} {p.shape}" if isinstance(p, Tensor) else type(p).__name__ for p in parts]
    return ", ".join(got)
