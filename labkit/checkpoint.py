"""Checkpoints that survive being killed: the whole state of a step, and where the data stood.

A checkpoint is written to a temporary name, checked, and renamed; MindSpore's ``save_checkpoint``
deletes the old file before it writes the new one (killed while overwriting 160 MB, it left nothing
in 10 of 10 tries).
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import mindspore as ms

from labkit.errors import InputError
from labkit.gradients import set_state
from labkit.whole_files import remove_unfinished, whole_file

_NAME = re.compile(r"step-(\d{9})\.ckpt")
_POSITION = "labkit_position"


@dataclass(frozen=True)
class Position:
    """Where a training stood when its checkpoint was written.

    micro_batches   batches consumed since the start, over all epochs
    epoch_size      batches in one epoch
    batch_size      rows in one batch
    seed, workers   of the data pipeline: they decide the order and the augmentation of its rows
    seconds         training time so far
    records         rows of the record so far
    settings        of the step: its class, micro_steps and other options
    """

    micro_batches: int
    epoch_size: int
    batch_size: int
    seed: int
    workers: list[int]
    seconds: float
    records: int
    settings: dict


def save(step, position: Position, folder, keep=2) -> Path:
    """Write a checkpoint of ``step`` into ``folder``, keep the newest ``keep``, return its path."""
    folder = Path(folder)
    path = folder / f"step-{position.micro_batches:09d}.ckpt"
    remove_unfinished(folder)  # of a process killed while it wrote
    write(step, path, {_POSITION: json.dumps(asdict(position))})
    for old in checkpoints(folder)[:-keep]:
        old.unlink()
    return path


def write(cell, path, extra=None) -> None:
    """Write all Parameters of ``cell`` to ``path``: complete, or not at all."""
    with whole_file(path, "the checkpoint") as temporary:
        ms.save_checkpoint(cell, str(temporary), append_dict=extra, crc_check=True)


def checkpoints(folder) -> list[Path]:
    """Return the checkpoints in ``folder``, oldest first."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def load(step, path, accept=None) -> Position:
    """Load a checkpoint that ``save`` wrote into ``step`` and return its position.

    accept  function of the position that raises to refuse it

    Raises ``InputError`` for a missing or damaged file and for a checkpoint of another network or
    step, naming what differs; ``step`` is then as it was.
    """
    values = read(path)
    if _POSITION not in values:
        raise InputError(f"{path} holds no position; expected a checkpoint written by labkit's fit")
    try:
        position = Position(**json.loads(str(values.pop(_POSITION))))
    except (TypeError, ValueError) as error:
        raise InputError(f"the position in {path} is of another version of labkit") from error
    if accept is not None:
        accept(position)
    load_into(step, values, path)
    return position


def load_latest(step, folder, accept=None) -> Position | None:
    """Load the newest readable checkpoint of ``folder``, or return None where there is none.

    accept  as in ``load``

    A damaged one is passed over, and said; if all are damaged the last error is raised.
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


class DamagedCheckpoint(InputError):
    """A checkpoint file that cannot be read to its end."""


def read(path) -> dict:
    """Return the values of a checkpoint file by name, verified by its CRC."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no checkpoint at {path}")
    try:
        return ms.load_checkpoint(str(path), crc_check=True)
    except Exception as error:  # MindSpore raises ValueError, RuntimeError and others here
        raise DamagedCheckpoint(f"the checkpoint {path} is damaged and cannot be read") from error


def load_into(cell, values: dict, origin="the checkpoint") -> None:
    """Set all Parameters of ``cell`` from ``values``: the same names, shapes and types."""
    own = {parameter.name: parameter for parameter in cell.get_parameters()}
    missing, unknown = sorted(own.keys() - values.keys()), sorted(values.keys() - own.keys())
    if missing or unknown:
        raise InputError(
            f"{origin} is of another network or step: it lacks {_few(missing)} and holds "
            f"{_few(unknown)} beside what was expected"
        )
    for name, parameter in own.items():
        came, expected = values[name], parameter
        if came.shape != expected.shape or came.dtype != expected.dtype:
            raise InputError(
                f"{origin} is of another network: {name} is {came.dtype} {came.shape}, expected "
                f"{expected.dtype} {expected.shape}"
            )
        if expected.dtype == ms.bfloat16 and ms.get_context("device_target") == "CPU":
            raise InputError(
                f"{origin} cannot be loaded here: {name} is BFloat16, and MindSpore's CPU assigns "
                "no such Parameter; expected another device, or a network in Float32"
            )
    for name, parameter in own.items():
        set_state(parameter, values[name])


def _few(names):
    if not names:
        return "nothing"
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
