"""Weights from PyTorch into a MindSpore network and back, bit by bit; and the files of both.

Nothing in a file is executed: ``.safetensors`` holds no code, and ``.pth`` is read by PyTorch with
``weights_only=True``, which refuses pickled objects other than tensors and plain containers.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from labkit import checkpoint
from labkit.errors import InputError, refuse_unknown
from labkit.gradients import set_state
from labkit.migration.names import COUNTER, Match, match, pairs

# What trainers call the tensors in a file that also holds other things.
_ENTRIES = ("state_dict", "model_state_dict", "model")
_TORCH, _SAFETENSORS = (".pth", ".pt", ".bin"), (".safetensors",)

State = dict[str, np.ndarray]


def read_torch(path: str | os.PathLike, *, entry: str | None = None, prefix: str = "") -> State:
    """Return the tensors of a PyTorch file as arrays, by name.

    path    ``.safetensors``, or ``.pth``, ``.pt``, ``.bin`` (needs PyTorch)
    entry   which entry of the file holds them, if it holds more; default: the file itself, or the
            one of ``state_dict``, ``model_state_dict``, ``model`` that is there
    prefix  to take off every name, as ``module.`` of ``DataParallel``

    bfloat16 becomes float32, which holds it exactly. Raises ``InputError`` for a file that is not
    there, is damaged, or would have to execute code.
    """
    path = Path(path)
    if path.suffix not in _TORCH + _SAFETENSORS:
        known = ", ".join(_TORCH + _SAFETENSORS)
        raise InputError(f"{path} ends in {path.suffix!r}; expected a file ending in {known}")
    if not path.is_file():
        raise InputError(f"{path} is not there; expected a file of PyTorch weights")
    state = _read_safetensors(path) if path.suffix in _SAFETENSORS else _read_pickle(path, entry)
    wrong = [name for name in state if not name.startswith(prefix)]
    if wrong:
        raise InputError(f"{path}: {wrong[0]} does not begin with the prefix {prefix!r}")
    return {name.removeprefix(prefix): value for name, value in state.items()}


def load(network, state: Mapping, renames: Mapping[str, str] | None = None) -> Match:
    """Put PyTorch's tensors into ``network`` and return the ``Match``.

    state    PyTorch name -> array
    renames  see ``names.pairs``

    Raises ``InputError`` before anything is changed: where a name or shape has no counterpart, a
    value is not finite, or the parameter's type cannot hold every value exactly.
    """
    found = match(network, state, renames)
    if not found.complete:
        raise InputError(f"these tensors are not this network's\n{found}{_prefix_hint(state)}")
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
    """
    values = {parameter.name: parameter.asnumpy() for parameter in network.get_parameters()}
    state: State = {}
    for pair in pairs(network, renames):
        state[pair.torch] = values[pair.mindspore].reshape(pair.torch_shape).copy()
        module, _, attribute = pair.torch.rpartition(".")
        if attribute == "running_var":
            counter = f"{module}.{COUNTER}" if module else COUNTER
            state[counter] = np.asarray((counters or {}).get(counter, 0), np.int64)
    return state


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

    Raises ``InputError`` for a checkpoint that lacks a parameter of ``network``.
    """
    found = checkpoint.read(source)
    counters = {n: int(v) for n, v in found.items() if n.rpartition(".")[2] == COUNTER}
    missing = [p.name for p in network.get_parameters() if p.name not in found]
    if missing:
        raise InputError(f"{source} has no {', '.join(missing)}; is it of another network?")
    for parameter in network.get_parameters():
        set_state(parameter, found[parameter.name].asnumpy())
    return write_torch(target, state_dict(network, renames, counters))


def write_torch(path: str | os.PathLike, state: Mapping) -> Path:
    """Write arrays as PyTorch's file ``path``, whole or not at all; return the path."""
    path = Path(path)
    if path.suffix not in (".pth", ".safetensors"):
        raise InputError(f"{path} ends in {path.suffix!r}; expected .pth or .safetensors")
    temporary = path.with_name(f".{path.name}.part")
    arrays = {name: np.array(value, order="C") for name, value in state.items()}
    try:
        if path.suffix == ".pth":
            torch = _torch(path)
            torch.save({name: torch.from_numpy(value) for name, value in arrays.items()}, temporary)
        else:
            from safetensors.numpy import save_file

            save_file(arrays, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _read_safetensors(path):
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            kinds = {name: file.get_slice(name).get_dtype() for name in names}
            if "BF16" in kinds.values():
                # NumPy has no bfloat16.
                return _read_safetensors_by_torch(path)
            return {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: cut short or damaged ({error})") from error


def _read_safetensors_by_torch(path):
    _torch(path)
    from safetensors.torch import load_file

    return {name: _array(name, tensor) for name, tensor in load_file(path).items()}


def _read_pickle(path, entry):
    import pickle

    torch = _torch(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = found[1] if found else "something"
        raise InputError(
            f"{path} holds {what} besides tensors, or is damaged, and was not read: unpickling it "
            "could execute code. Save its state_dict() alone"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} cannot be read: cut short or damaged ({error})") from error
    return {name: _array(name, tensor) for name, tensor in _tensors(path, content, entry).items()}


def _tensors(path, content, entry):
    """Return the dict of tensors in what a file held."""
    if not isinstance(content, Mapping):
        raise InputError(f"{path} holds a {type(content).__name__}; expected tensors by name")
    if entry is None:
        if content and all(hasattr(value, "detach") for value in content.values()):
            return content
        entry = next((name for name in _ENTRIES if name in content), None)
        if entry is None:
            held = ", ".join(map(str, list(content)[:6])) or "nothing"
            raise InputError(f"{path} holds {held}; name the entry that holds the tensors: entry=")
    refuse_unknown("entry", entry, content)
    tensors = content[entry]
    odd = [name for name, value in dict(tensors).items() if not hasattr(value, "detach")]
    if odd:
        raise InputError(f"{path}: {odd[0]} of {entry} is no tensor")
    return tensors


def _array(name, tensor):
    try:
        tensor = tensor.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            tensor = tensor.float()
        return tensor.numpy()
    except (TypeError, RuntimeError) as error:
        raise InputError(f"{name} is a {tensor.dtype} tensor, not plain numbers") from error


def _torch(path):
    try:
        import torch
    except ImportError as error:
        raise InputError(
            f"{path} needs PyTorch, which is not installed here: install it, or save the weights "
            "as .safetensors where it is (safetensors.torch.save_file(state_dict, path))"
        ) from error
    return torch


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
