"""Transfer weights from PyTorch to a MindSpore network and back, bit by bit."""

import os
from collections.abc import Mapping
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn

from labkit.base.arguments import integer, names_checked
from labkit.errors import InputError, refuse_unknown
from labkit.migration.files import State, read_torch, write_torch
from labkit.migration.names import COUNTER, Match, match, pairs
from labkit.steps.state import set_state
from labkit.training import checkpoint

_MOST_LINES = 8  # of a message, which has one line per tensor


@names_checked
def load(network: nn.Cell, state: Mapping, renames: Mapping[str, str] | None = None) -> Match:
    """Load PyTorch's tensors into ``network`` and return the ``Match``.

    Args:
        network: the network to set; it is changed only if everything fits.
        state: PyTorch name -> array.
        renames: as in ``names.pairs``.

    Raises:
        InputError: if a name or shape has no counterpart, a value is not finite, or the
            parameter's type cannot hold every value exactly.
    """
    matched = match(network, state, renames)
    if not matched.complete:
        lines = str(matched).splitlines()[1:]
        if len(lines) > _MOST_LINES:
            lines = [f"{matched.summary} (labkit.migration.match returns all)"]
        raise InputError(
            "\n".join(["these tensors are not this network's:", *lines]) + _prefix_hint(state)
        )
    parameters = {parameter.name: parameter for parameter in network.get_parameters()}
    values: State = {}
    for pair in matched.pairs:
        parameter = parameters[pair.mindspore]
        value = _exactly(pair.torch, np.asarray(state[pair.torch]), parameter)
        if not np.array_equal(values.setdefault(pair.mindspore, value), value):
            raise InputError(f"{pair.torch} shares its parameter with another name and differs")
    for name, value in values.items():
        set_state(parameters[name], value)
    return matched


@names_checked
def state_dict(
    network: nn.Cell,
    renames: Mapping[str, str] | None = None,
    counters: Mapping[str, int] | None = None,
) -> State:
    """Return the parameters of ``network`` under PyTorch's names.

    bfloat16 becomes float32, which holds it exactly.

    Args:
        network: the network whose parameters are returned.
        renames: as in ``names.pairs``.
        counters: name -> value of ``num_batches_tracked``; default: 0 for each BatchNorm.

    Raises:
        InputError: if a counter belongs to no BatchNorm, or is not an integer >= 0.
    """
    # NumPy has no bfloat16 that PyTorch or safetensors would accept.
    values = {
        p.name: np.asarray(p.asnumpy(), np.float32 if p.dtype == ms.bfloat16 else None)
        for p in network.get_parameters()
    }
    state: State = {}
    for pair in pairs(network, renames):
        state[pair.torch] = values[pair.mindspore].reshape(pair.torch_shape).copy()
        module, _, attribute = pair.torch.rpartition(".")
        if attribute == "running_var":
            counter = f"{module}.{COUNTER}" if module else COUNTER
            count = integer(counter, (counters or {}).get(counter, 0), 0)
            state[counter] = np.asarray(count, np.int64)
    for counter in counters or {}:
        refuse_unknown("counter", counter, _counters(state))
    return state


def _counters(state: State) -> list[str]:
    return [name for name in state if name.rpartition(".")[2] == COUNTER]


@names_checked
def convert_file(
    source: str | os.PathLike,
    target: str | os.PathLike,
    network: nn.Cell,
    renames: Mapping[str, str] | None = None,
    *,
    entry: str | None = None,
    prefix: str = "",
) -> Match:
    """Convert the PyTorch file ``source`` to the MindSpore checkpoint ``target``, via ``network``.

    The checkpoint also holds the counters of BatchNorm, under their own names.

    Args:
        source: a file that ``read_torch`` reads.
        target: the checkpoint.
        network: the network into which the weights are loaded.
        renames: as in ``names.pairs``.
        entry: as in ``read_torch``.
        prefix: as in ``read_torch``.

    Raises:
        InputError: as in ``read_torch`` and ``load``.
    """
    state = read_torch(source, entry=entry, prefix=prefix)
    matched = load(network, state, renames)
    carried = {name: _count(source, name, state[name]) for name in matched.carried}
    checkpoint.write(network, target, extra=carried)
    return matched


@names_checked
def convert_back(
    source: str | os.PathLike,
    target: str | os.PathLike,
    network: nn.Cell,
    renames: Mapping[str, str] | None = None,
) -> Path:
    """Convert the MindSpore checkpoint ``source`` to the PyTorch file ``target``; return its path.

    Other entries of the checkpoint, such as those of an optimizer, are left out.

    Args:
        source: the checkpoint.
        target: ``.safetensors``, or ``.pth`` (needs PyTorch).
        network: the network into which the weights are loaded.
        renames: as in ``names.pairs``.

    Raises:
        InputError: if the checkpoint lacks a parameter of ``network`` or has one of another shape
            or type.
    """
    saved = checkpoint.read(source)
    names = [parameter.name for parameter in network.get_parameters()]
    missing = [name for name in names if name not in saved]
    if missing:
        raise InputError(f"{source} has no {', '.join(missing)}; is it of another network?")
    checkpoint.load_into(network, {name: saved[name] for name in names}, source)
    state = state_dict(network, renames)
    for name in _counters(state):
        if name in saved:
            state[name] = np.asarray(_count(source, name, saved[name]), np.int64)
    return write_torch(target, state)


def _count(source: str | os.PathLike, name: str, value: object) -> int:
    number = np.asarray(value.asnumpy() if isinstance(value, ms.Parameter) else value)
    if number.dtype.kind not in "iu" or number.size != 1:
        what = f"{number.dtype} {number.shape}"
        raise InputError(f"{source}: {name}: expected a whole number, got {what}")
    return int(number.item())


def _exactly(name: str, value: np.ndarray, parameter: ms.Parameter) -> np.ndarray:
    """Return ``value`` in the shape and type of ``parameter``; raise if it does not fit."""
    kind = parameter.asnumpy().dtype
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise InputError(f"{name} holds NaN or infinite values")
    with np.errstate(over="ignore"):
        converted = value.astype(kind).reshape(parameter.shape)
    if not np.array_equal(converted.reshape(value.shape).astype(value.dtype), value):
        raise InputError(
            f"{name} is {value.dtype} and does not fit into {kind} without rounding; "
            "convert it first if that is meant"
        )
    return converted


def _prefix_hint(state: Mapping) -> str:
    heads = {name.partition(".")[0] for name in state}
    if len(heads) == 1 and len(state) > 1:
        return f"\n  every name begins with '{heads.pop()}.': give prefix= to read_torch"
    return ""
