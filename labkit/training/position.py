"""Where a training stood when its checkpoint was written, and the validation of a stored position.

No MindSpore import.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from labkit.base.arguments import integer, number, wrong
from labkit.base.input_files import parse_json
from labkit.errors import InputError

_MOST = 2**53 - 1  # the largest count that a float holds, too
_TEXTS = ("rates", "texts", "functions")  # of the optimizer's note: texts by name
_TEXT_BYTES = 16 << 20  # some numbers and names for each Parameter; 2000 of them are 0.5 MB


@dataclass(frozen=True)
class Position:
    """Where a training stood when its checkpoint was written.

    Attributes:
        micro_batches: Batches consumed since the start, over all epochs.
        epoch_size: Batches in one epoch.
        batch_size: Rows in one batch.
        seed: Seed of the data pipeline, which determines the order of the rows.
        workers: Workers of each part of the pipeline, which affect the rows' augmentation.
        seconds: Training time so far.
        records: Rows of the records so far.
        settings: Settings of the step: its class, micro_steps and other options.
        optimizer: ``optimizer_numbers.noted`` when the training began; None in a checkpoint of a
            labkit that did not note it.
        ranks: Number of ranks that trained together; None likewise.
    """

    micro_batches: int
    epoch_size: int
    batch_size: int
    seed: int
    workers: list[int]
    seconds: float
    records: int
    settings: dict
    optimizer: dict | None = None
    ranks: int | None = None


def parse_position(text: str) -> Position:
    """Return the position in a JSON text, with every field checked.

    Raises:
        InputError: If a field is not what ``fit`` writes, naming the field.
    """
    if len(text) > _TEXT_BYTES:
        raise InputError(f"its text has {len(text)} characters; expected at most {_TEXT_BYTES}")
    values = parse_json(text)
    if not isinstance(values, dict):
        raise InputError(f"expected an object, got a {type(values).__name__}")
    known = {field.name for field in fields(Position)}
    if unknown := sorted(values.keys() - known):
        raise InputError(f"it has {unknown[0][:80]!r}, which this labkit does not know")
    if lacking := sorted(known - {"optimizer", "ranks"} - values.keys()):
        raise InputError(f"it lacks {lacking[0]!r}")
    for name, check in _CHECKS.items():
        if values.get(name) is not None or name not in ("optimizer", "ranks"):
            check(name, values[name])
    if values["records"] > values["micro_batches"]:
        raise wrong(
            "records", values["records"], f"at most {values['micro_batches']} micro-batches"
        )
    return Position(**values)


def _count(low: int) -> Callable[[str, Any], int]:
    return lambda name, value: integer(name, value, low, _MOST)


def _workers(name: str, value: Any) -> None:
    if not isinstance(value, list):
        raise wrong(name, value, "a list of integers")
    for count in value:
        integer(name, count, 0, _MOST)


def _settings(name: str, value: Any) -> None:
    """Refuse a value that cannot be a step's settings: texts and numbers by name."""
    if not _is_mapping(value, lambda setting: not isinstance(setting, dict | list)):
        raise wrong(name, value, "texts and numbers by name")
    try:
        per_row = float(value.get("elements_per_row", 1))
    except (TypeError, ValueError, OverflowError):
        per_row = math.nan
    number("settings: elements_per_row", per_row, above=0)


def _note(name: str, value: Any) -> None:
    if not _is_note(value):
        raise wrong(name, value, "the optimizer's numbers by name")


def _is_note(note: Any) -> bool:
    """Return whether ``note`` has the shape of ``optimizer_numbers.noted``."""
    if not isinstance(note, dict):
        return False
    constants = note.get("constants")
    if not isinstance(constants, dict) or not _is_text(constants.get("class")):
        return False
    return (
        all(
            _is_text(value) or _are_numbers(value) or _is_mapping(value, _are_numbers)
            for value in constants.values()
        )
        and _is_mapping(note.get("parameters"), lambda value: value is None or _is_number(value))
        and all(_is_mapping(note.get(name, {}), _is_text) for name in _TEXTS)
        and ("damping" not in note or _is_damping(note["damping"]))
    )


def _is_damping(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and type(value.get("length")) is int
        and 1 <= value["length"] <= _MOST
        and _is_text(value.get("sha256"))
        and all(_is_number(value.get(name)) for name in ("first", "last"))
    )


def _is_number(value: Any) -> bool:
    # NaN and infinity count as numbers. 10**300: a float still holds such an integer.
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**300)


def _are_numbers(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, list) and all(map(_are_numbers, value)))


def _is_mapping(value: Any, check: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(check, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "micro_batches": _count(0),
    "epoch_size": _count(1),
    "batch_size": _count(-1),
    "seed": _count(0),
    "workers": _workers,
    "seconds": lambda name, value: number(name, value, at_least=0),
    "records": _count(0),
    "settings": _settings,
    "optimizer": _note,
    "ranks": _count(1),
}
