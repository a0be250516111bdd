"""A stored result, and what notebooks and benchmarks select from each race.

Lists of values are by seed; accuracies are 0 .. 1, on the test set unless README.md says otherwise.
"""

import csv
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.base.arguments import number
from labkit.errors import InputError, refuse_unknown

FOLDER = Path(__file__).resolve().parent
CURVE = ("run", "update", "accuracy", "loss", "training_loss")
LAYERS = ("conv1", "conv2", "fc1", "fc2", "fc3")


def rounded(rate: float) -> float:
    """Return a learning rate rounded to six significant digits, as in the tables."""
    return float(f"{rate:.6g}")


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
        """Return the rows with these values; a tuple means any of its values."""
        for name in fields:
            refuse_unknown("field", name, self.rows[0])
        wanted = {n: v if isinstance(v, tuple) else (v,) for n, v in fields.items()}
        return [row for row in self.rows if all(row[n] in wanted[n] for n in wanted)]

    def of(self, **fields: Any) -> list[dict]:
        """Return the rows with these values, by seed; ``InputError`` if nothing was trained so."""
        rows = sorted(self.select(**fields), key=lambda row: row["seed"])
        if not rows:
            raise InputError(f"expected a stored setting, got {fields}: it was not raced")
        return rows

    def column(self, name: str, **fields: Any) -> list:
        """Return the values of a column in the rows ``of`` these fields."""
        refuse_unknown("column", name, self.rows[0])
        return [row[name] for row in self.of(**fields)]

    def values(self, field: str, **fields: Any) -> list:
        """Return the different values of a field, in order, in the rows with these fields."""
        return sorted({row[field] for row in self.of(**fields)} - {None})


# Lab 03: THOR and Momentum.


def steps_to(curve: Iterable[Mapping], target: float) -> int | None:
    """Return the update of the first point with at least ``target`` accuracy, or None.

    A curve is judged at intervals of several updates; the number is rounded up to such an update.
    """
    judged = (point for point in curve if point["accuracy"] is not None)
    return next((point["update"] for point in judged if point["accuracy"] >= target), None)


def mean_steps(steps: Iterable[int | None]) -> float | None:
    """Return the mean over trainings; None without trainings, or if one missed the target."""
    steps = list(steps)
    known = [step for step in steps if step is not None]
    return sum(known) / len(known) if known and len(known) == len(steps) else None


class ThorRace(Stored):
    """Test accuracy over the updates and seconds of THOR and Momentum."""

    def compare(
        self, net: str, target: float, epochs: Mapping[str, float] | None = None
    ) -> dict[str, dict]:
        """Return what each optimizer needs for an accuracy.

        Args:
            net: "LeNet" or "ResNet"
            target: test accuracy
            epochs: optimizer -> length of the cosine in epochs, to select its best setting of that
                length; an optimizer without an entry uses the winner of the tuning

        Returns:
            optimizer -> ``setting``, what it was trained with; ``steps`` to the target, None for a
            training that never reached it; their ``mean``, None if one is None; ``at_least``, the
            mean in which such a training counts with all its updates; ``seconds``, the mean times
            ``ms`` of an update, with refreshes, in turns; ``last`` accuracies.
        """
        sides = {}
        for optimizer, raced in self.head["tuned"][net].items():
            length = (epochs or {}).get(optimizer, raced[0]["epochs"])
            rows = self.of(stage="race", net=net, optimizer=optimizer, epochs=length)
            steps = [steps_to(self.curves[row["run"]], target) for row in rows]
            bounds = [step or row["updates"] for step, row in zip(steps, rows, strict=True)]
            mean, ms = mean_steps(steps), self.head["times"][net][optimizer]["ms"]
            sides[optimizer] = {
                "setting": next(each for each in raced if each["epochs"] == length),
                "steps": steps,
                "mean": mean,
                "at_least": mean_steps(bounds),
                "seconds": None if mean is None else mean * ms / 1e3,
                "ms": ms,
                "last": [row["last_accuracy"] for row in rows],
            }
        return sides


# Lab 02: PyTorch and MindSpore train the same network.

FRAMEWORKS = ("PyTorch", "MindSpore")
AVX2 = "PyTorch, AVX2"


class MigrationRace(Stored):
    """Validation accuracy and losses of both frameworks; order is "given" or "backwards"."""

    def accuracies(self, framework: str) -> list[float]:
        """Return validation accuracies after the last epoch."""
        return self.column("last_accuracy", framework=framework, order="given")

    def gap_and_spread(self) -> tuple[float, float]:
        """Return the gap between the mean accuracies, and the smaller spread over seeds."""
        ends = [self.accuracies(framework) for framework in FRAMEWORKS]
        ours, theirs = (sum(each) / len(each) for each in ends)
        return abs(ours - theirs), min(max(each) - min(each) for each in ends)

    def loss_differences(self, seed: int, framework: str, order: str = "given") -> list[float]:
        """Return |loss - PyTorch's| / PyTorch's of each update, from the same weights and images.

        PyTorch had the images of each batch in the given order.
        """
        ours, theirs = (
            [point["training_loss"] for point in self.curves[row["run"]]]
            for which in ((framework, order), ("PyTorch", "given"))
            for row in self.of(seed=seed, framework=which[0], order=which[1])
        )
        return [abs(our - their) / their for our, their in zip(ours, theirs, strict=True)]


# Lab 04: Adasum, mean and sum over virtual workers.

REDUCTIONS = ("adasum", "mean", "sum")
WORKERS = 16


def adasum_setting(
    learning_rate: float,
    workers: int = WORKERS,
    reduction: str | None = "adasum",
    optimizer: str = "Momentum",
    on: str | None = "updates",
    scope: str | None = "layer",
) -> dict[str, Any]:
    """Return the setting of one training; a single worker has no reduction, on or scope.

    ``optimizer`` is each worker's; ``on`` "updates" or "gradients" is what is combined, ``scope``
    that of an angle, "layer" or "network".
    """
    alone = workers == 1
    return {
        "workers": workers,
        "reduction": None if alone else reduction,
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "on": None if alone else on,
        "scope": None if alone else scope,
    }


class AdasumRace(Stored):
    """Test accuracy at the end of trainings by reduction, learning rate and workers."""

    def accuracies(
        self, reduction: str = "adasum", *, learning_rate: float | None = None, **which: Any
    ) -> list[float]:
        """Return the accuracies of one ``adasum_setting``; None: the single worker's rate."""
        if learning_rate is None:
            learning_rate = self.head["single"].get(which.get("optimizer", "Momentum"))
        setting = adasum_setting(learning_rate, reduction=reduction, **which)
        return self.column("last_accuracy", stage="race", **setting)

    def by_rate(self, reduction: str) -> dict[float, list[float]]:
        """Return learning rate -> accuracies, for 16 workers with Momentum."""
        return self._by("learning_rate", reduction)

    def by_workers(self, reduction: str) -> dict[int, list[float]]:
        """Return workers -> accuracies, at the single worker's rate, whose own come first."""
        return {1: self.accuracies(workers=1)} | self._by("workers", reduction)

    def _by(self, field: str, reduction: str) -> dict[Any, list[float]]:
        setting = adasum_setting(self.head["single"]["Momentum"], reduction=reduction)
        del setting[field]
        found = self.values(field, stage="race", **setting)
        return {value: self.accuracies(**setting | {field: value}) for value in found}


# Lab 04: the critical batch size, of LeNet on MNIST.

BATCH = 32  # images of one worker
# method -> reduction over the workers. "adasum" uses a single worker's learning rate, the others
# the best rate for the number of workers.
METHODS = {"mean": "mean", "adasum": "adasum", "adasum tuned": "adasum"}
# A B_crit that is _FAR times smaller or larger than every measured batch counts as 0 or infinite.
_FAR = 100.0
_STEPS = 20_000  # candidates for B_crit, less than a thousandth apart for the stored batch sizes


@dataclass(frozen=True)
class Curve:
    """Updates to an accuracy over the images of one update: S(B) = s_min + e_min / B.

    For small B, doubling the batch halves S; for large B, S is constant. McCandlish et al. 2018,
    arXiv:1812.06162, join the two limits, with E = B S images in all, by

        (S / S_min - 1) (E / E_min - 1) = 1,    so  S(B) = S_min (1 + B_crit / B)

    Attributes:
        s_min: limit of the updates for large B; 0.0: they keep falling as 1 / B
        e_min: limit of the images for small B; 0.0: the updates do not depend on B
        error: root mean square of ln(measured / curve), about the relative deviation
    """

    s_min: float
    e_min: float
    error: float

    @property
    def b_crit(self) -> float:
        """E_min / S_min images, where both are twice their least; 0.0 if flat, or infinite."""
        return self.e_min / self.s_min if self.s_min else math.inf

    def updates(self, batch: float) -> float:
        """Return S at a batch size."""
        return self.s_min + self.e_min / batch


def fit(updates: Mapping[int, Sequence[float | None]]) -> Curve:
    """Fit the curve to measured updates by least squares of the logarithms, and return it.

    Args:
        updates: images of one update -> updates to the accuracy, one for each training

    Raises:
        InputError: if there are fewer than two batch sizes, or a value is not a number above 0,
            such as None for a training that has not reached the accuracy.
    """
    trained = [batch for batch, trainings in updates.items() if trainings]
    if len(trained) < 2:
        raise InputError(f"updates: expected two batch sizes or more, got {trained}")
    pairs = [
        (math.log(number("batch size", batch, above=0)), math.log(number("updates", each, above=0)))
        for batch, trainings in updates.items()
        for each in trainings
    ]
    batch, seen = np.array(pairs).T
    # For a given B_crit the best ln S_min is a mean, so the search has one dimension.
    crit = np.linspace(batch.min() - math.log(_FAR), batch.max() + math.log(_FAR), _STEPS)
    off = seen - np.logaddexp(0, crit[:, None] - batch)
    best = int(off.std(axis=1).argmin())
    if best == 0:
        return Curve(math.exp(seen.mean()), 0.0, float(seen.std()))
    if best == _STEPS - 1:
        return Curve(0.0, math.exp((seen + batch).mean()), float((seen + batch).std()))
    s_min = math.exp(off[best].mean())
    return Curve(s_min, s_min * math.exp(crit[best]), float(off[best].std()))


class CriticalBatch(Stored):
    """Updates to the target accuracy of held-out images, for a method of ``METHODS``."""

    def rate_of(self, method: str, workers: int) -> float:
        """Return the learning rate of a method in the race with ``workers`` workers."""
        return self.head["tuned"][METHODS[method]][str(1 if method == "adasum" else workers)]

    def updates(self, method: str) -> dict[int, list[int | None]]:
        """Return images of one update -> updates to the target; None: not reached.

        A single worker is the same for every method.
        """
        settings = {
            workers: adasum_setting(self.rate_of(method, workers), workers, METHODS[method])
            for workers in self.head["plan"]["workers"]
        }
        return {n * BATCH: self.column("to_target", stage="race", **settings[n]) for n in settings}

    def fits(self, method: str) -> tuple[Curve, list[Curve]]:
        """Return the curve fitted to all trainings of a method, and the curve of each seed."""
        found = self.updates(method)
        alone = [{b: [seeds[n]] for b, seeds in found.items()} for n in range(len(found[BATCH]))]
        return fit(found), [fit(each) for each in alone]


# Lab 05: two-stage training and cheaper methods.

TWO_STAGES = """stage_one same_rate tenth to_zero large_batch average projected_sgd
    projected_bfgs""".split()
LARGE_BATCH = 250
SEARCH = {"components": 32, "trials": 20, "start": "last", "failure": "reset", "alpha": 0.001}
SWEPT = ("batch", "learning_rate", *SEARCH)


def subspace_setting(
    plan: Mapping, method: str, setting: str = "batch 8", noise: float = 0.0, **changes: Any
) -> dict[str, Any]:
    """Return the setting of one training; fields that its method does not have are None.

    Args:
        plan: as ``head["plan"]``
        method: one of ``TWO_STAGES``
        setting: setting of stage one, by its name in the plan
        noise: share of the training labels replaced at random
        **changes: fields of ``SWEPT`` that differ from the method's defaults: ``same_rate`` and
            ``to_zero`` use batch and rate of stage one, ``tenth`` a tenth of that rate,
            ``large_batch`` batch 250 at that rate, ``projected_sgd`` the same in the subspace,
            ``projected_bfgs`` batch 250 and rate 1
    """
    refuse_unknown("method", method, TWO_STAGES)
    stage_one = plan["settings"][setting]
    batch, rate = stage_one["batch"], stage_one["learning_rate"]
    own: dict[str, dict[str, Any]] = {
        "tenth": {"learning_rate": rounded(rate / 10)},
        "large_batch": {"batch": LARGE_BATCH},
        "average": {"batch": None, "learning_rate": None},
        "projected_sgd": {"batch": LARGE_BATCH, "components": 32, "start": "last"},
        "projected_bfgs": {"batch": LARGE_BATCH, "learning_rate": 1.0} | SEARCH,
    }
    fields = {"setting": setting, "noise": noise, "method": method} | dict.fromkeys(SWEPT)
    fields |= {"batch": batch, "learning_rate": rate} | own.get(method, {})
    return fields | changes


def _after(rows: list[dict], epochs: int) -> list[float]:
    """Return the accuracies after one or two epochs of stage two.

    Stage one and the average have one accuracy for any number; a training that was stopped earlier
    has the accuracy of its last point.
    """
    column = {1: "one_epoch_accuracy", 2: "last_accuracy"}[epochs]
    return [row["last_accuracy"] if row[column] is None else row[column] for row in rows]


class SubspaceRace(Stored):
    """Test accuracy after stage one and after what may follow it.

    ``**which`` are the arguments of ``subspace_setting``; ``more`` includes the further seeds.
    """

    def rows_of(self, method: str, *, more: bool = False, **which: Any) -> list[dict]:
        """Return the rows of one setting."""
        stages = ("compare", "sweep", "more") if more else ("compare", "sweep")
        return self.of(stage=stages, **subspace_setting(self.head["plan"], method, **which))

    def accuracies(self, method: str, epochs: int = 2, **which: Any) -> list[float]:
        """Return the accuracies of one setting, after one or two epochs of stage two."""
        return _after(self.rows_of(method, **which), epochs)

    def gains(self, method: str, epochs: int = 2, **which: Any) -> list[float]:
        """Return ``accuracies`` minus those at the end of stage one."""
        stage_one = {n: which[n] for n in ("setting", "noise", "more") if n in which}
        ends = self.accuracies("stage_one", **stage_one)
        reached = self.accuracies(method, epochs, **which)
        return [accuracy - end for accuracy, end in zip(reached, ends, strict=True)]

    def compared(self, setting: str = "batch 8", noise: float = 0.0) -> list[dict]:
        """Return one dict for each method and rate, in the order of the plan.

        It has method, batch, learning_rate and, by seed, one_epoch and two_epochs (accuracies),
        loss (at the end) and seconds.
        """
        groups: dict[tuple, list[dict]] = {}
        for row in self.of(stage="compare", setting=setting, noise=noise):
            groups.setdefault((row["method"], row["batch"], row["learning_rate"]), []).append(row)
        return [
            dict(zip(("method", "batch", "learning_rate"), key, strict=True))
            | {"one_epoch": _after(group, 1), "two_epochs": _after(group, 2)}
            | {"loss": [row["last_loss"] for row in group]}
            | {"seconds": [row["seconds"] for row in group]}
            for key, group in groups.items()
        ]

    def best(self, setting: str = "batch 8", noise: float = 0.0) -> dict[str, list[float]]:
        """Return method -> accuracies after two epochs, at the rate with the highest mean.

        This favours methods that were raced at several rates.
        """
        highest: dict[str, list[float]] = {}
        for line in self.compared(setting, noise):
            method, right = line["method"], line["two_epochs"]
            if method not in highest or sum(right) > sum(highest[method]):
                highest[method] = right
        return highest

    def by(self, field: str, epochs: int = 2, **which: Any) -> dict[Any, list[float]]:
        """Return value of a field of ``SWEPT`` -> accuracies of ``projected_bfgs``."""
        own = {name: value for name, value in which.items() if name != "more"}
        setting = subspace_setting(self.head["plan"], "projected_bfgs", **own)
        del setting[field]
        return {
            value: self.accuracies("projected_bfgs", epochs, **which | {field: value})
            for value in self.values(field, **setting)
        }

    def searches(self, **which: Any) -> dict[str, list[float]]:
        """Return how the searches of ``projected_bfgs`` went.

        ``failed`` is the share of the searches that found no step, ``trials`` the mean number of
        trials of a search.
        """
        rows = self.rows_of("projected_bfgs", **which)
        return {
            "failed": [row["failed_searches"] / row["searches"] for row in rows],
            "trials": [row["trials_made"] / row["searches"] for row in rows],
        }


_KINDS = {
    "thor_race": ThorRace,
    "adasum_race": AdasumRace,
    "subspace_race": SubspaceRace,
    "migration_race": MigrationRace,
    "critical_batch": CriticalBatch,
    "accumulation_race": Stored,
}
CURVES = dict.fromkeys(_KINDS, CURVE) | {
    "adasum_race": CURVE + tuple(f"cosine_{layer}" for layer in LAYERS),
    "accumulation_race": (*CURVE, "printed_loss"),
}


def load(name: str, folder: str | os.PathLike = FOLDER) -> Any:
    """Return a stored result: a ``Stored`` with the selections of its race.

    Args:
        name: one of ``CURVES``
        folder: folder of its files; by default those that come with labkit

    Raises:
        InputError: if the name is unknown, or a file is missing or damaged.
    """
    refuse_unknown("stored result", name, CURVES)
    folder = Path(folder)
    try:
        head = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        rows, points = _read(folder / f"{name}.csv"), _read(folder / f"{name}_curves.csv")
        curves: dict[int, list[dict]] = {}
        for point in points:
            curves.setdefault(point.pop("run"), []).append(point)
    except (OSError, ValueError, TypeError, KeyError) as error:
        made = f"benchmarks/{name}.py makes it"
        raise InputError(f"stored result {name} cannot be read ({error}); {made}") from error
    return _KINDS[name](head, rows, curves)


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
