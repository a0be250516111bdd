"""Weights from PyTorch into a MindSpore network and back, bit by bit."""

from collections.abc import Mapping
from pathlib import Path

import mindspore as ms
import numpy as np

from labkit.errors import InputError, refuse_unknown
from labkit.migration.files import State, read_torch, write_torch
from labkit.migration.names import COUNTER, Match, match, pairs
from labkit.steps.gradients import set_state
from labkit.training import checkpoint

_MOST_LINES = 8  # of a message, one for each tensor


def load(network, state: Mapping, renames: Mapping[str, str] | None = None) -> Match:
    """Put PyTorch's tensors into ``network`` and return the ``Match``.

    state    PyTorch name -> array
    renames  see ``names.pairs``

    Raises ``InputError`` before anything is changed: where a name or shape has no counterpart, a
    value is not finite, or the parameter's type cannot hold every value exactly.
    """
    found = match(network, state, renames)
    if not found.complete:
        lines = str(found).splitlines()[1:]
        if len(lines) > _MOST_LINES:
            lines = [f"{found.summary} (labkit.migration.match returns all)"]
        raise InputError(
            "\n".join(["these tensors are not this network's:", *lines]) + _prefix_hint(state)
        )
    parameters = {parameter.name: parameter for parameter in network.get_parameters()}
    values: State = {}
    for pair in found.pairs:
        parameter = parameters[pair.mindspore]
        value = _exactly(pair.torch, np.asarray(state[pair.torch]), parameter)
        if not np.array_equal(values.setdefault(pair.mindspore, value), value):
            raise InputError(f"{pair.torch} shares its parameter with another name and differs")
    for name, value in values.items():
        set_state(parameters[name], value)
    return found


def state_dict(network, renames: Mapping[str, str] | None = None, counters=None) -> State:
    """Return the parameters of ``network`` as PyTorch names them.

    counters  name -> value of ``num_batches_tracked``; default: 0 for each BatchNorm

    bfloat16 becomes float32, which holds it exactly. Raises ``InputError`` for a counter of no
    BatchNorm.
    """
    values = {parameter.name: _readable(parameter) for parameter in network.get_parameters()}
    state: State = {}
    for pair in pairs(network, renames):
        state[pair.torch] = values[pair.mindspore].reshape(pair.torch_shape).copy()
        module, _, attribute = pair.torch.rpartition(".")
        if attribute == "running_var":
            counter = f"{module}.{COUNTER}" if module else COUNTER
            state[counter] = np.asarray((counters or {}).get(counter, 0), np.int64)
    for counter in counters or {}:
        refuse_unknown("counter", counter, _counters(state))
    return state


def _counters(state):
    return [name for name in state if name.rpartition(".")[2] == COUNTER]


def _readable(parameter):
    # NumPy has no bfloat16 that PyTorch or safetensors would take.
    kind = np.float32 if parameter.dtype == ms.bfloat16 else None
    return np.asarray(parameter.asnumpy(), kind)


def convert_file(source, target, network, renames=None, **reading) -> Match:
    """Write PyTorch's file ``source`` as the MindSpore checkpoint ``target``, through ``network``.

    The counters of BatchNorm are kept in it under their own names. ``reading``: of ``read_torch``.
    """
    state = read_torch(source, **reading)
    found = load(network, state, renames)
    carried = {name: int(state[name]) for name in found.carried}
    checkpoint.write(network, target, extra=carried)
    return found


def convert_back(source, target, network, renames=None) -> Path:
    """Write the MindSpore checkpoint ``source`` as PyTorch's file ``target``; return its path.

    target  ``.safetensors``, or ``.pth`` (needs PyTorch)

    What the checkpoint holds besides, as of an optimizer, is left behind. Raises ``InputError`` for
    a checkpoint that lacks a parameter of ``network`` or has one of another shape or type.
    """
    found = checkpoint.read(source, network)
    own = [parameter.name for parameter in network.get_parameters()]
    missing = [name for name in own if name not in found]
    if missing:
        raise InputError(f"{source} has no {', '.join(missing)}; is it of another network?")
    checkpoint.load_into(network, {name: found[name] for name in own}, source)
    state = state_dict(network, renames)
    counters = {
        name: _count(source, name, found[name]) for name in _counters(state) if name in found
    }
    return write_torch(target, state_dict(network, renames, counters))


def _count(source, name, value):
    if getattr(value, "dtype", None) not in (ms.int32, ms.int64) or value.shape != ():
        raise InputError(f"{source}: {name} is no whole number")
    return int(value)


def _exactly(name, value, parameter):
    """Return ``value`` in the shape and type of ``parameter``, or raise where it does not fit."""
    kind = parameter.asnumpy().dtype
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise InputError(f"{name} holds NaN or infinite values")
    with np.errstate(over="ignore"):
        there = value.astype(kind).reshape(parameter.shape)
    if not np.array_equal(there.reshape(value.shape).astype(value.dtype), value):
        raise InputError(
            f"{name} is {value.dtype} and does not fit into {kind} without rounding; "
            "convert it first if that is meant"
        )
    return there


def _prefix_hint(state):
    heads = {name.partition(".")[0] for name in state}
    if len(heads) == 1 and len(state) > 1:
        return f"\n  every name begins with '{heads.pop()}.': give prefix= to read_torch"
    return ""
