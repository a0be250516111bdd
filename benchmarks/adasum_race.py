"""Adasum against mean and sum: LeNet on MNIST, 16 virtual workers, two epochs.

    python benchmarks/adasum_race.py [--all]    as race.py says

The single-worker learning rate is the best of a grid with one worker, batch 32, trained on 50 000
of MNIST's 60 000 training images and judged by the other 10 000. The learning rates of a reduction
are multiples of it; its own tuned rate is the best on the same images with 16 workers. The test set
is not used for either. Race: on all 60 000 images, judged by the test set, with seeds that the
tuning has not used.

Every rate warms up over 17 % of the updates and then decreases linearly to 0. Each worker has its
own moments. All workers together make two passes over the images.
"""

import numpy as np
import race
from mindspore import Tensor, nn

from labkit.algorithms.adasum import AdasumStep
from labkit.labs.results import LAYERS
from labkit.nets.lenet import LeNet5
from labkit.steps.schedules import get_lr
from labkit.steps.step import PlainStep

BATCH, WORKERS = 32, 16
WARMUP = 0.17  # of the updates
SEEDS = (1, 2, 3)


def _sweep(reduction, *multiples):
    return [{"reduction": reduction, "multiple": multiple} for multiple in multiples]


# Adasum at twice the rate: that is its own tuned rate.
_WITH_SEEDS = [*_sweep("adasum", 1, 2), *_sweep("mean", 1, 2, 4, 8), *_sweep("sum", 1)]
_ONCE = [
    *_sweep("adasum", 0.5),
    *_sweep("sum", 0.25),
    {"workers": 1},
    *({"workers": n, "reduction": of} for n in (2, 4, 8, 32) for of in ("adasum", "mean")),
    *({"workers": n, "reduction": "sum"} for n in (4, 8)),
    {"scope": "network"},
]
# single: optimizer -> learning rates tried with one worker. tune, race: changes to the setting
# "Adasum of 16 workers' moves, Momentum, at the single-worker rate"; each of ``race`` has its
# seeds. points: number of evaluations of a training.
PLAN = {
    "single": {"Momentum": (0.003, 0.01, 0.03, 0.1)},
    "tuning_seed": 100,
    "tune": _sweep("adasum", 0.5, 1, 2) + _sweep("mean", 1, 2, 4, 8),
    "race": [
        *((change, SEEDS) for change in [*_WITH_SEEDS, {"on": "gradients"}]),
        *((change, SEEDS[:1]) for change in _ONCE),
    ],
    "epochs": 2,
    "points": 6,
    "images": {"held_out": 10_000, "train": None, "test": None},
}


def setting_of(learning_rate, workers=WORKERS, reduction="adasum", on="updates", scope="layer"):
    """Return the setting of one training; a single worker has no reduction, on or scope."""
    if workers == 1:
        reduction = on = scope = None
    setting = {"workers": workers, "reduction": reduction, "optimizer": "Momentum"}
    return setting | {"learning_rate": learning_rate, "on": on, "scope": scope}


def planned(plan, rows):
    """Yield every training, in order.

    Stages: ``tune`` on the training images without those held out, by which it is judged; ``race``
    on all training images, judged by the test set.
    """
    limits = {"epochs": plan["epochs"], "points": plan["points"]}
    seed = plan["tuning_seed"]
    for rate in plan["single"]["Momentum"]:
        yield race.training("tune", "validation", setting_of(rate, 1), seed, limits)
    single = decided(plan, rows)["single"]["Momentum"]

    def changed(multiple=1, **changes):
        return setting_of(race.rounded(single * multiple), **changes)

    for change in plan["tune"]:
        yield race.training("tune", "validation", changed(**change), seed, limits)
    for change, seeds in plan["race"]:
        for seed in seeds:
            yield race.training("race", "test", changed(**change), seed, limits)


def decided(plan, rows):
    """Return the best rates: ``single`` by optimizer, and ``tuned`` of 16 workers by reduction.

    The best has the best final accuracy; among equal ones, the least loss.
    """
    best = {}
    for name, field, workers in (("single", "optimizer", 1), ("tuned", "reduction", WORKERS)):
        which = {"stage": "tune", "workers": workers, "failure": None}.items()
        groups = race.grouped((row for row in rows if which <= row.items()), field)
        for (value,), group in groups.items():
            won = min(group, key=lambda row: (-row["last_accuracy"], row["last_loss"]))
            best.setdefault(name, {})[value] = won["learning_rate"]
    return best


def make_step(setting: dict, seed: int, updates: int | None = None):
    """Return (network, step) of one setting, newly initialised.

    With ``updates`` its learning rate is the peak of their schedule, else constant.
    """
    network = race.seeded(LeNet5, seed)
    rate = setting["learning_rate"]
    if updates:
        rate = Tensor(get_lr(0.0, 0.0, rate, max(1, round(WARMUP * updates)), updates, 1))
    optimizer = nn.Momentum(network.trainable_params(), rate, race.MOMENTUM)
    if setting["workers"] == 1:
        return network, PlainStep(race.loss_net_of(network), optimizer)
    options = {name: setting[name] for name in ("workers", "reduction", "on", "scope")}
    return network, AdasumStep(race.loss_net_of(network), optimizer, **options)


def train(setting: dict, data: race.Images, seed: int, *, epochs: int, points: int) -> dict:
    """Train once and return what ``race.run`` does; points also have the workers' cosines.

    The workers take batches in turn. Batches at the end that do not suffice for an update of all
    workers are dropped. A point's cosines are the means over the updates since the one before.
    """
    workers = setting["workers"]
    total = epochs * (len(data.rows) // BATCH) // workers
    network, step = make_step(setting, seed, total)
    stream = race.batches(data.rows, total * workers, seed, BATCH)
    cosines = {name: [] for name in LAYERS}

    def after(update):
        if workers > 1:
            for name, value in cosines_of(step.vectors()).items():
                cosines[name].append(value)

    def mean_cosines():
        fields = {}
        for name, values in cosines.items():
            fields[f"cosine_{name}"] = round(float(np.mean(values)), 5) if values else None
            values.clear()
        return fields

    how = {"workers": workers, "after": after, "extra": mean_cosines}
    return race.run(step, network, data, stream, race.evenly(total, points), **how)


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


RACE = race.Race("adasum_race", PLAN, planned, train, decided=decided)

if __name__ == "__main__":
    RACE.main(__doc__)
