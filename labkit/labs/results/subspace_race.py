"""Two-stage training against what costs less: the stored race, as lab 05 reads it.

A row is one training on 5 000 MNIST images, LeNet, judged by the test set:

setting   "batch 8" (rate .01, 6 epochs) or "batch 32" (.02, 14): batch and rate of its stage one
noise     share of the training labels replaced at random; 0.0, or 0.3
stage     ``compare``: all methods; ``sweep``: one thing changed; ``more``: further seeds
seed      of weights and order: 1, 2, 3; in ``more`` 4 to 8
method    one of ``METHODS``, see below
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

What a method has not is empty (None). ``update`` of a curve counts from the start of the row's own
stage. The methods:

stage_one       Momentum 0.9 at a constant rate, 40 snapshots in its later epochs
same_rate       goes on, moments and all, at the rate of stage one
tenth           at a tenth of it
to_zero         in a line from it to 0 over the two epochs
large_batch     at it, or another, in batches of 250, with new moments
average         the mean of the snapshots, which trains nothing
projected_sgd   ``SubspaceStep(method="sgd")`` over nn.SGD with momentum 0.9, batches of 250
projected_bfgs  ``SubspaceStep`` over nn.SGD at rate 1, batches of 250

Stage two starts from the last snapshot, which is the end of stage one (``last``, as the seed does),
from the first one (``first``), or from the initial weights, the basis then of 40 snapshots from
these to the end (``initial``, as the paper does).
"""

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
    """Return what one training is made with; what its method does not have is None.

    Args:
        plan: as ``head["plan"]``
        method: one of ``METHODS``
        setting: of stage one, by its name in the plan
        noise: share of the training labels replaced at random
        **changes: fields of ``SWEPT`` that are not the method's own: ``same_rate`` and ``to_zero``
            have batch and rate of stage one, ``tenth`` a tenth of that rate, ``large_batch`` batch
            250 at that rate, ``projected_sgd`` likewise in the subspace, ``projected_bfgs`` batch
            250 and rate 1

    Raises:
        InputError: when a name is unknown, or the method has not what is changed.
    """
    refuse_unknown("method", method, METHODS)
    refuse_unknown("setting", setting, plan["settings"])
    stage_one = plan["settings"][setting]
    fields = {"setting": setting, "noise": noise, "method": method}
    fields |= dict.fromkeys(SWEPT)
    if method != "average":
        fields |= {"batch": stage_one["batch"], "learning_rate": stage_one["learning_rate"]}
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


def rows_of(
    stored: Stored,
    method: str,
    *,
    setting: str = "batch 8",
    noise: float = 0.0,
    more: bool = False,
    **changes: Any,
) -> list[dict]:
    """Return the rows of one setting, by seed.

    Args:
        stored: the race
        method: one of ``METHODS``
        setting: of stage one
        noise: share of the training labels replaced at random
        more: those of further seeds as well
        **changes: as in ``setting_of``

    Raises:
        InputError: when the setting was not raced; else as ``setting_of``.
    """
    wanted = setting_of(stored.head["plan"], method, setting, noise, **changes)
    rows = [row for row in stored.select(**wanted) if more or row["stage"] != "more"]
    return by_seed(rows, wanted, NAME)


def accuracies(
    stored: Stored,
    method: str,
    epochs: int = 2,
    *,
    setting: str = "batch 8",
    noise: float = 0.0,
    more: bool = False,
    **changes: Any,
) -> list[float]:
    """Return the test accuracies by seed, after one or two epochs of stage two.

    Stage one and the average have one accuracy, whatever ``epochs``; that of a training that was
    stopped before is that of its last point. All else as in ``rows_of``.
    """
    rows = rows_of(stored, method, setting=setting, noise=noise, more=more, **changes)
    return _accuracies(rows, epochs)


def _accuracies(rows: list[dict], epochs: int) -> list[float]:
    if epochs not in (1, 2):
        raise wrong("epochs", epochs, "1 or 2")
    late = [row["last_accuracy"] for row in rows]
    if epochs == 2:
        return late
    early = [row["one_epoch_accuracy"] for row in rows]
    return [b if a is None else a for a, b in zip(early, late, strict=True)]


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
    """Return ``accuracies`` less those at the end of stage one, by seed."""
    reached = accuracies(stored, method, epochs, setting=setting, noise=noise, more=more, **changes)
    ends = accuracies(stored, "stage_one", setting=setting, noise=noise, more=more)
    return [accuracy - end for accuracy, end in zip(reached, ends, strict=True)]


def compared(stored: Stored, setting: str = "batch 8", noise: float = 0.0) -> list[dict]:
    """Return one dict for each method and rate, in the order of the plan.

    Returns:
        dicts of method, batch, learning_rate, and by seed one_epoch and two_epochs (accuracies),
        loss (at the end) and seconds.
    """
    rows = stored.select(stage="compare", setting=setting, noise=noise)
    groups: dict[tuple, list[dict]] = {}
    for row in by_seed(rows, f"{setting!r} with noise {noise!r}", NAME):
        groups.setdefault((row["method"], row["batch"], row["learning_rate"]), []).append(row)
    return [
        {
            "method": method,
            "batch": batch,
            "learning_rate": rate,
            "one_epoch": _accuracies(group, 1),
            "two_epochs": _accuracies(group, 2),
            "loss": [row["last_loss"] for row in group],
            "seconds": [row["seconds"] for row in group],
        }
        for (method, batch, rate), group in groups.items()
    ]


def best(stored: Stored, setting: str = "batch 8", noise: float = 0.0) -> dict[str, list[float]]:
    """Return method -> accuracies by seed after two epochs, at the rate with the highest mean.

    That is in favour of those methods that were raced at several rates.
    """
    highest: dict[str, list[float]] = {}
    for line in compared(stored, setting, noise):
        method, right = line["method"], line["two_epochs"]
        if method not in highest or sum(right) > sum(highest[method]):
            highest[method] = right
    return highest


def by(
    stored: Stored,
    field: str,
    epochs: int = 2,
    *,
    setting: str = "batch 8",
    noise: float = 0.0,
    more: bool = False,
    **changes: Any,
) -> dict[Any, list[float]]:
    """Return value of ``field`` -> accuracies of ``projected_bfgs`` by seed, else as by default."""
    refuse_unknown("field", field, SWEPT)
    wanted = setting_of(stored.head["plan"], "projected_bfgs", setting, noise, **changes)
    del wanted[field]
    values = {row[field] for row in stored.select(**wanted)} - {None}
    which: dict[str, Any] = {"setting": setting, "noise": noise, "more": more} | changes
    return {
        value: accuracies(stored, "projected_bfgs", epochs, **which, **{field: value})
        for value in sorted(values)
    }


def searches(
    stored: Stored,
    *,
    setting: str = "batch 8",
    noise: float = 0.0,
    more: bool = False,
    **changes: Any,
) -> dict[str, list[float]]:
    """Return how the searches of ``projected_bfgs`` went, by seed; arguments as in ``rows_of``.

    Returns:
        ``failed``: share of the searches that found no step; ``trials``: mean number of trials of
        a search.
    """
    rows = rows_of(stored, "projected_bfgs", setting=setting, noise=noise, more=more, **changes)
    return {
        "failed": [row["failed_searches"] / row["searches"] for row in rows],
        "trials": [row["trials_made"] / row["searches"] for row in rows],
    }
