"""Checkpoints of a training, as safetensors files, and MindSpore's ``.ckpt`` files.

A training's own holds every Parameter of its step and, as metadata, its ``Position``. Both are
written to a temporary name, synced, and renamed: MindSpore's ``save_checkpoint`` deletes the old
file first (killed while overwriting 160 MB, it left nothing in 10 of 10 tries).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from labkit.base.arguments import local_path
from labkit.base.files import remove_unfinished, whole_file
from labkit.errors import InputError
from labkit.steps.state import set_state

CHECKPOINTS = "checkpoint"
_PATTERN = f"step-{'[0-9]' * 9}.safetensors"
_POSITION = "labkit_position"


@dataclass(frozen=True)
class Position:
    """Where a training stood when its checkpoint was written."""

    micro_batches: int  # since the start, over all epochs
    updates: int
    seconds: float  # of training
    records: int  # rows
    settings: dict[str, Any]  # that a resumed training must share, of resume.settings_of


def save(cell: nn.Cell, position: Position, folder: str | os.PathLike) -> Path:
    """Write all Parameters of ``cell`` into a checkpoint in ``folder``; return its path."""
    path = Path(folder) / f"step-{position.micro_batches:09d}.safetensors"
    values = {p.name: np.asarray(p.asnumpy()) for p in cell.get_parameters()}
    with whole_file(path, "the checkpoint") as temporary:
        save_file(values, temporary, {_POSITION: json.dumps(asdict(position))})
    return path


def keep_newest(folder: str | os.PathLike, keep: int, until: Path) -> None:
    """Remove all checkpoints in ``folder`` but the ``keep`` that end with ``until``.

    Later ones are damaged, or not on every rank, else the training would have resumed there.
    """
    paths = checkpoints(folder)
    kept = [path for path in paths if path.name <= until.name][-keep:]
    for path in set(paths).difference(kept):
        path.unlink()
    remove_unfinished(folder)  # left by a process that was killed while it wrote


def checkpoints(folder: str | os.PathLike) -> list[Path]:
    """Return the checkpoints in ``folder``, oldest first."""
    return sorted(Path(folder).glob(_PATTERN))


def readable(folder: str | os.PathLike) -> dict[int, Path]:
    """Return number of micro-batches -> checkpoint for ``folder``; print which are damaged."""
    found = {}
    for path in checkpoints(folder):
        try:
            _position(path)
            found[int(path.stem[-9:])] = path
        except InputError as error:
            print(f"labkit: {error}; it is passed over", flush=True)
    return found


def load(path: str | os.PathLike) -> tuple[Position, dict[str, np.ndarray]]:
    """Return the position and the values by name of a checkpoint that ``save`` wrote."""
    return _position(path), load_file(path)


def _position(path: str | os.PathLike) -> Position:
    if not Path(path).is_file():
        raise InputError(f"no checkpoint at {path}")
    try:
        with safe_open(path, "numpy") as file:  # checks the length of the file
            return Position(**json.loads(file.metadata()[_POSITION]))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged or no checkpoint of labkit's fit") from error


def write(cell: nn.Cell | list[dict], path: str | os.PathLike, extra: dict | None = None) -> None:
    """Write all Parameters of ``cell``, and ``extra``, to a ``.ckpt`` file of MindSpore's.

    ``cell`` may also be a list of names and data, as for ``ms.save_checkpoint``.
    """
    with whole_file(path, "the checkpoint") as temporary:
        ms.save_checkpoint(cell, str(temporary), append_dict=extra, crc_check=True)


def read(path: str | os.PathLike) -> dict[str, Any]:
    """Return the values by name of a ``.ckpt`` file or of a training's own checkpoint."""
    path = local_path("path", path)
    if path.suffix == ".safetensors":
        return {name: ms.Parameter(Tensor(value), name) for name, value in load(path)[1].items()}
    if not path.is_file():
        raise InputError(f"no checkpoint at {path}")
    try:
        return ms.load_checkpoint(str(path), crc_check=True)
    except Exception as error:  # MindSpore raises a different one for each kind of damage
        raise InputError(f"the checkpoint {path} is damaged and cannot be read") from error


def load_into(cell: nn.Cell, values: Mapping, origin: object = "the checkpoint") -> None:
    """Set all Parameters of ``cell`` from ``values`` of the same names, shapes and types.

    Raises:
        InputError: If they differ, naming ``origin`` and what differs; nothing is set then.
    """
    parameters = {parameter.name: parameter for parameter in cell.get_parameters()}
    tensors = {n: Tensor(v) if isinstance(v, np.ndarray) else v for n, v in values.items()}
    own, given = ({n: _form(v) for n, v in held.items()} for held in (parameters, tensors))
    if differing := sorted(n for n in own.keys() | given.keys() if own.get(n) != given.get(n)):
        named = [
            f"{n}: expected {own.get(n, 'nothing')}, got {given.get(n, 'nothing')}"
            for n in differing[:3]
        ]
        raise InputError(
            f"{origin} is of another network or step: {'; '.join(named)} ({len(differing)} in all)"
        )
    for name, parameter in parameters.items():
        set_state(parameter, tensors[name])


def _form(value: Any) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, Tensor) else repr(value)
