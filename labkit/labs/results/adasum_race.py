"""The race of Adasum, mean and sum over virtual workers: what it trains, and its stored rows.

What is trained follows from a plan and from the single-worker learning rates that its first
trainings find. ``planned`` lists it, for the program that trains (``benchmarks/adasum_race.py``)
and for ``load``, which refuses a table that holds anything else.
"""

import os
from collections.abc import Iterable, Mapping

from labkit.errors import InputError, refuse_unknown
from labkit.labs.results import stored as files
from labkit.labs.results.stored import LAYERS, Stored

NAME = "adasum_race"
REDUCTIONS = ("adasum", "mean", "sum")
WORKERS, BATCH, MNIST_IMAGES = 16, 32, 60_000
_OWN = ("workers", "reduction", "optimizer", "learning_rate", "on", "scope")


def setting_of(
    learning_rate: float,
    workers: int = WORKERS,
    reduction: str | None = "adasum",
    optimizer: str = "Momentum",
    on: str = "updates",
    scope: str = "layer",
) -> dict:
    """Return what one training is made with; a single worker has no reduction, on or scope."""
    if workers == 1:
        reduction = on = scope = None
    return {
        "workers": workers,
        "reduction": reduction,
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "on": on,
        "scope": scope,
    }


def single_settings(plan: Mapping, optimizer: str) -> list[dict]:
    """Return the settings whose best has the single-worker learning rate of ``optimizer``."""
    return [setting_of(rate, 1, optimizer=optimizer) for rate in plan["single"][optimizer]]


def changed(single: Mapping[str, float], multiple: float = 1, **changes) -> dict:
    """Return the setting of 16 workers with ``changes``, at a multiple of the single-worker rate.

    single   optimizer -> single-worker learning rate
    changes  arguments of ``setting_of``
    """
    rate = single[changes.get("optimizer", "Momentum")] * multiple
    return setting_of(float(f"{rate:.6g}"), **changes)


def planned(plan: Mapping, single: Mapping[str, float]) -> list[tuple[str, dict, int]]:
    """Return (stage, setting, seed) of every training, in order.

    plan    as ``head["plan"]``
    single  optimizer -> single-worker learning rate

    Stages: ``tune`` on training images less those held out, which judge it; ``race`` on all
    training images, judged by the test set.
    """
    tuning = plan["tuning_seed"]
    found = [("tune", one, tuning) for name in single for one in single_settings(plan, name)]
    found += [("tune", changed(single, **change), tuning) for change in plan["tune"]]
    return found + [
        ("race", changed(single, **change), seed)
        for change, seeds in plan["race"]
        for seed in seeds
    ]


def updates_of(plan: Mapping, stage: str, workers: int) -> int:
    """Return the updates of a training: whole batches of each epoch, shared by the workers."""
    images = plan["images"]["train"] or MNIST_IMAGES
    if stage == "tune":
        images -= plan["images"]["held_out"]
    return plan["epochs"] * (images // BATCH) // workers


def best(rows: Iterable[Mapping]) -> Mapping:
    """Return the row with the best accuracy at its end; of equal ones, that with the least loss.

    Only rows of trainings that did not fail count. Raises ``InputError`` where all failed.
    """
    rows = [row for row in rows if not row["failure"]]
    if not rows:
        raise InputError("every training of a tuning failed; expected one that did not")
    return min(rows, key=lambda row: (-row["last_accuracy"], row["last_loss"]))


def single_rates(rows: Iterable[Mapping]) -> dict[str, float]:
    """Return optimizer -> single-worker learning rate, from the rows of the tuning."""
    rows = [row for row in rows if row["stage"] == "tune" and row["workers"] == 1]
    names = dict.fromkeys(row["optimizer"] for row in rows)
    return {
        name: best(row for row in rows if row["optimizer"] == name)["learning_rate"]
        for name in names
    }


def tuned_rates(rows: Iterable[Mapping]) -> dict[str, float]:
    """Return reduction -> its own learning rate with 16 workers, from the rows of the tuning."""
    rows = [row for row in rows if row["stage"] == "tune" and row["workers"] == WORKERS]
    return {
        name: best(row for row in rows if row["reduction"] == name)["learning_rate"]
        for name in dict.fromkeys(row["reduction"] for row in rows)
    }


def load(folder: str | os.PathLike | None = None) -> Stored:
    """Return the stored race, checked: its rows are what the plan says and follow from the curves.

    folder  where its files are; None: those that came with labkit

    Raises ``InputError`` as ``results.load`` does, and for a table that is not of its plan.
    """
    stored = files.load(NAME, folder)
    try:
        check(stored)
    except (KeyError, TypeError) as error:
        raise InputError(f"stored result {NAME} is damaged: {error!r}") from error
    return stored


def check(stored: Stored) -> None:
    """Raise ``InputError`` unless the rows are what ``stored.head`` says they are."""
    plan, single = stored.head["plan"], stored.head["single"]
    _expect("single-worker learning rates", single, single_rates(stored.rows))
    _expect("tuned learning rates", stored.head["tuned"], tuned_rates(stored.rows))
    wanted = planned(plan, single)
    _expect("number of rows", len(stored.rows), len(wanted))
    for number, (row, (stage, setting, seed)) in enumerate(
        zip(stored.rows, wanted, strict=True), start=1
    ):
        what = {"run": number, "stage": stage, "seed": seed, **setting}
        _expect(f"row {number}", {name: row[name] for name in what}, what)
        curve = stored.curves.get(number, [])
        _check_curve(row, curve, updates_of(plan, stage, row["workers"]))


def _check_curve(row, curve, total):
    what = f"run {row['run']}"
    last = curve[-1] if curve else {"update": 0, "accuracy": None, "loss": None}
    found = [last["update"], last["accuracy"], last["loss"]]
    # A NaN is not equal to itself: as texts they are compared.
    said = [row["updates"], row["last_accuracy"], row["last_loss"]]
    _expect(f"{what}, last of its curve", list(map(str, said)), list(map(str, found)))
    if not row["failure"]:
        _expect(f"{what}, updates", row["updates"], total)
    for point in curve:
        if not 0 <= point["accuracy"] <= 1:
            raise InputError(f"{what} has accuracy {point['accuracy']}; expected 0 to 1")


def _expect(what, found, wanted):
    if found != wanted:
        raise InputError(
            f"stored result {NAME}: {what} is {found}, and by its plan and curves {wanted}; "
            f"benchmarks/{NAME}.py makes it anew"
        )


def accuracies(stored: Stored, reduction: str | None = "adasum", **changes) -> list[float]:
    """Return the test accuracies at the end of a setting's trainings, by seed.

    reduction  one of ``REDUCTIONS``; of no meaning with ``workers=1``
    changes    what else is not the default: learning_rate (the optimizer's single-worker rate),
               workers (16), optimizer ("Momentum"), on ("updates"), scope ("layer")

    Raises ``InputError`` for a setting that was not raced.
    """
    for name in changes:
        refuse_unknown("field", name, _OWN)
    own = stored.head["single"].get(changes.get("optimizer", "Momentum"))
    setting = setting_of(**{"learning_rate": own, "reduction": reduction} | changes)
    rows = stored.select(stage="race", **setting)
    if not rows:
        raise InputError(f"{setting} was not raced; {NAME}.csv lists what was")
    return [row["last_accuracy"] for row in sorted(rows, key=lambda row: row["seed"])]


def by_rate(stored: Stored, reduction: str) -> dict[float, list[float]]:
    """Return learning rate -> test accuracies by seed, 16 workers with Momentum."""
    return _by(stored, "learning_rate", reduction)


def by_workers(stored: Stored, reduction: str) -> dict[int, list[float]]:
    """Return workers -> test accuracies by seed, at the single-worker learning rate.

    A single worker, who is the same for every reduction, is the first.
    """
    return {1: accuracies(stored, workers=1)} | _by(stored, "workers", reduction)


def _by(stored, field, reduction):
    refuse_unknown("reduction", reduction, REDUCTIONS)
    wanted = setting_of(stored.head["single"]["Momentum"], reduction=reduction)
    del wanted[field]
    rows = stored.select(stage="race", **wanted)
    values = sorted({row[field] for row in rows})
    return {value: accuracies(stored, **wanted, **{field: value}) for value in values}


def cosines(stored: Stored, seed: int, on: str = "gradients") -> dict[str, list[tuple]]:
    """Return layer -> (update, mean cosine of two workers' vectors), Adasum of 16 workers.

    Each is the mean over all pairs of workers, and over the updates since the point before. The
    vectors are those that are combined: gradients, or moves of the workers' optimizers.

    Raises ``InputError`` for a seed, or ``on``, that was not raced.
    """
    rate = stored.head["single"]["Momentum"]
    rows = stored.select(stage="race", seed=seed, **setting_of(rate, on=on))
    if not rows:
        raise InputError(f"seed {seed!r} on {on!r} was not raced; {NAME}.csv lists what was")
    curve = stored.curves[rows[0]["run"]]
    return {
        layer: [(point["update"], point[f"cosine_{layer}"]) for point in curve] for layer in LAYERS
    }
