"""Plans of the race of Adasum, mean and sum, at full and at small size.

single       optimizer -> learning rates tried with one worker
tuning_seed  seed of all trainings that are judged by held-out images
tune, race   changes to the setting "Adasum of 16 workers' moves, Momentum, at the single-worker
             rate"; ``multiple`` is a multiple of that rate. Each entry of ``race`` has its seeds
epochs       passes of all workers together; points: number of evaluations of a training

The sum of N vectors is N times their mean, and Momentum's moves are proportional to the rate: the
sum of 16 workers at a rate equals the mean at 16 times that rate. Of the stored trainings, the mean
at 0.12 and the sum at 0.0075, seed 1, have losses of 2.2978665 at update 39, equal to 2e-8; later
they diverge by rounding.
"""

from collections.abc import Iterable, Mapping

from _trainings import at_end
from _trainings import check as check_table

from labkit.errors import InputError
from labkit.labs.results.races import WORKERS, Stored, rounded
from labkit.labs.results.races import adasum_setting as setting_of

BATCH, MNIST_IMAGES = 32, 60_000
SEEDS = (1, 2, 3)
_FIRST = SEEDS[:1]


def _sweep(reduction, *multiples):
    return [{"reduction": reduction, "multiple": multiple} for multiple in multiples]


def _workers(*counts):
    return [{"workers": n, "reduction": name} for n in counts for name in ("adasum", "mean")]


# Adasum at twice the rate: that is its own tuned rate.
_REQUIRED = _sweep("adasum", 1, 2) + _sweep("mean", 1, 2, 4, 8) + _sweep("sum", 1)
_GRADIENTS = {"on": "gradients"}
_BESIDE = [
    *_sweep("adasum", 0.5),
    *_sweep("sum", 0.25),
    {"workers": 1},
    *_workers(2, 4, 8, 32),
    *({"workers": n, "reduction": "sum"} for n in (4, 8)),
    {"scope": "network"},
]

PLANS = {
    "all": {
        "single": {"Momentum": (0.003, 0.01, 0.03, 0.1)},
        "tuning_seed": 100,
        "tune": _sweep("adasum", 0.5, 1, 2) + _sweep("mean", 1, 2, 4, 8),
        "race": [
            *((change, SEEDS) for change in [*_REQUIRED, _GRADIENTS]),
            *((change, _FIRST) for change in _BESIDE),
        ],
        "epochs": 2,
        "points": 6,
        "images": {"held_out": 10_000, "train": None, "test": None},
    },
    # To check that the program runs: takes seconds; the results mean nothing.
    "quick": {
        "single": {"Momentum": (0.03,)},
        "tuning_seed": 100,
        "tune": _sweep("adasum", 1),
        "race": [
            (change, _FIRST)
            for change in _sweep("adasum", 1) + _sweep("mean", 1) + _sweep("sum", 1)
        ],
        "epochs": 1,
        "points": 2,
        "images": {"held_out": 64, "train": 1088, "test": 64},
    },
}


def single_settings(plan: Mapping, optimizer: str) -> list[dict]:
    """Return the settings of which the best one gives ``optimizer`` its single-worker rate."""
    return [setting_of(rate, 1, optimizer=optimizer) for rate in plan["single"][optimizer]]


def changed(single: Mapping[str, float], multiple: float = 1, **changes) -> dict:
    """Return the setting of 16 workers with ``changes``, at a multiple of the single-worker rate.

    Args:
        single: optimizer -> single-worker learning rate
        multiple: multiple of that rate
        **changes: further arguments of ``setting_of``
    """
    rate = single[changes.get("optimizer", "Momentum")] * multiple
    return setting_of(rounded(rate), **changes)


def planned(plan: Mapping, single: Mapping[str, float]) -> list[tuple[str, dict, int]]:
    """Return (stage, setting, seed) of every training, in order.

    Stages: ``tune`` on the training images without those held out, by which it is judged; ``race``
    on all training images, judged by the test set.

    Args:
        plan: one of ``PLANS``
        single: optimizer -> single-worker learning rate
    """
    settings = [setting for name in single for setting in single_settings(plan, name)]
    settings += [changed(single, **change) for change in plan["tune"]]
    return [("tune", setting, plan["tuning_seed"]) for setting in settings] + [
        ("race", changed(single, **change), seed)
        for change, seeds in plan["race"]
        for seed in seeds
    ]


def updates_of(plan: Mapping, stage: str, workers: int) -> int:
    """Return the updates of a training: the full batches of each epoch, shared by the workers."""
    images = plan["images"]["train"] or MNIST_IMAGES
    if stage == "tune":
        images -= plan["images"]["held_out"]
    return plan["epochs"] * (images // BATCH) // workers


def best(rows: Iterable[Mapping]) -> Mapping:
    """Return the row with the best final accuracy; among equal ones, the one with the least loss.

    Raises:
        InputError: if all trainings failed.
    """
    rows = [row for row in rows if not row["failure"]]
    if not rows:
        raise InputError("every training of a tuning failed; expected one that did not")
    return min(rows, key=lambda row: (-row["last_accuracy"], row["last_loss"]))


def single_rates(rows: Iterable[Mapping]) -> dict[str, float]:
    """Return optimizer -> single-worker learning rate, from the rows of the tuning."""
    return _best_rates(rows, "optimizer", lambda workers: workers == 1)


def tuned_rates(rows: Iterable[Mapping]) -> dict[str, float]:
    """Return reduction -> its own learning rate with 16 workers, from the rows of the tuning."""
    return _best_rates(rows, "reduction", lambda workers: workers == WORKERS)


def _best_rates(rows, field, is_chosen):
    groups = {}
    for row in rows:
        if row["stage"] == "tune" and is_chosen(row["workers"]):
            groups.setdefault(row[field], []).append(row)
    return {name: best(group)["learning_rate"] for name, group in groups.items()}


def check(stored: Stored) -> None:
    """Raise ``InputError`` unless the rows agree with ``stored.head``."""
    plan, single = stored.head["plan"], stored.head["single"]
    if single != single_rates(stored.rows) or stored.head["tuned"] != tuned_rates(stored.rows):
        raise InputError("the learning rates are not those of the best trainings of the tuning")

    def updates(row):
        return None if row["failure"] else updates_of(plan, row["stage"], row["workers"])

    check_table(stored, planned(plan, single), lambda row, curve: at_end(curve), updates)
