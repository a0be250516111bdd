"""A stored result: how it was made, a row for each training, and curves. No MindSpore import.

A result NAME is three files of this folder, written by a program under ``benchmarks``:

    NAME.json        the command, the versions, the machine's cores, the date, and what was decided
    NAME.csv         one row per training
    NAME_curves.csv  run (as in NAME.csv), update, accuracy, loss, training_loss; and the columns
                     that ``CURVES`` adds

The programs check that a table agrees with its plan; this module only reads it.
"""

import csv
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import InputError, refuse_unknown

FOLDER = Path(__file__).resolve().parent
CURVE = ("run", "update", "accuracy", "loss", "training_loss")
LAYERS = ("conv1", "conv2", "fc1", "fc2", "fc3")
CURVES = {
    "thor_race": CURVE,
    "adasum_race": CURVE + tuple(f"cosine_{layer}" for layer in LAYERS),
    "subspace_race": CURVE,
    "migration_race": CURVE,
    "critical_batch": CURVE,
    "accumulation_race": (*CURVE, "printed_loss"),
}


@dataclass(frozen=True)
class Stored:
    """One stored result.

    Attributes:
        head: how it was made: ``command``, ``versions``, ``cores``, ``date``; and what was decided
        rows: one dict per training; an empty field is None
        curves: run -> its points, dicts of update, accuracy and loss on the images that judge the
            training (None if it was not judged then), mean training loss since the previous point,
            and the columns that ``CURVES`` adds
    """

    head: dict
    rows: list[dict]
    curves: dict[int, list[dict]]

    def select(self, **fields: Any) -> list[dict]:
        """Return the rows with these field values; raise ``InputError`` for an unknown field."""
        for name in fields:
            refuse_unknown("field", name, self.rows[0])
        return [row for row in self.rows if all(row[n] == value for n, value in fields.items())]


def by_seed(rows: Iterable[dict], setting: object, name: str) -> list[dict]:
    """Return the rows of one setting, by seed; raise ``InputError`` if there is no row."""
    ordered = sorted(rows, key=lambda row: row["seed"])
    if not ordered:
        raise InputError(f"expected a setting of {name}.csv, got {setting}: it was not raced")
    return ordered


def rounded(rate: float) -> float:
    """Return a learning rate rounded to six significant digits, as in the tables."""
    return float(f"{rate:.6g}")


def load(name: str, folder: str | os.PathLike | None = None) -> Stored:
    """Return a stored result.

    Args:
        name: one of ``CURVES``
        folder: folder of its files; None: the files that come with labkit

    Raises:
        InputError: if the name is unknown, or a file is missing or damaged.
    """
    refuse_unknown("stored result", name, CURVES)
    folder = FOLDER if folder is None else Path(folder)
    path = folder / f"{name}.json"
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
        rows = _read_csv(path := folder / f"{name}.csv")
        points = _read_csv(path := folder / f"{name}_curves.csv")
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"stored result {name}: {path.name} cannot be read ({error}); "
            f"benchmarks/{name}.py makes it"
        ) from error
    if not isinstance(head, dict) or not rows or not points or set(points[0]) != set(CURVES[name]):
        raise InputError(
            f"stored result {name} in {folder} is damaged: a file is empty or has another form"
        )
    curves: dict[int, list[dict]] = {}
    for point in points:
        curves.setdefault(point.pop("run"), []).append(point)
    return Stored(head, rows, curves)


def _read_csv(path: Path) -> list[dict]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    if any(None in row or None in row.values() for row in rows):
        raise ValueError("a line has too many fields, or too few")
    return [{name: _value(text) for name, text in row.items()} for row in rows]


def _value(text: str) -> int | float | str | None:
    """Return the number that a field holds, None for an empty one, else its text."""
    if not text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
