"""Batches as they come: Tensors, and tuples, lists and dictionaries of them, to any depth.

The last part of a batch holds the labels; of a nested part, its entry ``labels`` if it is a
dictionary that has one, else its last entry. Rows are counted along the labels' first axis.
"""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn
from mindspore.common import dtype as mstype

from labkit.base.arguments import wrong
from labkit.errors import InputError

NESTED = (tuple, list, dict)
INTEGERS = (*mstype.int_type, *mstype.uint_type)


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


def leaves(part: Any) -> list:
    """Return what a batch, or a part of it, consists of, in order."""
    if not isinstance(part, NESTED):
        return [part]
    return [leaf for each in _inside(part) for leaf in leaves(each)]


def containers(part: Any) -> list:
    """Return the tuples, lists and dictionaries in a batch, itself the first."""
    if not isinstance(part, NESTED):
        return []
    return [part, *(each for inner in _inside(part) for each in containers(inner))]


def _inside(part: Any) -> Any:
    return part.values() if isinstance(part, dict) else part


def mapped(function: Any, part: Any) -> Any:
    """Return a part of a batch with ``function`` applied to its Tensors."""
    if isinstance(part, dict):
        return {name: mapped(function, each) for name, each in part.items()}
    if isinstance(part, (tuple, list)):
        return type(part)([mapped(function, each) for each in part])
    return function(part) if isinstance(part, Tensor) else part


def variable(batch: tuple) -> tuple:
    """Return a batch whose nested parts a graph takes as inputs.

    To MindSpore Tensors in a tuple are constants otherwise, and every call compiles anew.
    """
    try:
        return tuple(ms.mutable(part) if isinstance(part, NESTED) else part for part in batch)
    except TypeError:
        raise _wrong_batch(batch) from None


def kinds(part: Any) -> Any:
    """Return shapes and types in a part of a batch, and how it is nested: what a graph is for."""
    if isinstance(part, dict):
        return tuple((name, kinds(each)) for name, each in part.items())
    if isinstance(part, (tuple, list)):
        return tuple(map(kinds, part))
    return (part.shape, part.dtype) if isinstance(part, Tensor) else type(part)


def cut(batch: tuple, count: int) -> list[tuple]:
    """Return a batch as ``count`` batches of consecutive rows, sizes equal or one apart."""
    sizes = {leaf.shape[:1] for leaf in leaves(batch) if isinstance(leaf, Tensor)}
    if len(sizes) != 1 or not (rows := min(sizes)) or rows[0] < count:
        raise InputError(
            f"split={count}: expected Tensors of one number of rows, at least {count}, got "
            f"{_said(batch)}"
        )
    ends = [rows[0] * place // count for place in range(count + 1)]
    return [
        mapped(lambda leaf, first=first, end=end: leaf[first:end], batch)
        for first, end in zip(ends, ends[1:], strict=False)
    ]


def arranged(loss_net: nn.Cell, batch: tuple, named: Mapping[str, Any]) -> tuple:
    """Return a batch in the order in which ``loss_net`` takes it.

    ``named`` are arguments of ``network.construct`` and ``labels``, of a ``LossNet`` or
    ``TokenLossNet``, or of ``construct`` of a loss net of your own. To the first two, one
    dictionary that is the whole batch is such names, and one tuple or list several parts.
    """
    known = has_network(loss_net)
    if known and not named and len(batch) == 1 and isinstance(batch[0], NESTED):
        whole = batch[0]
        batch, named = ((), whole) if isinstance(whole, dict) else (tuple(whole), {})
    if not named:
        return batch
    names = {name: part for name, part in named.items() if not (known and name == "labels")}
    last = (named.get("labels"),) if known else ()
    called = inspect.signature(_called(loss_net).construct)
    try:
        bound = called.bind(*batch, **names)
    except TypeError as error:
        raise _wrong_names(loss_net, str(error)) from None
    if last == (None,):
        raise _wrong_names(loss_net, "missing a required argument: 'labels'")
    for name in names:
        kind = getattr(called.parameters.get(name), "kind", None)
        if kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise _wrong_names(loss_net, f"{name!r} has no place among its arguments")
    if not names:
        return batch + last
    end = max(list(called.parameters).index(name) + 1 for name in bound.arguments)
    bound.apply_defaults()
    return bound.args[:end] + last


def has_network(loss_net: nn.Cell) -> bool:
    """Return whether a loss net is a ``LossNet`` or ``TokenLossNet``: network and loss apart."""
    return hasattr(loss_net, "of_outputs")


def _called(loss_net: nn.Cell) -> nn.Cell:
    """Return the Cell that takes the inputs, without the wrapper of mixed precision."""
    cell = loss_net.network if has_network(loss_net) else loss_net
    return getattr(cell, "_backbone", cell)


def _wrong_names(loss_net: nn.Cell, why: str) -> InputError:
    cell = _called(loss_net)
    names = list(inspect.signature(cell.construct).parameters)
    names += ["labels"] if has_network(loss_net) else []
    return InputError(
        f"the batch, by name: expected {', '.join(names)}; {type(cell).__name__}: {why}"
    )


@contextlib.contextmanager
def first_batch(loss_net: nn.Cell, batch: tuple) -> Iterator[None]:
    """Refuse what is not Tensors, features of float64, columns in another order or number, and
    inputs that are not floats and fail in the block: uint8 images."""
    known = has_network(loss_net)
    least = 2 if known else 1  # an autoencoder's own has no labels
    parts = leaves(batch)
    labels: Any = labels_of(batch) if parts else None
    # None and True: the defaults of what a call by name leaves out.
    right = len(batch) >= least and all(isinstance(p, Tensor | bool | None) for p in parts)
    right = right and isinstance(labels, Tensor) and labels.ndim and labels.size
    tensors = [part for part in parts if isinstance(part, Tensor)]
    inputs = [part for part in tensors if part is not labels]
    if not right or ms.float64 in [part.dtype for part in inputs]:
        raise _wrong_batch(batch)
    if tensors[0].dtype in INTEGERS and tensors[0].ndim == 1 and labels.ndim > 2:
        if labels.dtype in mstype.float_type and hasattr(loss_net, "class_axis"):
            raise _wrong_batch(batch)  # labels and images; targets (B, C) may follow identities
    cell, given = (loss_net.network, batch[:-1]) if known else (loss_net, batch)
    try:
        inspect.signature(cell.construct).bind(*given)
    except TypeError:
        expected = f"network and loss, as LossNet(network, loss_fn), for {len(batch)} columns"
        raise wrong("loss_net", type(cell).__name__, expected) from None
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        floats = all(part.dtype in mstype.float_type for part in inputs)
        if isinstance(error, InputError) or floats:
            raise
        raise _wrong_batch(batch, f": {str(error).strip().splitlines()[0][:200]}") from error


def _wrong_batch(batch: tuple, more: str = "") -> InputError:
    return InputError(
        "the batch: expected Tensors of at least one row, as dataset.batch makes them, inputs "
        "first (float32, not NumPy's float64; integers to look up) and labels last, got "
        f"{_said(batch) or 'nothing'}{more}"
    )


def _said(batch: tuple) -> str:
    got = [
        f"{p.dtype} {p.shape}" if isinstance(p, Tensor) else type(p).__name__ for p in leaves(batch)
    ]
    return ", ".join(got)
