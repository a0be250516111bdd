"""Checkpoints that survive being killed: the whole state of a step, and the place in the data.

A checkpoint is written with a CRC to a temporary name, synced, and renamed; MindSpore's
``save_checkpoint`` deletes the old file before it writes the new one (killed while overwriting
160 MB, it left nothing in 10 of 10 tries).
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import mindspore as ms
from mindspore import Tensor, nn

from labkit.base import arguments, checkpoint_files
from labkit.base.arguments import names_checked
from labkit.base.checkpoint_files import DamagedCheckpoint, Unread
from labkit.base.files import remove_unfinished, whole_file
from labkit.errors import InputError
from labkit.steps.gradients import set_state
from labkit.training.position import Position, parse_position
from labkit.training.rank_state import of_this_rank, own_name

_NAME = re.compile(r"step-(\d{9})\.ckpt")
_POSITION = "labkit_position"

# Called with a position and the values by name; raises to refuse them, and may change the values.
Accept = Callable[[Position, dict], None]


@names_checked
def save(
    step: nn.Cell,
    position: Position,
    folder: str | os.PathLike,
    keep: int = 2,
    of_ranks: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write a checkpoint of ``step`` into ``folder`` and return its path.

    Later checkpoints in the folder are damaged, or the training would have resumed from them: they
    are neither counted nor removed.

    Args:
        step: The step whose Parameters are saved.
        position: Where its training stands.
        folder: Created if it does not exist.
        keep: Number of checkpoints to keep, including this one.
        of_ranks: Values that differ on other ranks, named as by ``rank_state.of_others``.
    """
    folder = arguments.path("folder", folder)
    path = folder / f"step-{position.micro_batches:09d}.ckpt"
    remove_unfinished(folder)  # left by a process killed while it wrote
    write(step, path, {_POSITION: json.dumps(asdict(position)), **(of_ranks or {})})
    until_now = [other for other in checkpoints(folder) if other.name <= path.name]
    for old in until_now[:-keep]:
        old.unlink()
    return path


def write(cell: nn.Cell | list[dict], path: str | os.PathLike, extra: dict | None = None) -> None:
    """Write all Parameters of ``cell``, and ``extra``, to ``path``, completely or not at all.

    ``cell`` may also be a list of names and data, as for ``ms.save_checkpoint``.
    """
    with whole_file(path, "the checkpoint") as temporary:
        ms.save_checkpoint(cell, str(temporary), append_dict=extra, crc_check=True)


def checkpoints(folder: str | os.PathLike) -> list[Path]:
    """Return the checkpoints in ``folder``, oldest first."""
    folder = arguments.path("folder", folder)
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


@names_checked
def load(step: nn.Cell, path: str | os.PathLike, accept: Accept | None = None) -> Position:
    """Load a checkpoint that ``save`` wrote into ``step`` and return its position.

    Args:
        step: The step whose Parameters are set; if the checkpoint is refused, it stays as it was.
        path: The file.
        accept: Called with the position and the values by name; it raises to refuse them, and may
            change the values.

    Raises:
        InputError: For a missing or damaged file and for a checkpoint of another network or step,
            naming what differs.
    """
    values = read(path, step)
    if _POSITION not in values:
        raise InputError(
            f"{path}: expected a checkpoint written by labkit's fit, got one without position"
        )
    try:
        position = parse_position(str(values.pop(_POSITION)))
    except InputError as error:
        raise InputError(
            f"the position in {path} is damaged or of another version of labkit: {error}"
        ) from error
    values = of_this_rank(values)
    if accept is not None:
        accept(position, values)
    load_into(step, values, path)
    return position


@names_checked
def load_latest(
    step: nn.Cell, folder: str | os.PathLike, accept: Accept | None = None
) -> Position | None:
    """Load the newest readable checkpoint of ``folder``; return None if there is no checkpoint.

    A damaged one is skipped with a message; if all are damaged, the last error is raised. Arguments
    and errors as in ``load``.
    """
    error = None
    for path in reversed(checkpoints(folder)):
        try:
            return load(step, path, accept)
        except DamagedCheckpoint as damage:
            print(f"labkit: {damage}; trying the one before it", flush=True)
            error = damage
    if error is not None:
        raise error
    return None


def read(
    path: str | os.PathLike,
    cell: nn.Cell | None = None,
    rename: Callable[[str], str] | None = None,
) -> dict:
    """Return the values of a checkpoint file by name, verified; see ``checkpoint_files.read``.

    Args:
        path: The file.
        cell: Large tensors other than its Parameters are ``Unread``. None: all are read.
        rename: Name in the file -> name of the value.
    """
    expected = None
    if cell is not None:
        expected = {p.name: (p.dtype, p.shape) for p in cell.get_parameters()}
        expected |= {own_name(name): held for name, held in expected.items()}
    # All checkpoints that labkit writes end with a CRC; if it is missing, so is the end.
    need_crc = bool(_NAME.fullmatch(Path(path).name))
    return checkpoint_files.read(path, need_crc, expected, rename)


def load_into(cell: nn.Cell, values: Mapping, origin: object = "the checkpoint") -> None:
    """Set all Parameters of ``cell`` from ``values`` of the same names, shapes and types.

    Raises:
        InputError: If they differ, naming ``origin`` and what differs; nothing is set then.
    """
    parameters = {parameter.name: parameter for parameter in cell.get_parameters()}
    missing = sorted(parameters.keys() - values.keys())
    unknown = sorted(values.keys() - parameters.keys())
    if missing or unknown:
        raise InputError(
            f"{origin} is of another network or step: it lacks {_few(missing)} and holds "
            f"{_few(unknown)} beside what was expected"
        )
    for name, parameter in parameters.items():
        _check(name, values[name], parameter, origin)
    for name, parameter in parameters.items():
        set_state(parameter, values[name])


def _check(name: str, value: str | Tensor | Unread, expected: ms.Parameter, origin: object) -> None:
    if isinstance(value, str):
        raise InputError(f"{origin} is of another network: {name} is a text")
    if value.shape != expected.shape or value.dtype != expected.dtype:
        raise InputError(
            f"{origin} is of another network: {name} is {value.dtype} {value.shape}, expected "
            f"{expected.dtype} {expected.shape}"
        )
    if expected.dtype == ms.bfloat16 and ms.get_context("device_target") == "CPU":
        raise InputError(
            f"{origin} cannot be loaded here: {name} is BFloat16, and MindSpore's CPU assigns "
            "no such Parameter; expected another device, or a network in Float32"
        )


def _few(names: list[str]) -> str:
    if not names:
        return "nothing"
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
