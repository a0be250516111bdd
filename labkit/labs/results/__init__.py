"""Stored results of trainings that take an hour, for notebooks that take minutes. No MindSpore.

README.md in this folder says what the files and their columns are. Lists of values are by seed;
accuracies are 0 .. 1.
"""

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.base.arguments import number
from labkit.errors import InputError, refuse_unknown

FOLDER = Path(__file__).resolve().parent
NAMES = ("critical_batch", "token_means") + tuple(
    f"{lab}_race" for lab in ("accumulation", "adasum", "language", "migration", "subspace", "thor")
)
LAYERS = ("conv1", "conv2", "fc1", "fc2", "fc3")


@dataclass(frozen=True)
class Stored:
    """One stored result: how it was made and what was decided, its trainings and their points.

    ``rows`` has a dict per training, in which an empty field is None; ``curves`` is run -> points.
    """

    head: dict
    rows: list[dict]
    curves: dict[int, list[dict]]

    def select(self, **fields: Any) -> list[dict]:
        """Return the rows with these values, by seed; a tuple means any of its values.

        Raises:
            InputError: if a field is unknown, or nothing was trained so.
        """
        for name in fields:
            refuse_unknown("field", name, self.rows[0])
        wanted = {n: v if isinstance(v, tuple) else (v,) for n, v in fields.items()}
        rows = [row for row in self.rows if all(row[n] in wanted[n] for n in wanted)]
        if not rows:
            raise InputError(f"expected a stored setting, got {fields}: it was not raced")
        return sorted(rows, key=lambda row: row["seed"])

    def column(self, name: str, **fields: Any) -> list:
        """Return the values of a column in the rows that ``select`` returns."""
        return [row[name] for row in self.select(**fields)]

    def by(self, field: str, column: str, **fields: Any) -> dict[Any, list]:
        """Return value of ``field`` -> values of ``column``, in the rows with these fields."""
        rows = self.select(**fields)
        values = sorted({row[field] for row in rows})
        return {value: [row[column] for row in rows if row[field] == value] for value in values}


def load(name: str, folder: str | os.PathLike = FOLDER) -> Stored:
    """Return the stored result ``name``, one of ``NAMES``, from a folder: labkit's own by default.

    Raises:
        InputError: if the name is unknown, or a file is missing or damaged.
    """
    refuse_unknown("stored result", name, NAMES)
    folder = Path(folder)
    try:
        head = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        rows, points = _read(folder / f"{name}.csv"), _read(folder / f"{name}_curves.csv")
        curves: dict[int, list[dict]] = {}
        for point in points:
            curves.setdefault(point.pop("run"), []).append(point)
    except (OSError, ValueError, KeyError) as error:
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


# Updates to an accuracy: labs 03 and 04.


def to_accuracy(
    stored: Stored, net: str, optimizer: str, target: float, epochs: float | None = None
) -> dict[str, Any]:
    """Return what an optimizer of thor_race needs for a test accuracy, 0.98, 0.985 or 0.99.

    ``epochs`` is the length of the cosine, of which the best setting counts; None: the winner's.

    Returns:
        ``steps`` to the target, None for a training that never reached it; their ``mean``, None if
        one is None; ``at_least``, the mean in which such a training counts with all its updates;
        ``ms`` of an update; ``seconds``, the mean times ``ms``; and the ``last`` accuracies.
    """
    epochs = epochs or stored.head["tuned"][net][optimizer][0]["epochs"]
    rows = stored.select(stage="race", net=net, optimizer=optimizer, epochs=epochs)
    steps, ms = [row[f"to_{target}"] for row in rows], stored.head["times"][net][optimizer]["ms"]
    mean = None if None in steps else float(np.mean(steps))
    return {
        "steps": steps,
        "mean": mean,
        "at_least": float(np.mean([row[f"to_{target}"] or row["updates"] for row in rows])),
        "ms": ms,
        "seconds": None if mean is None else mean * ms / 1e3,
        "last": [row["last_accuracy"] for row in rows],
    }


def updates_of(stored: Stored, reduction: str) -> dict[int, list[int | None]]:
    """Return images of one update -> updates to critical_batch's target; None: not reached.

    A worker has 32 images. "adasum" uses a single worker's learning rate, "mean" the best rate for
    the number of workers; a single worker is the same for both.
    """
    rates, found = stored.head["tuned"][reduction], {}
    for workers in stored.head["plan"]["workers"]:
        rate = rates["1" if reduction == "adasum" else str(workers)]
        which = {"reduction": reduction if workers > 1 else None, "learning_rate": rate}
        found[32 * workers] = stored.column("to_target", stage="race", workers=workers, **which)
    return found


@dataclass(frozen=True)
class Curve:
    """Updates to an accuracy over the images of one update: S(B) = s_min + e_min / B.

    For small B, doubling the batch halves S; for large B, S is constant. McCandlish et al. 2018,
    arXiv:1812.06162, join the two limits, with E = B S images in all, by

        (S / S_min - 1) (E / E_min - 1) = 1,    so  S(B) = S_min (1 + B_crit / B)

    Attributes:
        s_min: limit of the updates for large B; 0.0: they keep falling as 1 / B
        e_min: limit of the images for small B; 0.0: the updates do not depend on B
    """

    s_min: float
    e_min: float

    @property
    def b_crit(self) -> float:
        """E_min / S_min images, where both are twice their least; 0.0 if flat, or infinite."""
        return self.e_min / self.s_min if self.s_min else math.inf

    def updates(self, batch: float) -> float:
        """Return S at a batch size."""
        return self.s_min + self.e_min / batch


def fit(updates: Mapping[int, Sequence[float | None]]) -> Curve:
    """Fit the curve to measured updates by least squares of the logarithms, and return it.

    ``updates`` is images of one update -> updates to the accuracy, one for each training. A B_crit
    that is 100 times smaller or larger than every measured batch counts as 0 or infinite.

    Raises:
        InputError: if there are fewer than two batch sizes, or a value is not a number above 0,
            such as None for a training that has not reached the accuracy.
    """
    if len(updates) < 2:
        raise InputError(f"updates: expected two batch sizes or more, got {list(updates)}")
    pairs = [
        (math.log(batch), math.log(number("updates", each, above=0)))
        for batch, trainings in updates.items()
        for each in trainings
    ]
    batch, seen = np.array(pairs).T
    # For a given B_crit the best ln S_min is a mean, so the search has one dimension; candidates
    # are less than a thousandth apart for the stored batch sizes.
    crit = np.linspace(batch.min() - math.log(100), batch.max() + math.log(100), 20_000)
    off = seen - np.logaddexp(0, crit[:, None] - batch)
    best = int(off.std(axis=1).argmin())
    if best == 0:
        return Curve(math.exp(seen.mean()), 0.0)
    if best == len(crit) - 1:
        return Curve(0.0, math.exp((seen + batch).mean()))
    s_min = math.exp(off[best].mean())
    return Curve(s_min, s_min * math.exp(crit[best]))
