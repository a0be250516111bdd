"""Weights files as tensors by name, each read when it is needed; and PyTorch's written whole.

What a file is follows from its content, not from its ending. Nothing in it is executed:
``.safetensors`` holds no code, and PyTorch reads its own with ``weights_only=True``. Before PyTorch
2.6 a file could still execute code (CVE-2025-32434), so older versions are refused.
"""

import argparse
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import mindspore as ms
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from labkit.base.arguments import local_path, wrong
from labkit.base.files import whole_file
from labkit.errors import InputError, refuse_unknown, warn
from labkit.training import checkpoint

# Entries under which training programs store the tensors in a file that also holds other data.
_ENTRIES = ("state_dict", "model_state_dict", "model")
# Type names of .safetensors -> NumPy's. NumPy has no bfloat16: it is the upper half of a float32.
_KINDS = {"BOOL": "?", "BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
_KINDS |= {f"{sign}{8 * size}": f"<{sign.lower()}{size}" for sign in "IU" for size in (1, 2, 4, 8)}
_TYPES = "bool bfloat16 float16 float32 float64 uint8 int8 int16 int32 int64".split()
_ENDINGS = (".safetensors", ".bin", ".pth", ".pt", ".ckpt")

Shapes = dict[str, tuple[int, ...]]


class Tensors(Mapping[str, np.ndarray]):
    """Arrays by name, each read from its file on access; bfloat16 becomes float32.

    Attributes:
        shapes: by name, known without reading.
        mindspore: whether MindSpore wrote the file, under its own names.
    """

    def __init__(self, shapes: Shapes, read: Callable[[str], np.ndarray], mindspore: bool = False):
        self.shapes, self._read, self.mindspore = shapes, read, mindspore

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.shapes:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def read_torch(path: str | os.PathLike, entry: str | None = None) -> Tensors:
    """Return the tensors of a weights file, read one by one as they are needed.

    Args:
        path: a file of PyTorch (2.6 or later must be installed), safetensors or MindSpore, the
            ``index.json`` of several, or a folder that holds one of these.
        entry: the entry of PyTorch's file that holds the tensors, ``state.model`` for one within
            another; default: the file itself, or the first of ``state_dict``,
            ``model_state_dict``, ``model`` that exists.

    Raises:
        InputError: if the file does not exist, is damaged, or would have to execute code.
    """
    path = local_path("path", path)
    path = _in_folder(path) if path.is_dir() else path
    if not path.is_file():
        raise InputError(f"{path} is not there or not a regular file; expected weights")
    with open(path, "rb") as file:
        head = file.read(9)
    if head.startswith((b"PK", b"\x80")) and head[8:] != b"{":
        return _pickled(path, entry, mapped=head.startswith(b"PK"))
    if entry is not None:
        raise InputError(f"entry={entry!r}: {path} has no entries; only a file of PyTorch's has")
    if head[8:] == b"{":  # after eight bytes of its header's length
        return _safetensors(path)
    if head.startswith(b"{"):
        return _shards(path)
    if not head.startswith(b"\n"):
        raise InputError(f"{path} is damaged, or no file of PyTorch, safetensors or MindSpore")
    if path.suffix != ".ckpt":
        raise InputError(f"{path} is damaged, or MindSpore's: then its name must end in .ckpt")
    values = checkpoint.read(path)
    return Tensors(
        {name: tuple(value.shape) for name, value in values.items() if hasattr(value, "asnumpy")},
        lambda name: as_array(values[name]),
        mindspore=True,
    )


def as_array(tensor: ms.Tensor) -> np.ndarray:
    """Return a Tensor's values; bfloat16, which NumPy lacks, as float32."""
    return np.asarray(tensor.asnumpy(), np.float32 if tensor.dtype == ms.bfloat16 else None)


def _in_folder(folder: Path) -> Path:
    """Return the index, or else the weights file, of which a folder holds one."""
    files = sorted(folder.glob("*.index.json"))
    files = files or sorted(path for path in folder.iterdir() if path.suffix in _ENDINGS)
    if len(files) != 1:
        held = ", ".join(path.name for path in files) or "none"
        raise InputError(f"{folder}: expected one index.json or one weights file, got {held}")
    return files[0]


def _shards(index: Path) -> Tensors:
    """Return the tensors of all files that an index lists."""
    try:
        files = json.loads(index.read_text("utf-8"))["weight_map"]
        paths = {file: index.with_name(file) for file in files.values()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index} is damaged, or no index: expected a weight_map") from error
    # An index that lists itself would be read for ever.
    if bad := sorted(
        f for f, path in paths.items() if path.suffix == ".json" or not path.is_file()
    ):
        raise InputError(f"{index} lists files that are not there, or no weights: {', '.join(bad)}")
    shards = {file: read_torch(path) for file, path in paths.items()}
    if lost := [name for name, file in files.items() if name not in shards[file]]:
        raise InputError(f"{index}: {files[lost[0]]} lacks {lost[0]} ({len(lost)} in all)")
    shapes = {name: shards[file].shapes[name] for name, file in files.items()}
    return Tensors(shapes, lambda name: shards[files[name]][name])


def _safetensors(path: Path) -> Tensors:
    try:
        with safe_open(path, "numpy") as file:  # checks the header and the length of the file
            written = file.metadata() or {}
        with open(path, "rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(start - 8))
        header.pop("__metadata__", None)
        kinds = {name: np.dtype(_KINDS[entry["dtype"]]) for name, entry in header.items()}
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise InputError(f"{path} is cut short, damaged or of an unknown type ({error})") from error
    shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}

    def read(name: str) -> np.ndarray:
        offset, count = start + header[name]["data_offsets"][0], math.prod(shapes[name])
        value = np.fromfile(path, kinds[name], count, offset=offset)
        if header[name]["dtype"] == "BF16":
            value = (value.astype(np.uint32) << 16).view(np.float32)
        return value.reshape(shapes[name])

    mindspore = written.get("format") == "ms" or "labkit_position" in written
    return Tensors(shapes, read, mindspore)


def _pickled(path: Path, entry: str | None, mapped: bool) -> Tensors:
    torch = _torch(path)
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < (2, 6):
        found = f"PyTorch is {torch.__version__}; expected 2.6 or later to read {path}"
        raise InputError(f"{found}: an older one executes code in it (CVE-2025-32434)")
    scalar = np.float64(0).__reduce__()[0]
    names = [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    kinds = {type(np.dtype(kind)) for kind in "?bBhHiIlLqQefd"}
    try:
        with torch.serialization.safe_globals([argparse.Namespace, np.dtype, *names, *kinds]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    # A damaged file makes PyTorch raise almost any error, besides UnpicklingError for code.
    except Exception as error:
        why = "it is damaged, or holds more than tensors, and unpickling that could execute code"
        raise InputError(f"{path}: {why}. Save its state_dict() alone ({error})") from error
    tensors = {str(name): value for name, value in _entry(path, content, entry).items()}
    for name, value in tensors.items():
        kind = str(value.dtype).removeprefix("torch.")
        if kind not in _TYPES or str(value.layout) != "torch.strided" or value.is_meta:
            expected = f"dense tensors of {', '.join(_TYPES)}"
            raise InputError(f"{path}: expected {expected}, got {name}, {kind} {value.layout}")

    def read(name: str) -> np.ndarray:
        value = tensors[name].detach()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()

    return Tensors({name: tuple(value.shape) for name, value in tensors.items()}, read)


def _entry(path: Path, content: Any, entry: str | None) -> Mapping:
    """Return the tensors in an entry of a file's content; warn of averages beside the default."""
    if entry is not None:
        for part in entry.split("."):
            entries = map(str, content) if isinstance(content, Mapping) else ()
            refuse_unknown(f"entry= of {path}", part, entries)
            content = content[part]
    elif isinstance(content, Mapping) and not _are_tensors(content):
        entry = next((name for name in _ENTRIES if name in content), None)
        if entry is None:
            held = ", ".join(map(str, content)) or "nothing"
            raise InputError(f"{path} holds {held}; name the entry that holds the tensors: entry=")
        if averaged := [name for name in content if re.search("(^|_)ema(_|$)", str(name))]:
            other = f"averaged weights are there too, entry={averaged[0]!r}"
            warn(f"{path}: {entry!r} is read; {other}")
        content = content[entry]
    if not _are_tensors(content):
        raise InputError(f"{path}: expected tensors by name, got a {type(content).__name__}")
    return content


def _are_tensors(content: Any) -> bool:
    values = content.values() if isinstance(content, Mapping) else ()
    return bool(values) and all(hasattr(value, "detach") for value in values)


def write_torch(path: str | os.PathLike, state: Mapping) -> Path:
    """Write arrays by name to ``path``, a ``.pth`` (needs PyTorch) or ``.safetensors`` file."""
    path = local_path("path", path)
    if path.suffix not in (".pth", ".safetensors"):
        raise wrong("path", str(path), "a name ending in .pth, .safetensors")
    arrays = {name: np.asarray(value, order="C") for name, value in state.items()}
    torch = _torch(path) if path.suffix == ".pth" else None
    with whole_file(path, "the weights") as temporary:
        if torch is None:
            save_file(arrays, temporary)
        else:
            torch.save({n: torch.from_numpy(value) for n, value in arrays.items()}, temporary)
    return path


def _torch(path: Path) -> ModuleType:
    try:
        import torch
    except ImportError as error:
        instead = "install it, or save as .safetensors where it is (safetensors.torch.save_file)"
        raise InputError(f"{path} needs PyTorch, which is not installed here: {instead}") from error
    return torch
