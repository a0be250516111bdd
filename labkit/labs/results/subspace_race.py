"""The stored race of two-stage training and cheaper methods, as lab 05 reads it."""

import os
from collections.abc import Mapping
from typing import Any

from labkit.base.arguments import wrong
from labkit.errors import refuse_unknown
from labkit.labs.results import stored as files
from labkit.labs.results.stored import Stored, by_seed, rounded

NAME = "subspace_race"
METHODS = (
    "stage_one",
    "same_rate",
    "tenth",
    "to_zero",
    "large_batch",
    "average",
    "projected_sgd",
    "projected_bfgs",
)
STARTS = ("last", "first", "initial")
LARGE_BATCH = 250
SEARCH = {"components": 32, "trials": 20, "start": "last", "failure": "reset", "alpha": 0.001}
SWEPT = ("batch", "learning_rate", *SEARCH)


def load(folder: str | os.PathLike | None = None) -> Stored:
    """Return the stored race; as ``results.load``."""
    return files.load(NAME, folder)


def setting_of(
    plan: Mapping, method: str, setting: str = "batch 8", noise: float = 0.0, **changes: Any
) -> dict[str, Any]:
    """Return the setting of one training; fields that its method does not have are None.

    Args:
        plan: as ``head["plan"]``
        method: one of ``METHODS``
        setting: setting of stage one, by its name in the plan
        noise: share of the training labels replaced at random
        **changes: fields of ``SWEPT`` that differ from the method's defaults: ``same_rate`` and
            ``to_zero`` use batch and rate of stage one, ``tenth`` a tenth of that rate,
            ``large_batch`` batch 250 at that rate, ``projected_sgd`` the same in the subspace,
            ``projected_bfgs`` batch 250 and rate 1

    Raises:
        InputError: if a name is unknown, or the method does not have a changed field.
    """
    refuse_unknown("method", method, METHODS)
    refuse_unknown("setting", setting, plan["settings"])
    stage_one = plan["settings"][setting]
    fields = {"setting": setting, "noise": noise, "method": method} | dict.fromkeys(SWEPT)
    if method != "average":
        fields |= {name: stage_one[name] for name in ("batch", "learning_rate")}
    if method == "tenth":
        fields["learning_rate"] = rounded(stage_one["learning_rate"] / 10)
    if method in ("large_batch", "projected_sgd", "projected_bfgs"):
        fields["batch"] = LARGE_BATCH
    if method == "projected_sgd":
        fields |= {name: SEARCH[name] for name in ("components", "start")}
    if method == "projected_bfgs":
        fields |= {"learning_rate": 1.0} | SEARCH
    for name in changes:
        refuse_unknown("field", name, SWEPT)
        if fields[name] is None:
            raise wrong(name, changes[name], f"no value for {method}")
    return fields | changes


def rows_of(stored: Stored, method: str, *, more: bool = False, **which: Any) -> list[dict]:
    """Return the rows of one setting, by seed.

    Args:
        stored: the stored race
        method: one of ``METHODS``
        more: whether to include the further seeds
        **which: ``setting``, ``noise`` and changes, as in ``setting_of``

    Raises:
        InputError: if the setting was not raced, and as in ``setting_of``.
    """
    wanted = setting_of(stored.head["plan"], method, **which)
    rows = [row for row in stored.select(**wanted) if more or row["stage"] != "more"]
    return by_seed(rows, wanted, NAME)


def accuracies(stored: Stored, method: str, epochs: int = 2, **which: Any) -> list[float]:
    """Return the test accuracies by seed, after one or two epochs of stage two.

    Stage one and the average have one accuracy for any ``epochs``; a training that was stopped
    earlier has the accuracy of its last point. All other arguments are as in ``rows_of``.
    """
    return _accuracies(rows_of(stored, method, **which), epochs)


def _accuracies(rows: list[dict], epochs: int) -> list[float]:
    if epochs not in (1, 2):
        raise wrong("epochs", epochs, "1 or 2")
    early = [row["one_epoch_accuracy"] if epochs == 1 else None for row in rows]
    return [row["last_accuracy"] if a is None else a for a, row in zip(early, rows, strict=True)]


def gains(
    stored: Stored,
    method: str,
    epochs: int = 2,
    *,
    setting: str = "batch 8",
    noise: float = 0.0,
    more: bool = False,
    **changes: Any,
) -> list[float]:
    """Return ``accuracies`` minus those at the end of stage one, by seed."""
    which: dict[str, Any] = {"setting": setting, "noise": noise, "more": more}
    reached = accuracies(stored, method, epochs, **which, **changes)
    ends = accuracies(stored, "stage_one", **which)
    return [accuracy - end for accuracy, end in zip(reached, ends, strict=True)]


def compared(stored: Stored, setting: str = "batch 8", noise: float = 0.0) -> list[dict]:
    """Return one dict for each method and rate, in the order of the plan.

    Returns:
        Dicts of method, batch, learning_rate and, by seed, one_epoch and two_epochs (accuracies),
        loss (at the end) and seconds.
    """
    rows = stored.select(stage="compare", setting=setting, noise=noise)
    groups: dict[tuple, list[dict]] = {}
    for row in by_seed(rows, f"{setting!r} with noise {noise!r}", NAME):
        groups.setdefault((row["method"], row["batch"], row["learning_rate"]), []).append(row)
    return [
        dict(zip(("method", "batch", "learning_rate"), key, strict=True))
        | {"one_epoch": _accuracies(group, 1), "two_epochs": _accuracies(group, 2)}
        | {"loss": [row["last_loss"] for row in group]}
        | {"seconds": [row["seconds"] for row in group]}
        for key, group in groups.items()
    ]


def best(stored: Stored, setting: str = "batch 8", noise: float = 0.0) -> dict[str, list[float]]:
    """Return method -> accuracies by seed after two epochs, at the rate with the highest mean.

    This favours methods that were raced at several rates.
    """
    highest: dict[str, list[float]] = {}
    for line in compared(stored, setting, noise):
        method, right = line["method"], line["two_epochs"]
        if method not in highest or sum(right) > sum(highest[method]):
            highest[method] = right
    return highest


def by(
    stored: Stored, field: str, epochs: int = 2, *, more: bool = False, **which: Any
) -> dict[Any, list[float]]:
    """Return value of ``field`` -> accuracies of ``projected_bfgs`` by seed, else as by default."""
    refuse_unknown("field", field, SWEPT)
    wanted = setting_of(stored.head["plan"], "projected_bfgs", **which)
    del wanted[field]
    values = {row[field] for row in stored.select(**wanted)} - {None}
    return {
        value: accuracies(stored, "projected_bfgs", epochs, more=more, **which | {field: value})
        for value in sorted(values)
    }


def searches(stored: Stored, **which: Any) -> dict[str, list[float]]:
    """Return how the searches of ``projected_bfgs`` went, by seed; arguments as in ``rows_of``.

    Returns:
        ``failed``: share of the searches that found no step; ``trials``: mean number of trials of
        a search.
    """
    rows = rows_of(stored, "projected_bfgs", **which)
    return {
        "failed": [row["failed_searches"] / row["searches"] for row in rows],
        "trials": [row["trials_made"] / row["searches"] for row in rows],
    }
