"""What the race of two-stage training trains: its methods, and the settings of a plan.

stage_one       Momentum 0.9 at a constant rate, 40 snapshots in its later epochs
same_rate       goes on, moments and all, at the rate of stage one
tenth           at a tenth of it
to_zero         in a line from it to 0 over the two epochs
large_batch     at it, or another, in batches of 250, with moments begun anew
average         the mean of the snapshots, which trains nothing
projected_sgd   ``SubspaceStep(method="sgd")`` over nn.SGD with momentum 0.9, batches of 250
projected_bfgs  ``SubspaceStep`` over nn.SGD at rate 1, batches of 250

Stage two starts from the last snapshot, which is the end of stage one (``last``, as the seed does),
from the first one (``first``), or from the initial weights, the basis then of 40 snapshots from
these to the end (``initial``, as the paper does).
"""

from collections.abc import Mapping

from labkit.errors import InputError, refuse_unknown

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
STAGES = ("compare", "sweep", "more")
STARTS = ("last", "first", "initial")
LARGE_BATCH = 250
SEARCH = {"components": 32, "trials": 20, "start": "last", "failure": "reset", "alpha": 0.001}
# Of what an update is timed; stage one and the other controls have the step of same_rate.
TIMED = ("same_rate", "large_batch", "projected_sgd", "projected_bfgs")
SWEPT = ("batch", "learning_rate", *SEARCH)


def setting_of(
    plan: Mapping, method: str, setting: str = "batch 8", noise: float = 0.0, **changes
) -> dict:
    """Return what one training is made with; what its method has not is None.

    plan     as ``head["plan"]``
    changes  fields of a row that are not the method's own: ``same_rate`` and ``to_zero`` have batch
             and rate of stage one, ``tenth`` a tenth of that rate, ``large_batch`` batch 250 at
             that rate, ``projected_sgd`` likewise in the subspace, ``projected_bfgs`` batch 250 and
             rate 1

    Raises ``InputError`` for unknown names, and for changes of what the method has not.
    """
    refuse_unknown("method", method, METHODS)
    refuse_unknown("setting", setting, plan["settings"])
    own = plan["settings"][setting]
    found = {"setting": setting, "noise": noise, "method": method}
    found |= dict.fromkeys(SWEPT)
    if method != "average":
        found |= {"batch": own["batch"], "learning_rate": own["learning_rate"]}
    if method == "tenth":
        found["learning_rate"] = rounded(own["learning_rate"] / 10)
    if method in ("large_batch", "projected_sgd", "projected_bfgs"):
        found["batch"] = LARGE_BATCH
    if method == "projected_sgd":
        found |= {name: SEARCH[name] for name in ("components", "start")}
    if method == "projected_bfgs":
        found |= {"learning_rate": 1.0} | SEARCH
    for name in changes:
        refuse_unknown("field", name, SWEPT)
        if found[name] is None:
            raise InputError(f"{name} came with {method}; it has none")
    return found | changes


def rounded(rate: float) -> float:
    """Return a rate to six digits, as the table holds it."""
    return float(f"{rate:.6g}")


def planned(plan: Mapping) -> list[tuple[str, dict, int]]:
    """Return (stage, setting, seed) of every training, in order.

    Stages: ``compare``, all methods side by side; ``sweep``, one thing changed; ``more``, some
    methods with further seeds.
    """
    return [
        (stage, setting_of(plan, **change), seed)
        for stage in STAGES
        for seed in plan["more_seeds" if stage == "more" else "seeds"]
        for change in plan[stage]
    ]


def updates_of(plan: Mapping, row: Mapping) -> int:
    """Return the updates of a training: whole batches of each epoch; none for an average."""
    if row["method"] == "average":
        return 0
    epochs = plan["epochs"]
    if row["method"] == "stage_one":
        epochs = plan["settings"][row["setting"]]["epochs"]
    return epochs * (plan["images"]["train"] // row["batch"])


def seconds_of(times: Mapping, row: Mapping) -> float | None:
    """Return the seconds of a training's updates; None in a sweep, whose updates are not timed.

    times  setting -> method of ``TIMED`` -> milliseconds of an update
    """
    if row["stage"] == "sweep":
        return None
    method = row["method"] if row["method"] in TIMED else "same_rate"
    return round(row["updates"] * times[row["setting"]][method] / 1e3, 4)
