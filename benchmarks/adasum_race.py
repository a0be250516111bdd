"""Adasum against mean and sum: LeNet on MNIST, 16 virtual workers, two epochs.

    python benchmarks/adasum_race.py            prints the stored race
    python benchmarks/adasum_race.py --all      trains what is not yet done, and stores it
    python benchmarks/adasum_race.py --quick    everything on few images, into runs/bench

The single-worker learning rate is the best of a grid with one worker, batch 32, trained on 50 000
of MNIST's 60 000 training images and judged by the other 10 000. The learning rates of a reduction
are multiples of it; its own tuned rate is the best on the same images with 16 workers. The test set
is not used for either. Race: on all 60 000 images, judged by the test set, with seeds that the
tuning has not used.

Every rate warms up over 17 % of the updates and then decreases linearly to 0. Each worker has its
own moments. All workers together make two passes over the images.

The sum of N vectors is N times their mean, and Momentum's moves are proportional to the rate: the
sum of 16 workers at a rate equals the mean at 16 times that rate. Of the stored trainings, the mean
at 0.12 and the sum at 0.0075, seed 1, have losses of 2.2978665 at update 39, equal to 2e-8; later
they diverge by rounding.

--all and --quick reuse finished trainings from runs/bench unless --anew is given.
"""

import statistics
from collections.abc import Iterable, Mapping

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from race import MOMENTUM, Images, Race, Training, batches, loss_net_of, percents, rounded, run
from side_by_side import print_table, verdict

from labkit.algorithms.adasum import AdasumStep
from labkit.errors import InputError
from labkit.labs.results import LAYERS, Stored
from labkit.nets.lenet import LeNet5
from labkit.steps.plain import PlainStep
from labkit.steps.schedules import get_lr

BATCH, MNIST_IMAGES, WORKERS = 32, 60_000, 16
WARMUP = 0.17  # of the updates
SEEDS = (1, 2, 3)
_FIRST = SEEDS[:1]
# Required mean test accuracy at the single-worker rate: Adasum at least, the sum less than this.
ADASUM, SUM = 0.975, 0.90


def _sweep(reduction, *multiples):
    return [{"reduction": reduction, "multiple": multiple} for multiple in multiples]


def _workers(*counts):
    return [{"workers": n, "reduction": name} for n in counts for name in ("adasum", "mean")]


# Adasum at twice the rate: that is its own tuned rate.
_REQUIRED = _sweep("adasum", 1, 2) + _sweep("mean", 1, 2, 4, 8) + _sweep("sum", 1)
_BESIDE = [
    *_sweep("adasum", 0.5),
    *_sweep("sum", 0.25),
    {"workers": 1},
    *_workers(2, 4, 8, 32),
    *({"workers": n, "reduction": "sum"} for n in (4, 8)),
    {"scope": "network"},
]
# single: optimizer -> learning rates tried with one worker. tune, race: changes to the setting
# "Adasum of 16 workers' moves, Momentum, at the single-worker rate"; each of ``race`` has its
# seeds. points: number of evaluations of a training.
PLANS = {
    "all": {
        "single": {"Momentum": (0.003, 0.01, 0.03, 0.1)},
        "tuning_seed": 100,
        "tune": _sweep("adasum", 0.5, 1, 2) + _sweep("mean", 1, 2, 4, 8),
        "race": [
            *((change, SEEDS) for change in [*_REQUIRED, {"on": "gradients"}]),
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
        "race": [(each, _FIRST) for name in ("adasum", "mean", "sum") for each in _sweep(name, 1)],
        "epochs": 1,
        "points": 2,
        "images": {"held_out": 64, "train": 1088, "test": 64},
    },
}


def adasum_setting(
    learning_rate: float,
    workers: int = WORKERS,
    reduction: str | None = "adasum",
    optimizer: str = "Momentum",
    on: str | None = "updates",
    scope: str | None = "layer",
) -> dict:
    """Return the setting of one training; a single worker has no reduction, on or scope.

    ``optimizer`` is each worker's; ``on`` "updates" or "gradients" is what is combined, ``scope``
    that of an angle, "layer" or "network".
    """
    if workers == 1:
        reduction = on = scope = None
    setting = {"workers": workers, "reduction": reduction, "optimizer": optimizer}
    return setting | {"learning_rate": learning_rate, "on": on, "scope": scope}


def changed(single: Mapping[str, float], multiple: float = 1, **changes) -> dict:
    """Return the setting of 16 workers with ``changes``, at a multiple of the single-worker rate.

    Args:
        single: optimizer -> single-worker learning rate
        multiple: multiple of that rate
        **changes: further arguments of ``adasum_setting``
    """
    rate = single[changes.get("optimizer", "Momentum")] * multiple
    return adasum_setting(rounded(rate), **changes)


def planned(plan, rows):
    """Yield every training, in order.

    Stages: ``tune`` on the training images without those held out, by which it is judged; ``race``
    on all training images, judged by the test set.
    """
    limits = {"epochs": plan["epochs"], "points": plan["points"]}
    tune = plan["tuning_seed"], "validation", limits
    for optimizer, rates in plan["single"].items():
        for rate in rates:
            yield Training("tune", adasum_setting(rate, 1, optimizer=optimizer), *tune)
    single = decided(plan, rows)["single"]
    for change in plan["tune"]:
        yield Training("tune", changed(single, **change), *tune)
    for change, seeds in plan["race"]:
        for seed in seeds:
            yield Training("race", changed(single, **change), seed, "test", limits)


def decided(plan, rows):
    """Return the best rates: ``single`` by optimizer, and ``tuned`` of 16 workers by reduction."""
    return {"single": _best(rows, "optimizer", 1), "tuned": _best(rows, "reduction", WORKERS)}


def _best(rows, field, workers):
    groups = {}
    for row in rows:
        if row["stage"] == "tune" and row["workers"] == workers:
            groups.setdefault(row[field], []).append(row)
    return {name: best(group)["learning_rate"] for name, group in groups.items()}


def best(rows: Iterable[Mapping]) -> Mapping:
    """Return the row with the best final accuracy; among equal ones, the one with the least loss.

    Raises:
        InputError: if all trainings failed.
    """
    rows = [row for row in rows if not row["failure"]]
    if not rows:
        raise InputError("every training of a tuning failed; expected one that did not")
    return min(rows, key=lambda row: (-row["last_accuracy"], row["last_loss"]))


def make_step(setting: dict, updates: int, seed: int):
    """Return (network, step) of one setting, newly initialised, for a schedule of ``updates``.

    ``learning_rate`` of the setting is the peak.
    """
    peak = setting["learning_rate"]
    rates = get_lr(0.0, 0.0, peak, max(1, round(WARMUP * updates)), updates, 1)
    return step_at(setting, Tensor(rates), seed)


def step_at(setting: dict, rate: float | Tensor, seed: int):
    """Return (network, step) of one setting at a constant rate or with one rate per update."""
    ms.set_seed(seed)
    np.random.seed(seed)
    network = LeNet5()
    optimizer = nn.Momentum(network.trainable_params(), rate, MOMENTUM)
    loss_net = loss_net_of(network)
    if setting["workers"] == 1:
        return network, PlainStep(loss_net, optimizer)
    options = {name: setting[name] for name in ("workers", "reduction", "on", "scope")}
    return network, AdasumStep(loss_net, optimizer, **options)


def train(setting: dict, data: Images, seed: int, *, epochs: int, points: int) -> dict:
    """Train once and return what ``race.run`` does; points also have the workers' cosines.

    The workers take batches in turn. Batches at the end that do not suffice for an update of all
    workers are dropped.
    """
    workers = setting["workers"]
    total = epochs * (len(data.rows) // BATCH) // workers
    judged = {round(total * number / points) for number in range(1, points + 1)}
    network, step = make_step(setting, total, seed)
    stream = batches(data.rows, total * workers, seed, BATCH)
    cosines = []  # since the previous point

    def after(update):
        if workers > 1:
            cosines.append(cosines_of(step.vectors()))

    def mean_cosines():
        fields = {}
        for name in LAYERS:
            values = [by_layer[name] for by_layer in cosines if name in by_layer]
            fields[f"cosine_{name}"] = round(float(np.mean(values)), 5) if values else None
        cosines.clear()
        return fields

    return run(
        step, network, data, stream, judged, workers=workers, after=after, extra=mean_cosines
    )


def cosines_of(vectors: dict) -> dict[str, float]:
    """Return, for each layer's weight, the mean cosine over pairs of workers.

    ``vectors`` is parameter name -> (workers, size); a layer in which a worker's vector is zero or
    not finite is left out.
    """
    cosines = {}
    for name in LAYERS:
        rows = vectors[f"{name}.weight"].astype(np.float64)
        lengths = np.linalg.norm(rows, axis=1)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            continue
        total = (rows / lengths[:, None]).sum(axis=0)
        count = len(rows)
        # |sum of unit vectors|^2 is N plus twice the sum over pairs.
        cosines[name] = float((total @ total - count) / (count * (count - 1)))
    return cosines


def updates_of(plan: Mapping, row: Mapping) -> int | None:
    """Return the updates of a training: the full batches of each epoch, shared by the workers."""
    if row["failure"]:
        return None
    images = plan["images"]["train"] or MNIST_IMAGES
    if row["stage"] == "tune":
        images -= plan["images"]["held_out"]
    return plan["epochs"] * (images // BATCH) // row["workers"]


def show(stored: Stored) -> None:
    """Print the tuned rates, the race, and whether it meets the requirements."""
    print(f"\nlearning rates: single worker {stored.head['single']}, tuned {stored.head['tuned']}")
    print("\ntest accuracy in %\n")
    names = ("workers", "reduction", "optimizer", "on", "scope", "learning_rate")
    by_setting = {}
    for row in stored.select(stage="race"):
        by_setting.setdefault(tuple(row[name] for name in names), []).append(row["last_accuracy"])
    rows = [
        [*("-" if value is None else f"{value}" for value in setting), *percents(accuracies)]
        for setting, accuracies in by_setting.items()
    ]
    print_table([*names, "mean", "by seed"], rows)
    teams = {"stage": "race", "workers": WORKERS, "on": "updates", "scope": "layer"}
    means = {}
    for name in ("adasum", "mean", "sum"):
        by_rate = stored.by("learning_rate", "last_accuracy", reduction=name, **teams)
        means[name] = {rate: statistics.mean(right) for rate, right in by_rate.items()}
    adasum, least = (means[n][stored.head["single"]["Momentum"]] for n in ("adasum", "sum"))
    most = max(means["mean"].values())
    rows = [
        ["Adasum", adasum, f"at least {ADASUM}", verdict(adasum >= ADASUM)],
        ["Adasum over the mean's best rate", adasum - most, "more than 0", verdict(adasum > most)],
        ["sum", least, f"less than {SUM}", verdict(least < SUM)],
    ]
    print("\nrequired, at the single-worker rate, mean of the seeds\n")
    print_table(["", "accuracy", "required", ""], rows)


RACE = Race(
    "adasum_race",
    PLANS,
    planned,
    train,
    updates_of,
    show,
    decided=decided,
    meaning={
        "stage": "tune is judged by held-out training images, race by the test set",
        "single": "learning rate of the best training with one worker, by optimizer",
        "tuned": "learning rate of the best training with 16 workers, by reduction",
        "cosine_LAYER": "mean cosine of two workers' vectors, over pairs, and over the updates "
        "since the point before; of what is combined: moves, or gradients with on = gradients",
    },
)

if __name__ == "__main__":
    RACE.main(__doc__)
