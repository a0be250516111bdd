"""Files of PyTorch weights, read as arrays and written from arrays.

Nothing in a file is executed: ``.safetensors`` holds no code, and ``.pth`` is read by PyTorch with
``weights_only=True``, which refuses pickled objects other than tensors and plain containers. Before
PyTorch 2.6 a file could still execute code (CVE-2025-32434), so older versions are refused.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from labkit.base import arguments
from labkit.base.arguments import names_checked, wrong
from labkit.base.files import whole_file
from labkit.errors import InputError, refuse_unknown

if TYPE_CHECKING:
    import torch

# Entries under which training programs store the tensors in a file that also holds other data.
_ENTRIES = ("state_dict", "model_state_dict", "model")
_SAFE_TORCH = (2, 6)
_TORCH, _SAFETENSORS = (".pth", ".pt", ".bin"), (".safetensors",)

# Type names of .safetensors -> NumPy's.
_KINDS = {
    "BOOL": "?",
    **{"F16": "<f2", "F32": "<f4", "F64": "<f8"},
    **{"I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"},
    **{"U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"},
}

State = dict[str, np.ndarray]


@names_checked
def read_torch(path: str | os.PathLike, *, entry: str | None = None, prefix: str = "") -> State:
    """Return the tensors of a PyTorch file as arrays, by name.

    bfloat16 becomes float32, which holds it exactly.

    Args:
        path: ``.safetensors``, or ``.pth``, ``.pt``, ``.bin`` (needs PyTorch 2.6 or later).
        entry: the entry that holds the tensors, if the file holds more; default: the file itself,
            or the first of ``state_dict``, ``model_state_dict``, ``model`` that exists.
        prefix: prefix to remove from every name, such as ``module.`` of ``DataParallel``.

    Raises:
        InputError: if the file does not exist, is damaged, or would have to execute code, or if
            PyTorch is older than 2.6.
    """
    path = arguments.path("path", path)
    if path.suffix not in _TORCH + _SAFETENSORS:
        known = ", ".join(_TORCH + _SAFETENSORS)
        raise InputError(f"{path}: expected a file ending in {known}, got {path.suffix!r}")
    if not os.path.isfile(path):
        why = "not a regular file" if os.path.exists(path) else "not there"
        raise InputError(f"expected a file of PyTorch weights, got {path}, which is {why}")
    if path.suffix in _SAFETENSORS and entry is not None:
        raise wrong("entry", entry, f"None for {path}, which has no entries, only tensors")
    state = _read_safetensors(path) if path.suffix in _SAFETENSORS else _read_pickle(path, entry)
    others = [name for name in state if not name.startswith(prefix)]
    if others:
        expected = f"what every name in {path} begins with"
        raise wrong("prefix", prefix, expected, f" {others[0]} does not begin with it")
    return {name.removeprefix(prefix): value for name, value in state.items()}


@names_checked
def write_torch(path: str | os.PathLike, state: Mapping) -> Path:
    """Write arrays to the PyTorch file ``path``, completely or not at all; return the path.

    Args:
        path: ``.pth`` (needs PyTorch) or ``.safetensors``; its folder is created if missing.
        state: name -> array.

    Raises:
        InputError: if the name has a different ending, or the file cannot be written.
    """
    path = arguments.path("path", path)
    if path.suffix not in (".pth", ".safetensors"):
        raise InputError(f"{path}: expected .pth or .safetensors, got {path.suffix!r}")
    torch = _torch(path) if path.suffix == ".pth" else None
    arrays = {name: np.array(value, order="C") for name, value in state.items()}
    with whole_file(path, "the weights") as temporary:
        if torch is not None:
            torch.save({n: torch.from_numpy(value) for n, value in arrays.items()}, temporary)
        else:
            from safetensors.numpy import save_file

            save_file(arrays, temporary)
    return path


def _read_safetensors(path: Path) -> State:
    from safetensors import SafetensorError, deserialize

    try:
        entries = deserialize(path.read_bytes())
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read: cut short or damaged ({error})") from error
    return {name: _plain(name, entry) for name, entry in entries}


def _plain(name: str, entry: Mapping) -> np.ndarray:
    """Return one tensor of a .safetensors file as an array."""
    kind = entry["dtype"]
    if kind == "BF16":
        # NumPy has no bfloat16: it is the upper half of a float32.
        upper = np.frombuffer(entry["data"], "<u2").astype(np.uint32)
        return (upper << 16).view(np.float32).reshape(entry["shape"])
    if kind not in _KINDS:
        raise InputError(f"{name}: expected one of BF16, {', '.join(_KINDS)}, got {kind}")
    return np.frombuffer(entry["data"], _KINDS[kind]).reshape(entry["shape"])


def _read_pickle(path: Path, entry: str | None) -> State:
    import pickle

    torch = _torch(path)
    version = str(torch.__version__)
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or tuple(map(int, numbers.groups())) < _SAFE_TORCH:
        raise InputError(
            f"PyTorch is {version}; expected 2.6 or later to read {path}: an older one executes "
            "code in a file with weights_only=True too (CVE-2025-32434). Or save as .safetensors"
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL (\S+)", str(error))
        what = name[1] if name else "something"
        raise InputError(
            f"{path} holds {what} besides tensors, or is damaged, and was not read: unpickling it "
            "could execute code. Save its state_dict() alone"
        ) from error
    except Exception as error:
        # Some of 3000 randomly damaged files made PyTorch raise IndexError, AssertionError,
        # TypeError or struct.error, besides RuntimeError and EOFError.
        raise InputError(f"{path} cannot be read: cut short or damaged ({error})") from error
    tensors = _tensors(path, content, entry)
    return {str(name): _array(name, tensor) for name, tensor in tensors.items()}


def _tensors(path: Path, content: object, entry: str | None) -> Mapping:
    """Return the dict of tensors in the content of a file."""
    if not isinstance(content, Mapping):
        raise InputError(f"{path}: expected tensors by name, got a {type(content).__name__}")
    content = {str(name): value for name, value in content.items()}
    if entry is None:
        if content and all(hasattr(value, "detach") for value in content.values()):
            return content
        entry = next((name for name in _ENTRIES if name in content), None)
        if entry is None:
            held = ", ".join(list(content)[:6]) or "nothing"
            raise InputError(f"{path} holds {held}; name the entry that holds the tensors: entry=")
    refuse_unknown("entry", entry, content)
    tensors = content[entry]
    if not isinstance(tensors, Mapping):
        raise InputError(
            f"{path}: {entry}: expected tensors by name, got a {type(tensors).__name__}"
        )
    odd = [name for name, value in tensors.items() if not hasattr(value, "detach")]
    if odd:
        raise InputError(f"{path}: {odd[0]} of {entry} is not a tensor")
    return tensors


def _array(name: str, tensor: "torch.Tensor") -> np.ndarray:
    try:
        tensor = tensor.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            tensor = tensor.float()
        return tensor.numpy()
    except (TypeError, RuntimeError) as error:
        raise InputError(f"{name} is a {tensor.dtype} tensor, not plain numbers") from error


def _torch(path: Path) -> ModuleType:
    try:
        import torch
    except ImportError as error:
        raise InputError(
            f"{path} needs PyTorch, which is not installed here: install it, or save the weights "
            "as .safetensors where it is (safetensors.torch.save_file(state_dict, path))"
        ) from error
    return torch
