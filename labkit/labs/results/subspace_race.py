"""Two-stage training against what costs less: what the race trains, and its stored rows.

A row is one training on 5 000 MNIST images, LeNet, judged by the test set:

setting   "batch 8" (rate .01, 6 epochs) or "batch 32" (.02, 14): batch and rate of its stage one
noise     share of the training labels drawn anew at random; 0.0, or 0.3 with "batch 8"
stage     ``compare``: all methods; ``sweep``: one thing changed; ``more``: further seeds
seed      of weights and order: 1, 2, 3; in ``more`` 4 to 8
method    one of ``METHODS``, which ``labkit.labs.results.subspace_plan`` describes
batch     of the training; learning_rate: of the optimizer, for ``to_zero`` at its begin
components, start        of the basis, and the weights that stage two starts from (``STARTS``)
trials, failure, alpha   constants of the search, as in ``labkit.algorithms.subspace``
updates   that were made; seconds: so many times the time of one, without compiling and judging,
          that ``head["times"]`` has by setting and method; for an average, of reading the snapshots
one_epoch_accuracy, one_epoch_loss   after one epoch of stage two; empty for ``stage_one``, average
last_accuracy, last_loss             at its end: after stage one, or two epochs of stage two
basis_seconds, explained             to make the basis; share of variance of all its components
searches, failed_searches, trials_made   of the whole training
stopped   what stopped it before its end; empty: nothing did

What a method has not is empty (None). Curves have the points of ``labkit.labs.results``; ``update``
counts from the start of the row's own stage.

``load`` reads the table and checks it against its plan; ``accuracies`` gives one setting's figures
by seed, ``gains`` those over the end of stage one, ``compared`` all methods of one setting, ``by``
a sweep, ``searches`` how the searches went.
"""

import os
from collections.abc import Mapping

from labkit.errors import InputError, refuse_unknown
from labkit.labs.results import stored as files
from labkit.labs.results.stored import Stored
from labkit.labs.results.subspace_plan import METHODS as METHODS
from labkit.labs.results.subspace_plan import SEARCH as SEARCH
from labkit.labs.results.subspace_plan import STARTS as STARTS
from labkit.labs.results.subspace_plan import SWEPT, planned, seconds_of, setting_of, updates_of

NAME = "subspace_race"


def load(folder: str | os.PathLike | None = None) -> Stored:
    """Return the stored race, checked: its rows are what the plan says and follow from the curves.

    folder  where its files are; None: those that came with labkit

    Raises ``InputError`` as ``results.load`` does, and for a table that is not of its plan.
    """
    stored = files.load(NAME, folder)
    try:
        check(stored)
    except (KeyError, TypeError, IndexError) as error:
        raise InputError(f"stored result {NAME} is damaged: {error!r}") from error
    return stored


def check(stored: Stored) -> None:
    """Raise ``InputError`` unless the rows are what ``stored.head`` says they are."""
    plan = stored.head["plan"]
    wanted = planned(plan)
    _expect("number of rows", len(stored.rows), len(wanted))
    for number, (row, (stage, setting, seed)) in enumerate(
        zip(stored.rows, wanted, strict=True), start=1
    ):
        what = {"run": number, "stage": stage, "seed": seed, **setting}
        _expect(f"row {number}", {name: row[name] for name in what}, what)
        _check_curve(plan, row, stored.curves.get(number, []))
        if row["method"] != "average":
            _expect(
                f"seconds of run {number}", row["seconds"], seconds_of(stored.head["times"], row)
            )


def _check_curve(plan, row, curve):
    what = f"run {row['run']}"
    follows = from_curve(curve, updates_of(plan, row) // plan["epochs"], row["method"])
    # A NaN is not equal to itself: as texts they are compared.
    found = {name: str(row[name]) for name in follows}
    _expect(f"{what}, by its curve", found, {name: str(one) for name, one in follows.items()})
    if not row["stopped"]:
        _expect(f"{what}, updates", row["updates"], updates_of(plan, row))
    for point in curve:
        if not 0 <= point["accuracy"] <= 1:
            raise InputError(f"{what} has accuracy {point['accuracy']}; expected 0 to 1")


def from_curve(curve: list[Mapping], epoch: int, method: str) -> dict:
    """Return the fields of a row that follow from its curve.

    epoch  updates in an epoch of stage two
    """
    last = curve[-1] if curve else {"update": 0, "accuracy": None, "loss": None}
    one = {"accuracy": None, "loss": None}
    if method not in ("stage_one", "average"):
        one = next((point for point in curve if point["update"] == epoch), one)
    return {
        "updates": last["update"],
        "one_epoch_accuracy": one["accuracy"],
        "one_epoch_loss": one["loss"],
        "last_accuracy": last["accuracy"],
        "last_loss": last["loss"],
    }


def _expect(what, found, wanted):
    if found != wanted:
        raise InputError(
            f"stored result {NAME}: {what} is {found}, and by its plan and curves {wanted}; "
            f"benchmarks/{NAME}.py makes it anew"
        )


def rows_of(
    stored: Stored,
    method: str,
    *,
    setting: str = "batch 8",
    noise: float = 0.0,
    more: bool = False,
    **changes,
) -> list[dict]:
    """Return the rows of one setting, by seed; arguments as in ``setting_of``.

    more  the further seeds as well

    Raises ``InputError`` for a setting that was not raced.
    """
    wanted = setting_of(stored.head["plan"], method, setting, noise, **changes)
    rows = [row for row in stored.select(**wanted) if more or row["stage"] != "more"]
    if not rows:
        raise InputError(f"{wanted} was not raced; {NAME}.csv lists what was")
    return sorted(rows, key=lambda row: row["seed"])


def accuracies(stored: Stored, method: str, epochs: int = 2, **which) -> list[float]:
    """Return the test accuracies by seed, after one or two epochs of stage two.

    which  as in ``rows_of``. Stage one and the average have one accuracy, whatever ``epochs``; that
           of a training that was stopped before is that of its last point
    """
    return _accuracies(rows_of(stored, method, **which), epochs)


def _accuracies(rows, epochs):
    if epochs not in (1, 2):
        raise InputError(f"epochs is {epochs!r}; expected 1 or 2")
    late = [row["last_accuracy"] for row in rows]
    if epochs == 2:
        return late
    early = [row["one_epoch_accuracy"] for row in rows]
    return [b if a is None else a for a, b in zip(early, late, strict=True)]


def gains(stored: Stored, method: str, epochs: int = 2, **which) -> list[float]:
    """Return ``accuracies`` less those at the end of stage one, by seed."""
    found = accuracies(stored, method, epochs, **which)
    begin = {name: which[name] for name in ("setting", "noise", "more") if name in which}
    ends = accuracies(stored, "stage_one", **begin)
    return [one - end for one, end in zip(found, ends, strict=True)]


def compared(stored: Stored, setting: str = "batch 8", noise: float = 0.0) -> list[dict]:
    """Return one dict for each method and rate, in the order of the plan.

    method, batch, learning_rate; one_epoch, two_epochs (accuracies by seed), loss (at the end),
    seconds, all by seed
    """
    found = {}
    for row in stored.select(stage="compare", setting=setting, noise=noise):
        found.setdefault((row["method"], row["batch"], row["learning_rate"]), []).append(row)
    if not found:
        raise InputError(f"{setting!r} with noise {noise!r} was not raced; {NAME}.csv lists it")
    lines = []
    for (method, batch, rate), rows in found.items():
        rows = sorted(rows, key=lambda row: row["seed"])
        line = {"method": method, "batch": batch, "learning_rate": rate}
        line |= {"one_epoch": _accuracies(rows, 1), "two_epochs": _accuracies(rows, 2)}
        line |= {"loss": [row["last_loss"] for row in rows]}
        lines.append(line | {"seconds": [row["seconds"] for row in rows]})
    return lines


def by(stored: Stored, field: str, epochs: int = 2, method="projected_bfgs", **which) -> dict:
    """Return value of ``field`` -> accuracies by seed, all else as in ``setting_of``."""
    refuse_unknown("field", field, SWEPT)
    wanted = setting_of(stored.head["plan"], method, **which)
    del wanted[field]
    values = {row[field] for row in stored.select(**wanted)} - {None}
    return {
        value: accuracies(stored, method, epochs, **which, **{field: value})
        for value in sorted(values)
    }


def searches(stored: Stored, **which) -> dict[str, list[float]]:
    """Return how the searches of ``projected_bfgs`` went, by seed; ``which`` as in ``rows_of``.

    failed  share of the searches that found no step; trials: mean number of trials of a search
    """
    rows = rows_of(stored, "projected_bfgs", **which)
    return {
        "failed": [row["failed_searches"] / row["searches"] for row in rows],
        "trials": [row["trials_made"] / row["searches"] for row in rows],
    }
