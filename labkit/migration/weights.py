"""Weights from PyTorch to a MindSpore network and back, bit by bit, in memory and through files."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from labkit.errors import InputError
from labkit.migration.files import as_array, read_torch, write_torch
from labkit.migration.names import COUNTER, Match, Rule, backwards, match
from labkit.migration.propose import prefix
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
        raise InputError("\n".join(_advice(matched)))
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


def _advice(matched: Match) -> list[str]:
    """Return the lines of the message about names that do not match."""
    lines = ["these tensors are not this network's:", *matched.problems]
    if any(".parametrizations." in f".{name}" for name in matched.shapes):
        undo = 'torch.nn.utils.parametrize.remove_parametrizations(module, "weight")'
        return [f"expected plain weights, got parametrizations: {undo} before saving", *lines[1:]]
    if rule := prefix(matched):
        return [*lines, f"Their prefix is not the network's: {rule}"]
    return [*lines, "labkit.migration.propose(network, state) proposes rules, to be confirmed"]


def state_dict(network: nn.Cell, rules: Sequence[Rule] = ()) -> dict[str, np.ndarray]:
    """Return the parameters of ``network`` under PyTorch's names, ``num_batches_tracked`` as 0.

    bfloat16, which NumPy lacks, becomes float32. The rules are read backwards, see
    ``names.backwards``; with the tensors of PyTorch's file at hand, ``match(network, tensors,
    rules).to_torch`` returns exactly its names and layout.
    """
    values = {parameter.name: as_array(parameter) for parameter in network.get_parameters()}
    state = {n: v.copy() for n, v in backwards(network, rules).to_torch(values).items()}
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
) -> Match:
    """Convert a weights file to one of the other framework, via ``network``.

    From a file of PyTorch to a MindSpore checkpoint; or from a file of MindSpore to PyTorch's
    ``.pth`` or ``.safetensors``, without what is not the network's, such as an optimizer's state.
    Errors and arguments are those of ``read_torch`` and ``load``; without ``target``, all is
    checked and nothing is written.
    """
    tensors = read_torch(source, entry)
    if not tensors.mindspore:
        matched = load(network, tensors, rules, leave)
        if target is not None:
            checkpoint.write(network, target)
        return matched
    own = {parameter.name for parameter in network.get_parameters()}
    matched = load(network, {n: tensors[n] for n in tensors if n in own}, (), leave)
    state = state_dict(network, rules)
    if target is not None:
        write_torch(target, state)
    return matched
