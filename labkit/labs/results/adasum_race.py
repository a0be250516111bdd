"""The stored race of Adasum, mean and sum over virtual workers, as lab 04 reads it."""

import os
from typing import Any

from labkit.errors import refuse_unknown
from labkit.labs.results import stored as files
from labkit.labs.results.stored import Stored, by_seed

NAME = "adasum_race"
REDUCTIONS = ("adasum", "mean", "sum")
WORKERS = 16


def load(folder: str | os.PathLike | None = None) -> Stored:
    """Return the stored race; as ``results.load``."""
    return files.load(NAME, folder)


def setting_of(
    learning_rate: float,
    workers: int = WORKERS,
    reduction: str | None = "adasum",
    optimizer: str = "Momentum",
    on: str | None = "updates",
    scope: str | None = "layer",
) -> dict[str, Any]:
    """Return the setting of one training; a single worker has no reduction, on or scope."""
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


def accuracies(
    stored: Stored,
    reduction: str | None = "adasum",
    *,
    learning_rate: float | None = None,
    optimizer: str = "Momentum",
    **which: Any,
) -> list[float]:
    """Return the test accuracies at the end of a setting's trainings, by seed.

    Args:
        stored: the stored race
        reduction: one of ``REDUCTIONS``; ignored for one worker
        learning_rate: peak learning rate; None: the optimizer's single-worker rate
        optimizer: optimizer of each worker
        **which: ``workers``, and of what is combined ``on``, "updates" or "gradients", and
            ``scope`` of an angle, "layer" or "network"; as in ``setting_of``

    Raises:
        InputError: if the setting was not raced.
    """
    if learning_rate is None:
        learning_rate = stored.head["single"].get(optimizer)
    setting = setting_of(learning_rate, reduction=reduction, optimizer=optimizer, **which)
    rows = by_seed(stored.select(stage="race", **setting), setting, NAME)
    return [row["last_accuracy"] for row in rows]


def by_rate(stored: Stored, reduction: str) -> dict[float, list[float]]:
    """Return learning rate -> test accuracies by seed, for 16 workers with Momentum."""
    return _by(stored, "learning_rate", reduction)


def by_workers(stored: Stored, reduction: str) -> dict[int, list[float]]:
    """Return workers -> test accuracies by seed, at the single-worker learning rate.

    The first entry is a single worker, which is the same for every reduction.
    """
    return {1: accuracies(stored, workers=1)} | _by(stored, "workers", reduction)


def _by(stored: Stored, field: str, reduction: str) -> dict[Any, list[float]]:
    refuse_unknown("reduction", reduction, REDUCTIONS)
    setting = setting_of(stored.head["single"]["Momentum"], reduction=reduction)
    del setting[field]
    rows = stored.select(stage="race", **setting)
    values = sorted({row[field] for row in rows})
    return {value: accuracies(stored, **setting, **{field: value}) for value in values}
