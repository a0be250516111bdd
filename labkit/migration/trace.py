"""What PyTorch computed in one training step and around it: what a network is compared with.

``torch_trace`` makes a ``Trace``, ``save`` and ``read`` keep it in a file for where there is no
PyTorch. Every number was computed twice, in float64, the ``value``, and in float32: the difference,
its ``noise``, is what rounding does to this tensor of this network.
"""

import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labkit.base.arguments import local_path
from labkit.base.files import whole_file
from labkit.errors import InputError
from labkit.migration.updates import Update, Updates

Arrays = dict[str, np.ndarray]


class Value(NamedTuple):
    """A tensor in float64, and the largest difference of PyTorch's float32 from it."""

    value: Any  # an array, or what has its ``shape``, ``largest`` and ``distance(array)``
    noise: float = 0.0


@dataclass
class Call:
    """One call of a module."""

    name: str  # the module's path; "#2" behind it for its second call
    kind: str  # the module's class
    settings: dict[str, Any]  # its attributes that are numbers, texts or tuples of them
    leaf: bool  # whether it has no modules of its own
    arguments: Any = None  # of a leaf: (args, kwargs), with float32 or integer arrays
    outputs: list[np.ndarray] = field(default_factory=list)
    gradients: list[np.ndarray | None] = field(default_factory=list)  # of the loss, by output
    alone: dict[str, Value] = field(default_factory=dict)  # of a leaf that gets the arguments
    entry: list[Value] = field(default_factory=list)  # the arguments, from exact outputs before
    exit: list[Value] = field(default_factory=list)  # the outputs, from exact outputs of its parts
    random: str = ""  # where PyTorch differs from itself: "alone", or "before" it


@dataclass
class Trace:
    """What one framework computed."""

    origin: str  # framework, version and precision
    stages: dict[str, dict[str, Value]]  # of the whole step: stage -> name -> value
    batch: Any = None  # (inputs, targets), as given
    calls: dict[str, list[Call]] = field(default_factory=dict)  # "training", "evaluation"
    updates: Updates | None = None  # of the optimizer alone
    losses: list[Value] = field(default_factory=list)  # of several updates on the batch


def tensors(value: Any, is_tensor: Callable[[Any], bool]) -> list:
    """Return the tensors in nested tuples, lists and mappings, in order."""
    if is_tensor(value):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [tensor for part in value for tensor in tensors(part, is_tensor)]


def replaced(value: Any, is_tensor: Callable[[Any], bool], new: Iterator) -> Any:
    """Return the same nest with ``new`` in place of its tensors."""
    if is_tensor(value):
        return next(new)
    if isinstance(value, Mapping):
        copied: Any = copy.copy(value)
        for key, part in value.items():
            copied[key] = replaced(part, is_tensor, new)
        return copied
    if not isinstance(value, tuple | list):
        return value
    parts = [replaced(part, is_tensor, new) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def has_shape(value: Any) -> bool:
    return hasattr(value, "shape")


def called(function: Callable, inputs: Any) -> Any:
    """Call with one tensor, a tuple of them, or a mapping by argument."""
    if isinstance(inputs, Mapping):
        return function(**inputs)
    return function(*inputs) if isinstance(inputs, tuple | list) else function(inputs)


def numbered(name: str, index: int) -> str:
    """Return the name of a tensor among several: ``output``, ``output 2``, ..."""
    return f"{name} {index + 1}" if index else name


def save(path: str | os.PathLike, trace: Trace) -> Path:
    """Write a trace to ``path``, an .npz file of arrays that executes nothing when it is read."""
    path = local_path("path", path)
    arrays: list[np.ndarray] = []

    def encoded(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            arrays.append(np.asarray(value))
            return {"array": len(arrays) - 1}
        if isinstance(value, Value):  # in float32: half a rounding, of 16 that are allowed
            return {"value": encoded(np.asarray(value.value, np.float32)), "noise": value.noise}
        if isinstance(value, Update):
            return {"update": encoded(tuple(value))}
        if isinstance(value, Updates):
            kept = value.kind, value.seed, value.start, value.draws, list(value.run())
            return {"updates": encoded(kept)}
        if isinstance(value, Call):
            return {"call": {f.name: encoded(getattr(value, f.name)) for f in fields(Call)}}
        if isinstance(value, dict):
            return {"dict": [[key, encoded(part)] for key, part in value.items()]}
        if isinstance(value, tuple | list):
            return {type(value).__name__: [encoded(part) for part in value]}
        return value

    content = {f.name: encoded(getattr(trace, f.name)) for f in fields(Trace)}
    with whole_file(path, "the trace") as temporary, Path(temporary).open("wb") as file:
        header = {"header": np.array(json.dumps(content))}
        np.savez_compressed(file, **header, **{str(i): array for i, array in enumerate(arrays)})
    return path


def read(path: str | os.PathLike) -> Trace:
    """Return the trace of a file that ``save`` wrote; ``InputError`` if it is none, or damaged."""
    path = local_path("path", path)
    try:
        with np.load(path, allow_pickle=False) as file:
            content = json.loads(str(file["header"]))
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is no trace of labkit, or damaged ({error})") from error

    def decoded(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "value" in value:
            return Value(decoded(value["value"]), value["noise"])
        ((kind, part),) = value.items()
        if kind == "array":
            return arrays[str(part)]
        if kind == "call":
            return Call(**{name: decoded(own) for name, own in part.items()})
        if kind == "update":
            return Update(*decoded(part))
        if kind == "updates":
            name, seed, start, draws, made = decoded(part)
            return Updates(name, seed, start, draws, lambda: iter(made))
        if kind == "dict":
            return {key: decoded(own) for key, own in part}
        return {"tuple": tuple, "list": list}[kind](map(decoded, part))

    return Trace(**{name: decoded(value) for name, value in content.items()})
