"""The stored race of two-stage training and cheaper methods, as lab 05 reads it.

A row is one training of LeNet on 5 000 MNIST images, judged on the test set:

setting   "batch 8" (rate .01, 6 epochs) or "batch 32" (.02, 14): batch and rate of its stage one
noise     share of the training labels replaced at random; 0.0, or 0.3
stage     ``compare``: all methods; ``sweep``: one field changed; ``more``: further seeds
seed      of the weights and the order of images: 1, 2, 3; in ``more`` 4 to 8
method    one of ``METHODS``, see below
batch     batch size; learning_rate: of the optimizer, for ``to_zero`` at the start
components, start        number of components of the basis; weights at the start of stage two
                         (``STARTS``)
trials, failure, alpha   constants of the search, as in ``labkit.algorithms.subspace``
updates   number of updates; seconds: updates times the time of one update, without compiling and
          judging, from ``head["times"]`` by setting and method; for ``average``, the time of
          reading the snapshots
one_epoch_accuracy, one_epoch_loss   after one epoch of stage two; empty for ``stage_one``, average
last_accuracy, last_loss             at the end of stage one, or after two epochs of stage two
basis_seconds, explained   time to make the basis; share of variance of all its components
searches, failed_searches, trials_made   totals of the whole training
stopped   what stopped the training before its end; empty: nothing

A field that a method does not have is empty (None). ``update`` of a curve counts from the start of
the row's own stage. The methods:

stage_one       Momentum 0.9 at a constant rate, 40 snapshots in its later epochs
same_rate       continues, with its moments, at the rate of stage one
tenth           continues at a tenth of that rate
to_zero         continues, the rate falling linearly from that of stage one to 0 over two epochs
large_batch     continues at that rate or a different one, in batches of 250, with new moments
average         the mean of the snapshots; trains nothing
projected_sgd   ``SubspaceStep(method="sgd")`` over nn.SGD with momentum 0.9, batches of 250
projected_bfgs  ``SubspaceStep`` over nn.SGD at rate 1, batches of 250

Stage two starts from the last snapshot, which is the end of stage one (``last``, as in the source
document), from the first snapshot (``first``), or from the initial weights (``initial``, as in the
paper). With ``initial``, the 40 snapshots of the basis reach from these weights to the end of stage
one.
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
        stored: the stored race
        method: one of ``METHODS``
        setting: setting of stage one
        noise: share of the training labels replaced at random
        more: whether to include the further seeds
        **changes: as in ``setting_of``

    Raises:
        InputError: if the setting was not raced, and as in ``setting_of``.
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

    Stage one and the average have one accuracy for any ``epochs``; a training that was stopped
    earlier has the accuracy of its last point. All other arguments are as in ``rows_of``.
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
    """Return ``accuracies`` minus those at the end of stage one, by seed."""
    reached = accuracies(stored, method, epochs, setting=setting, noise=noise, more=more, **changes)
    ends = accuracies(stored, "stage_one", setting=setting, noise=noise, more=more)
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

    This favours methods that were raced at several rates.
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
