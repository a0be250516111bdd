"""Weights from PyTorch to a MindSpore network and back, bit by bit, in memory and through files."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from labkit.errors import InputError
from labkit.migration.files import as_array, read_torch, write_torch
from labkit.migration.names import (
    COUNTER,
    UNKNOWN,
    Match,
    Rule,
    applied,
    match,
    pairs,
    shapes_of,
)
from labkit.migration.propose import propose
from labkit.steps.state import set_state
from labkit.training import checkpoint


def load(
    network: nn.Cell, state: Mapping, rules: Sequence[Rule] = (), leave: str | None = None
) -> Match:
    """Load PyTorch's tensors, arrays by name, into ``network`` and return the ``Match``.

    ``rules`` and ``leave`` are those of ``names.match``. Each tensor of a file is read twice, and
    one at a time.

    Raises:
        InputError: if a name or shape has no counterpart, a value is not finite, or the
            parameter's type cannot hold every value exactly; the network is then unchanged.
    """
    matched = match(network, state, rules, leave)
    if matched.problems:
        raise InputError("\n".join(_advice(network, matched, not rules and leave is None)))
    parameters = {parameter.name: parameter for parameter in network.get_parameters()}
    sources: dict[str, Any] = {}
    for pair, source in matched.links:
        name, value = " and ".join(source.torch), source.of(state)
        kind = parameters[pair.mindspore].asnumpy().dtype
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise InputError(f"{name} holds NaN or infinite values")
        with np.errstate(over="ignore"):
            real = value.dtype.kind != "c"
            exact = real and np.array_equal(value.astype(kind).astype(value.dtype), value)
        if not exact:
            raise InputError(f"{name}: {value.dtype} that {kind} cannot hold without rounding")
        other = sources.setdefault(pair.mindspore, source)
        if other is not source and not np.array_equal(other.of(state), value):
            raise InputError(f"{name} shares its parameter with another name and differs")
    for name, source in sources.items():
        _set(parameters[name], source.of(state).reshape(parameters[name].shape))
    return matched


def _set(parameter: Parameter, value: np.ndarray) -> None:
    if parameter.dtype == ms.bfloat16:  # MindSpore 2.10 has no CPU kernel to assign it
        parameter.set_data(Tensor(value.astype(np.float32), ms.bfloat16))
    else:
        set_state(parameter, value)


def _advice(network: nn.Cell, matched: Match, proposes: bool) -> list[str]:
    """Return the lines of the message about names that do not match."""
    lines = ["these tensors are not this network's:", *matched.problems]
    if any(".parametrizations." in f".{name}" for name in matched.shapes):
        undo = 'torch.nn.utils.parametrize.remove_parametrizations(module, "weight")'
        return [f"expected plain weights, got parametrizations: {undo} before saving", *lines[1:]]
    if proposed := propose(network, matched.shapes) if proposes else []:
        lines += ["Rules that order, kinds and shapes propose, to be confirmed:"]
    return [*lines, *map(str, proposed)]


def state_dict(
    network: nn.Cell, rules: Sequence[Rule] = (), like: Mapping | None = None
) -> dict[str, np.ndarray]:
    """Return the parameters of ``network`` under PyTorch's names, ``num_batches_tracked`` as 0.

    bfloat16, which NumPy lacks, becomes float32. ``like`` has PyTorch's names, those of the file
    that was loaded, with its arrays or their shapes: rules lead from these to ours, and several may
    lead to one of ours. A new head has the shape that it has here.

    Raises:
        InputError: if there are rules and no ``like``, or ``like`` lacks a parameter.
    """
    own = {pair.torch: pair.torch_shape for pair in pairs(network)}
    if rules and like is None:
        raise InputError("rules: expected like=, the tensors of PyTorch's file, got none")
    shapes = own if like is None else shapes_of(like)
    for name, shape in shapes.items():
        new = applied(rules, name)
        if isinstance(new, str) and sorted(own.get(new, shape)) != sorted(shape):
            shapes = shapes | {name: own[new]}
    matched = match(network, shapes, rules)
    if lost := [f"{name}: {why}" for name, why in matched.faults.items() if why != UNKNOWN]:
        raise InputError("\n".join(("like: expected the tensors of this network, got", *lost)))
    values = {parameter.name: as_array(parameter) for parameter in network.get_parameters()}
    state = {name: value.copy() for name, value in matched.to_torch(values).items()}
    for name in list(state):
        module, _, attribute = name.rpartition(".")
        if attribute == "running_var":
            state[f"{module}.{COUNTER}".removeprefix(".")] = np.asarray(0, np.int64)
    return state


def convert(
    source: str | os.PathLike,
    target: str | os.PathLike | None,
    network: nn.Cell,
    rules: Sequence[Rule] = (),
    *,
    entry: str | None = None,
    leave: str | None = None,
    like: str | os.PathLike | None = None,
) -> Match:
    """Convert a weights file to one of the other framework, via ``network``.

    From a file of PyTorch to a MindSpore checkpoint; or from a file of MindSpore to PyTorch's
    ``.pth`` or ``.safetensors``, without what is not the network's, such as an optimizer's state.
    ``like`` is then a file with PyTorch's names, to which the rules lead. Errors and arguments are
    those of ``read_torch``, ``load`` and ``state_dict``; without ``target``, all is checked and
    nothing is written.
    """
    tensors = read_torch(source, entry if like is None else None)
    if not tensors.mindspore and like is not None:
        raise InputError(f"like: expected weights of MindSpore to go back from, got {source}")
    if not tensors.mindspore:
        matched = load(network, tensors, rules, leave)
        if target is not None:
            checkpoint.write(network, target)
        return matched
    own = {parameter.name for parameter in network.get_parameters()}
    matched = load(network, {n: tensors[n] for n in tensors if n in own}, (), leave)
    state = state_dict(network, rules, None if like is None else read_torch(like, entry))
    if target is not None:
        write_torch(target, state)
    return matched
