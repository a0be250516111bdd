"""A stored result: how it was made, a row for each training, and curves. No MindSpore import.

README.md in this folder says what the files and their columns are.
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
        curves: run -> its points, dicts of the columns of ``CURVES``
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
    try:
        head = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        rows, points = _read(folder / f"{name}.csv"), _read(folder / f"{name}_curves.csv")
        curves: dict[int, list[dict]] = {}
        for point in points:
            curves.setdefault(point.pop("run"), []).append(point)
    except (OSError, ValueError, TypeError, KeyError) as error:
        made = f"benchmarks/{name}.py makes it"
        raise InputError(f"stored result {name} cannot be read ({error}); {made}") from error
    return Stored(head, rows, curves)


def _read(path: Path) -> list[dict]:
    with path.open(encoding="utf-8", newline="") as file:
        return [{n: _value(text) for n, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> int | float | str | None:
    """Return the number that a field holds, None for an empty one, else its text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text or None
