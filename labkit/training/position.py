"""Where a training stood when its checkpoint was written, and the check of what a file says of it.

No MindSpore import.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

from labkit.base.input_files import parse_json
from labkit.errors import InputError

_LARGEST = 2**53
_TEXTS = ("rates", "texts", "functions")  # of the optimizer's note: texts by name
_TEXT_BYTES = 16 << 20  # some numbers and names for each Parameter; 2000 of them are 0.5 MB


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
    optimizer       numbers of the optimizer as the training began (``optimizer_numbers.noted``)
    ranks           how many trained together

    The last two are None in a checkpoint of a labkit that did not note them.
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
    """Return the position in a JSON text, every field of it checked.

    Raises ``InputError`` naming the field that is not what ``fit`` writes.
    """
    if len(text) > _TEXT_BYTES:
        raise InputError(f"its text has {len(text)} characters; expected at most {_TEXT_BYTES}")
    given = parse_json(text)
    if not isinstance(given, dict):
        raise InputError(f"it is a {type(given).__name__}; expected an object")
    known = {field.name for field in fields(Position)}
    if unknown := sorted(given.keys() - known):
        raise InputError(f"it has {unknown[0][:80]!r}, which this labkit does not know")
    if lacking := sorted(known - {"optimizer", "ranks"} - given.keys()):
        raise InputError(f"it lacks {lacking[0]!r}")
    for name, (check, expected) in _FIELDS.items():
        if name in given and not check(given[name]):
            raise InputError(f"{name} is {repr(given[name])[:80]}; expected {expected}")
    if given["records"] > given["micro_batches"]:
        raise InputError(
            f"records is {given['records']} after {given['micro_batches']} micro-batches; expected "
            "at most as many"
        )
    return Position(**given)


def _is_count(value: Any, low: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value < _LARGEST


def _is_number(value: Any) -> bool:
    # 1e300: an integer that a float holds.
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**300)


def _are_numbers(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, list) and all(map(_are_numbers, value)))


def _is_mapping(value: Any, check) -> bool:
    return isinstance(value, dict) and all(map(check, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_settings(value: Any) -> bool:
    """Return whether ``value`` is a step's settings: texts and numbers by name."""
    if not _is_mapping(value, lambda one: not isinstance(one, dict | list)):
        return False
    try:
        per_row = float(value.get("elements_per_row", 1))
    except (TypeError, ValueError, OverflowError):
        return False
    return 0 < per_row < math.inf


def _is_note(note: Any) -> bool:
    """Return whether ``note`` has the shape of ``optimizer_numbers.noted``, or is None."""
    if note is None:
        return True
    if not isinstance(note, dict):
        return False
    constants, damping = note.get("constants"), note.get("damping")
    if not isinstance(constants, dict) or not _is_text(constants.get("class")):
        return False
    return (
        all(
            _is_text(value) or _are_numbers(value) or _is_mapping(value, _are_numbers)
            for value in constants.values()
        )
        and _is_mapping(note.get("parameters"), lambda value: value is None or _is_number(value))
        and all(_is_mapping(note.get(name, {}), _is_text) for name in _TEXTS)
        and ("damping" not in note or _is_damping(damping))
    )


def _is_damping(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_count(value.get("length"), 1)
        and _is_text(value.get("sha256"))
        and all(_is_number(value.get(name)) for name in ("first", "last"))
    )


_FIELDS = {
    "micro_batches": (_is_count, "an integer from 0 to 2^53"),
    "epoch_size": (lambda value: _is_count(value, 1), "an integer from 1 to 2^53"),
    "batch_size": (lambda value: _is_count(value, -1), "an integer below 2^53"),
    "seed": (_is_count, "an integer from 0 to 2^53"),
    "workers": (lambda value: isinstance(value, list) and all(map(_is_count, value)), "integers"),
    "seconds": (lambda value: _is_number(value) and 0 <= value < math.inf, "a finite number >= 0"),
    "records": (_is_count, "an integer from 0 to 2^53"),
    "settings": (_are_settings, "texts and numbers by name"),
    "optimizer": (_is_note, "the optimizer's numbers by name"),
    "ranks": (lambda value: value is None or _is_count(value, 1), "an integer >= 1"),
}
