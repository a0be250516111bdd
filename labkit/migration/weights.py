"""Weights from PyTorch to a MindSpore network and back, bit by bit, in memory and through files.

Nothing in a file is executed: ``.safetensors`` holds no code, and ``.pth`` is read by PyTorch with
``weights_only=True``. Before PyTorch 2.6 a file could still execute code (CVE-2025-32434), so older
versions are refused.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import mindspore as ms
import numpy as np
from mindspore import nn
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save_file

from labkit.base.arguments import local_path, wrong
from labkit.base.files import whole_file
from labkit.errors import InputError, refuse_unknown
from labkit.migration.names import COUNTER, Match, Rule, match, pairs
from labkit.steps.state import set_state
from labkit.training import checkpoint

# Entries under which training programs store the tensors in a file that also holds other data.
_ENTRIES = ("state_dict", "model_state_dict", "model")
# Type names of .safetensors -> NumPy's. NumPy has no bfloat16: it is the upper half of a float32.
_KINDS = {"BOOL": "?", "BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
_KINDS |= {f"{sign}{8 * size}": f"<{sign.lower()}{size}" for sign in "IU" for size in (1, 2, 4, 8)}

State = dict[str, np.ndarray]


def load(
    network: nn.Cell, state: Mapping, rules: Sequence[Rule] = (), leave: str | None = None
) -> Match:
    """Load PyTorch's tensors, arrays by name, into ``network`` and return the ``Match``.

    ``rules`` and ``leave`` are those of ``names.match``.

    Raises:
        InputError: if a name or shape has no counterpart, a value is not finite, or the
            parameter's type cannot hold every value exactly; the network is then unchanged.
    """
    matched = match(network, state, rules, leave)
    if matched.problems:
        raise InputError("\n".join(("these tensors are not this network's:", *matched.problems)))
    parameters = {parameter.name: parameter for parameter in network.get_parameters()}
    values: State = {}
    for pair, source in matched.links:
        value, parameter = source.of(state), parameters[pair.mindspore]
        kind = parameter.asnumpy().dtype
        name = " and ".join(source.torch)
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise InputError(f"{name} holds NaN or infinite values")
        with np.errstate(over="ignore"):
            fitted = value.astype(kind)
        if not np.array_equal(fitted.astype(value.dtype), value):
            why = f"{value.dtype} that {kind} cannot hold without rounding"
            raise InputError(f"{name}: {why}")
        fitted = fitted.reshape(pair.shape)
        if not np.array_equal(values.setdefault(pair.mindspore, fitted), fitted):
            raise InputError(f"{name} shares its parameter with another name and differs")
    for name, value in values.items():
        set_state(parameters[name], value)
    return matched


def state_dict(network: nn.Cell) -> State:
    """Return the parameters of ``network`` under PyTorch's names, ``num_batches_tracked`` as 0.

    bfloat16, which NumPy lacks, becomes float32.
    """
    values = {
        p.name: np.asarray(p.asnumpy(), np.float32 if p.dtype == ms.bfloat16 else None)
        for p in network.get_parameters()
    }
    state: State = {}
    for pair in pairs(network):
        state[pair.torch] = values[pair.mindspore].reshape(pair.torch_shape).copy()
        module, _, attribute = pair.torch.rpartition(".")
        if attribute == "running_var":
            state[f"{module}.{COUNTER}".removeprefix(".")] = np.asarray(0, np.int64)
    return state


def read_torch(path: str | os.PathLike, *, entry: str | None = None, prefix: str = "") -> State:
    """Return the tensors of a PyTorch file as arrays, by name; bfloat16 becomes float32.

    Args:
        path: ``.safetensors``, or ``.pth``, ``.pt``, ``.bin`` (needs PyTorch 2.6 or later).
        entry: the entry of a ``.pth`` that holds the tensors; default: the file itself, or the
            first of ``state_dict``, ``model_state_dict``, ``model`` that exists.
        prefix: prefix to remove from every name, such as ``module.`` of ``DataParallel``.

    Raises:
        InputError: if the file does not exist, is damaged, or would have to execute code.
    """
    path = local_path("path", path)
    if path.suffix not in (".pth", ".pt", ".bin", ".safetensors"):
        raise wrong("path", str(path), "a name ending in .pth, .pt, .bin, .safetensors")
    if not path.is_file():
        raise InputError(f"{path} is not there or not a regular file; expected PyTorch weights")
    state = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path, entry)
    if others := [name for name in state if not name.startswith(prefix)]:
        raise InputError(f"prefix: {others[0]} of {path} does not begin with {prefix!r}")
    return {name.removeprefix(prefix): value for name, value in state.items()}


def write_torch(path: str | os.PathLike, state: Mapping) -> Path:
    """Write arrays by name to ``path``, a ``.pth`` (needs PyTorch) or ``.safetensors`` file."""
    path = local_path("path", path)
    if path.suffix not in (".pth", ".safetensors"):
        raise wrong("path", str(path), "a name ending in .pth, .safetensors")
    arrays = {name: np.array(value, order="C") for name, value in state.items()}
    torch = _torch(path) if path.suffix == ".pth" else None
    with whole_file(path, "the weights") as temporary:
        if torch is None:
            save_file(arrays, temporary)
        else:
            torch.save({n: torch.from_numpy(value) for n, value in arrays.items()}, temporary)
    return path


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

    The checkpoint also holds the counters of BatchNorm, under their own names. Errors and the other
    arguments are those of ``read_torch`` and ``load``.
    """
    state = read_torch(source, entry=entry, prefix=prefix)
    matched = load(network, state, renames)
    checkpoint.write(network, target, extra={name: int(state[name]) for name in matched.carried})
    return matched


def convert_back(
    source: str | os.PathLike,
    target: str | os.PathLike,
    network: nn.Cell,
    renames: Mapping[str, str] | None = None,
) -> Path:
    """Convert the MindSpore checkpoint ``source`` to the PyTorch file ``target``; return its path.

    The weights are loaded into ``network``: ``InputError`` if one is missing or has another shape.
    Other entries of the checkpoint, such as an optimizer's, are left out.
    """
    saved = checkpoint.read(source)
    own = {parameter.name for parameter in network.get_parameters()}
    checkpoint.load_into(network, {n: v for n, v in saved.items() if n in own}, source)
    state = state_dict(network, renames)
    for name in saved.keys() & state.keys():
        if name.endswith(COUNTER):
            state[name] = np.asarray(int(saved[name].asnumpy().item()), np.int64)
    return write_torch(target, state)


def _read_safetensors(path: Path) -> State:
    state = {}
    try:
        for name, entry in deserialize(path.read_bytes()):
            value = np.frombuffer(entry["data"], _KINDS[entry["dtype"]])
            if entry["dtype"] == "BF16":
                value = (value.astype(np.uint32) << 16).view(np.float32)
            state[name] = value.reshape(entry["shape"])
    except (SafetensorError, OSError, KeyError) as error:
        raise InputError(f"{path} is cut short, damaged or of an unknown type ({error})") from error
    return state


def _read_pickle(path: Path, entry: str | None) -> State:
    torch = _torch(path)
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < (2, 6):
        found = f"PyTorch is {torch.__version__}; expected 2.6 or later to read {path}"
        raise InputError(f"{found}: an older one executes code in it (CVE-2025-32434)")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    # A damaged file makes PyTorch raise almost any error, besides UnpicklingError for code.
    except Exception as error:
        why = "it is damaged, or holds more than tensors, and unpickling that could execute code"
        raise InputError(f"{path}: {why}. Save its state_dict() alone ({error})") from error
    if isinstance(content, Mapping) and (entry or not _are_tensors(content)):
        entry = entry or next((name for name in _ENTRIES if name in content), None)
        if entry is None:
            held = ", ".join(map(str, content)) or "nothing"
            raise InputError(f"{path} holds {held}; name the entry that holds the tensors: entry=")
        refuse_unknown(f"entry= of {path}", entry, map(str, content))
        content = content[entry]
    if not _are_tensors(content):
        raise InputError(f"{path}: expected tensors by name, got a {type(content).__name__}")
    floats = {n: t.float() if t.dtype == torch.bfloat16 else t for n, t in content.items()}
    return {str(name): tensor.detach().numpy() for name, tensor in floats.items()}


def _are_tensors(content: object) -> bool:
    values = content.values() if isinstance(content, Mapping) else ()
    return bool(values) and all(hasattr(value, "detach") for value in values)


def _torch(path: Path) -> ModuleType:
    try:
        import torch
    except ImportError as error:
        instead = "install it, or save as .safetensors where it is (safetensors.torch.save_file)"
        raise InputError(f"{path} needs PyTorch, which is not installed here: {instead}") from error
    return torch
