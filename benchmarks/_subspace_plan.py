"""Plans of the race of two-stage training, at full and at small size.

settings  stage one: its batch, rate and epochs, and start_epoch and saves_per_epoch of
          ``labkit.algorithms.subspace.snapshots.Snapshots``, which give 40 snapshots
compare   all methods side by side, for each stage one; sweep: changes to the search. Both are
          arguments of ``labkit.labs.results.races.subspace_setting``, run with all seeds
more      some methods with more_seeds, since the end of stage one varies much between seeds
epochs    epochs of stage two; points: number of its evaluations
rounds    rounds in which updates are timed, in turn

Rates of the large batch: stage one's rate, the same times the square root of the ratio of the batch
sizes, and times the ratio. Rates of projected SGD, momentum 0.9: stage one's rate, 0.1 and 1.
"""

from collections.abc import Mapping

from _trainings import at_end
from _trainings import check as check_table

from labkit.labs.results.races import LARGE_BATCH, Stored, rounded
from labkit.labs.results.races import subspace_setting as setting_of

STAGES = ("compare", "sweep", "more")
# Methods whose updates are timed; stage one and the other controls use the step of same_rate.
TIMED = ("same_rate", "large_batch", "projected_sgd", "projected_bfgs")
SEEDS = (1, 2, 3)
_MORE_SEEDS = (4, 5, 6, 7, 8)
_MORE = ("stage_one", "same_rate", "tenth", "to_zero", "average", "projected_bfgs")
_SETTINGS = {
    "batch 8": {
        "batch": 8,
        "learning_rate": 0.01,
        "epochs": 6,
        "start_epoch": 2,
        "saves_per_epoch": 8,
    },
    "batch 32": {
        "batch": 32,
        "learning_rate": 0.02,
        "epochs": 14,
        "start_epoch": 5,
        "saves_per_epoch": 4,
    },
}


def _compare(setting, noise=0.0):
    own = _SETTINGS[setting]
    rate, ratio = own["learning_rate"], LARGE_BATCH / own["batch"]
    large = (rate, rounded(rate * ratio**0.5), rounded(rate * ratio))
    changes = [{"method": name} for name in ("stage_one", "same_rate", "tenth", "to_zero")]
    changes += [{"method": "large_batch", "learning_rate": each} for each in large]
    changes += [{"method": "average"}]
    changes += [{"method": "projected_sgd", "learning_rate": each} for each in (rate, 0.1, 1.0)]
    changes += [{"method": "projected_bfgs"}]
    return [{"setting": setting, "noise": noise} | change for change in changes]


def _search(**changes):
    return {"method": "projected_bfgs"} | changes


_REQUIRED = _compare("batch 8") + _compare("batch 32")
_SWEEP = [
    *(_search(trials=trials) for trials in (1, 2, 5)),
    *(_search(components=components) for components in (8, 16, 38)),
    *(_search(start=start) for start in ("first", "initial")),
    _search(trials=2, failure="rollback"),
    _search(failure="rollback"),
    _search(alpha=1.024),
    # Small batches, with which searches fail.
    _search(batch=32),
    _search(batch=32, failure="rollback"),
    *(_search(batch=32, trials=2, failure=failure) for failure in ("reset", "rollback")),
    _search(setting="batch 32", batch=32),
]

_FULL = {
    "settings": _SETTINGS,
    "seeds": SEEDS,
    "compare": _REQUIRED + _compare("batch 8", noise=0.3) + _compare("batch 32", noise=0.3),
    "sweep": _SWEEP,
    "more_seeds": _MORE_SEEDS,
    "more": [{"method": name} for name in _MORE],
    "epochs": 2,
    "points": 4,
    "rounds": 5,
    "images": {"held_out": 0, "train": 5000, "test": None},
}
_SMALL = {"epochs": 2, "start_epoch": 1, "saves_per_epoch": 20}
PLANS = {
    "all": _FULL,
    "required": _FULL | {"compare": _REQUIRED, "sweep": [], "more": []},
    # To check that the program runs: takes seconds; the results mean nothing.
    "quick": _FULL
    | {
        "settings": {"batch 8": _SETTINGS["batch 8"] | _SMALL},
        "seeds": SEEDS[:1],
        "compare": [
            {"method": "stage_one"},
            {"method": "same_rate"},
            {"method": "average"},
            {"method": "projected_sgd"},
            _search(),
        ],
        "sweep": [_search(start="initial")],
        "more": [],
        "rounds": 1,
        "images": {"held_out": 0, "train": 500, "test": 64},
    },
}


def planned(plan: Mapping) -> list[tuple[str, dict, int]]:
    """Return (stage, setting, seed) of every training, in order.

    Stages: ``compare``, all methods side by side; ``sweep``, changes to the search; ``more``, some
    methods with further seeds.
    """
    return [
        (stage, setting_of(plan, **change), seed)
        for stage in STAGES
        for seed in plan["more_seeds" if stage == "more" else "seeds"]
        for change in plan[stage]
    ]


def updates_of(plan: Mapping, row: Mapping) -> int:
    """Return the updates of a training: the full batches of each epoch; 0 for an average."""
    if row["method"] == "average":
        return 0
    epochs = plan["epochs"]
    if row["method"] == "stage_one":
        epochs = plan["settings"][row["setting"]]["epochs"]
    return epochs * (plan["images"]["train"] // row["batch"])


def seconds_of(times: Mapping, row: Mapping) -> float | None:
    """Return the seconds of a training's updates; None in a sweep, whose updates are not timed.

    Args:
        times: setting -> method of ``TIMED`` -> milliseconds of an update
        row: row of the training
    """
    if row["stage"] == "sweep":
        return None
    method = row["method"] if row["method"] in TIMED else "same_rate"
    return round(row["updates"] * times[row["setting"]][method] / 1e3, 4)


def from_curve(curve: list[Mapping], epoch: int, method: str) -> dict:
    """Return a row's fields that follow from its curve; ``epoch`` is the updates in one epoch."""
    first_epoch = {"accuracy": None, "loss": None}
    if method not in ("stage_one", "average"):
        first_epoch = next((point for point in curve if point["update"] == epoch), first_epoch)
    first = {
        "one_epoch_accuracy": first_epoch["accuracy"],
        "one_epoch_loss": first_epoch["loss"],
    }
    return first | at_end(curve)


def check(stored: Stored) -> None:
    """Raise ``InputError`` unless the rows agree with ``stored.head``."""
    plan, times = stored.head["plan"], stored.head["times"]

    def follows(row, curve):
        fields = from_curve(curve, updates_of(plan, row) // plan["epochs"], row["method"])
        if row["method"] != "average":
            fields["seconds"] = seconds_of(times, row)
        return fields

    def updates(row):
        return None if row["stopped"] else updates_of(plan, row)

    check_table(stored, planned(plan), follows, updates)
