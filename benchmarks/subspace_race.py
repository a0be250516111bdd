"""Two-stage training against its controls: LeNet, 5 000 MNIST images, two epochs after stage one.

    python benchmarks/subspace_race.py [--all]    as race.py says

Stage one trains with momentum 0.9 at a constant rate and saves 40 snapshots. The controls continue
from its end, with its weights and moments (large batches with its weights only): at its rate, at a
tenth of it, with a linear decay to zero, in batches of 250. The average of the snapshots trains
nothing. Stage two starts from the weights of the last snapshot, which are those of the end, and
uses batches of 250 in the subspace of 32 components: ``SubspaceStep`` over nn.SGD, rate 1, no
momentum, and projected SGD with momentum 0.9. All are judged by MNIST's 10 000 test images; nothing
is tuned.

Seconds are the number of updates times the time of one, without compilation, judging and the basis;
these times are measured in turn after all trainings. Other programs ran at
the same time ("idle_before" of the stored race): the times can only be compared with each other.
"""

import hashlib
import json
import math
import shutil
import time
from dataclasses import replace
from pathlib import Path

import mindspore as ms
import numpy as np
import race
from mindspore import Tensor, nn
from side_by_side import RESULTS, interleaved_ms

from labkit.algorithms.subspace import Basis, SubspaceStep
from labkit.algorithms.subspace.snapshots import SnapshotFolder, write_snapshot
from labkit.base.files import whole_file
from labkit.nets.lenet import LeNet5
from labkit.steps.state import set_state
from labkit.steps.step import PlainStep

STARTS = RESULTS / "subspace_starts"  # of stage two: what stage one leaves
_NOISE_SEED = 0  # wrong labels belong to the data: all trainings with noise see the same
# Methods whose updates are timed; the others use the step of same_rate.
TIMED = ("same_rate", "large_batch", "projected_sgd", "projected_bfgs")
SEEDS, LARGE_BATCH = (1, 2, 3), 250
SEARCH = {"components": 32, "trials": 20, "start": "last", "failure": "reset", "alpha": 0.001}
# Stage one: start_epoch and saves_per_epoch are those of
# ``labkit.algorithms.subspace.snapshots.Snapshots`` and give 40 snapshots.
_SETTINGS = {
    "batch 8": {"batch": 8, "learning_rate": 0.01}
    | {"epochs": 6, "start_epoch": 2, "saves_per_epoch": 8},
    "batch 32": {"batch": 32, "learning_rate": 0.02}
    | {"epochs": 14, "start_epoch": 5, "saves_per_epoch": 4},
}


def _methods(*names):
    return [{"method": name} for name in names]


def _compare(noise):
    changes = []
    for setting, own in _SETTINGS.items():
        rate, ratio = own["learning_rate"], LARGE_BATCH / own["batch"]
        large = [rate, race.rounded(rate * ratio**0.5), race.rounded(rate * ratio)]
        methods = _methods("stage_one", "same_rate", "tenth", "to_zero")
        methods += [{"method": "large_batch", "learning_rate": each} for each in large]
        methods += _methods("average")
        methods += [{"method": "projected_sgd", "learning_rate": r} for r in (rate, 0.1, 1.0)]
        methods += _methods("projected_bfgs")
        changes += [{"setting": setting, "noise": noise} | method for method in methods]
    return changes


_SWEEP = [
    *({"trials": trials} for trials in (1, 2, 5)),
    *({"components": components} for components in (8, 16, 38)),
    *({"start": start} for start in ("first", "initial")),
    {"trials": 2, "failure": "rollback"},
    {"failure": "rollback"},
    {"alpha": 1.024},
    # Small batches, with which searches fail.
    {"batch": 32},
    {"batch": 32, "failure": "rollback"},
    *({"batch": 32, "trials": 2, "failure": failure} for failure in ("reset", "rollback")),
    {"setting": "batch 32", "batch": 32},
]
# compare: all methods side by side, for each stage one; sweep: changes to the search, both as
# arguments of ``setting_of``, with all seeds; more: some methods with more_seeds, since the end of
# stage one varies much between seeds. points: number of evaluations of stage two.
PLAN = {
    "settings": _SETTINGS,
    "seeds": SEEDS,
    "compare": _compare(0.0) + _compare(0.3),
    "sweep": [{"method": "projected_bfgs"} | change for change in _SWEEP],
    "more_seeds": (4, 5, 6, 7, 8),
    "more": _methods("stage_one", "same_rate", "tenth", "to_zero", "average", "projected_bfgs"),
    "epochs": 2,
    "points": 4,
    "rounds": 5,
    "images": {"held_out": 0, "train": 5000, "test": None},
}


def setting_of(settings: dict, method: str, setting="batch 8", noise=0.0, **changes) -> dict:
    """Return the setting of one training; fields that its method does not have are None.

    ``changes`` differ from the method's own: batch and rate of stage one, of which ``settings`` has
    those called ``setting``, a tenth of that rate, batches of 250, or for a search ``SEARCH``.
    ``noise`` is the share of the training labels replaced at random.
    """
    batch, rate = settings[setting]["batch"], settings[setting]["learning_rate"]
    own = {
        "tenth": {"learning_rate": race.rounded(rate / 10)},
        "large_batch": {"batch": LARGE_BATCH},
        "average": {"batch": None, "learning_rate": None},
        "projected_sgd": {"batch": LARGE_BATCH, "components": 32, "start": "last"},
        "projected_bfgs": {"batch": LARGE_BATCH, "learning_rate": 1.0} | SEARCH,
    }.get(method, {})
    fields = {"setting": setting, "noise": noise, "method": method, "batch": batch}
    return fields | {"learning_rate": rate} | dict.fromkeys(SEARCH) | own | changes


def planned(plan, rows):
    """Return every training, in order, stage by stage and seed by seed."""
    limits = {"epochs": plan["epochs"], "points": plan["points"]}
    trainings = []
    for stage in ("compare", "sweep", "more"):
        for seed in plan["more_seeds" if stage == "more" else "seeds"]:
            for change in plan[stage]:
                setting = setting_of(plan["settings"], **change)
                limits = limits | {"stage_one": plan["settings"][setting["setting"]]}
                row = {"stage": stage, "seed": seed, **setting}
                trainings.append(race.Training(row, "test", setting, seed, limits))
    return trainings


def end(plan, row, outcome):
    """Return a row's other fields; ``finish`` puts the seconds of all but the average.

    ``one_epoch`` fields are those in the middle of a training of two epochs.
    """
    fields, one_epoch = race.at_end(plan, row, outcome), {"accuracy": None, "loss": None}
    del fields["failure"]
    for point in outcome["curve"] if row["method"] not in ("stage_one", "average") else ():
        if point["update"] == plan["images"]["train"] // row["batch"]:
            one_epoch = point
    fields |= {f"one_epoch_{name}": one_epoch[name] for name in ("accuracy", "loss")}
    for name in ("seconds", "basis_seconds", "explained"):
        fields[name] = outcome.get(name) and round(outcome[name], 4)
    for name in ("searches", "failed_searches", "trials_made"):
        fields[name] = outcome.get(name)
    return fields | {"stopped": outcome["stopped"] or None}


def with_noise(data: race.Images, noise: float) -> np.ndarray:
    """Return the labels; a share ``noise`` of the training labels is redrawn from all classes."""
    random = np.random.default_rng(_NOISE_SEED)
    rows = random.permutation(data.rows)[: round(noise * len(data.rows))]
    labels = data.labels.copy()
    labels[rows] = random.integers(0, 10, len(rows))
    return labels


def moments_of(stage_one, per_epoch):
    """Return the updates after which ``Snapshots`` saves with the arguments of ``stage_one``."""
    saves = stage_one["saves_per_epoch"]
    inside = [math.ceil(per_epoch * part / saves) for part in range(1, saves + 1)]
    epochs = range(stage_one["start_epoch"] - 1, stage_one["epochs"])
    return [epoch * per_epoch + moment for epoch in epochs for moment in inside]


def train(setting: dict, data: race.Images, seed: int, *, stage_one, epochs, points) -> dict:
    """Train once and return what ``race.run`` does; for a search, with its statistics.

    Stage two takes ``epochs`` and is judged at ``points`` of its updates.
    """
    data = replace(data, labels=with_noise(data, setting["noise"]))
    folder = folder_of(setting, data, seed, stage_one)
    method = setting["method"]
    if method == "stage_one" or not (folder / "end.npz").exists():
        outcome = train_stage_one(stage_one, data, seed, folder)
    if method == "average":
        outcome = average(folder, data)
    elif method != "stage_one":
        outcome = train_stage_two(setting, folder, data, seed, epochs, points)
    return outcome | {"stopped": outcome.pop("failure")}


def train_stage_two(setting, folder, data, seed, epochs, points) -> dict:
    """Train from what stage one left in ``folder``."""
    total = epochs * (len(data.rows) // setting["batch"])
    searched, found = [], {}
    if setting["method"].startswith("projected"):
        begin = time.perf_counter()
        network, step, basis = projected(setting, folder)
        found["basis_seconds"] = time.perf_counter() - begin
        found["explained"] = float(basis.explained.sum())
    else:
        network, step = continued(setting, folder, total)

    def after(update):
        if setting["method"] == "projected_bfgs":
            searched.append(step.last_search)

    # In a different order from that of stage one.
    stream = race.batches(data.rows, total, (seed, 2), setting["batch"])
    outcome = race.run(step, network, data, stream, race.evenly(total, points), after=after) | found
    if searched:
        outcome["searches"] = len(searched)
        outcome["failed_searches"] = searched[-1].failures
        outcome["trials_made"] = sum(search.trials for search in searched)
    return outcome


def folder_of(setting, data, seed, stage_one) -> Path:
    """Return the folder of what a stage one leaves.

    ``snapshots``: 40 snapshots of its later epochs; ``whole``: 40 from the initial weights to its
    end; ``end.npz``: the weights and moments at its end, by name.
    """
    key = json.dumps([stage_one, setting["noise"], seed, len(data.rows)], sort_keys=True)
    return STARTS / hashlib.sha256(key.encode()).hexdigest()[:16]


def train_stage_one(stage_one, data, seed, folder) -> dict:
    """Train stage one and write into ``folder`` what other trainings start from."""
    per_epoch = len(data.rows) // stage_one["batch"]
    total = stage_one["epochs"] * per_epoch
    network, step = race.seeded(lambda: momentum(np.full(total, stage_one["learning_rate"])), seed)
    weights = network.trainable_params()
    moments = moments_of(stage_one, per_epoch)
    whole = {math.ceil(total * part / (len(moments) - 1)) for part in range(len(moments))}
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("snapshots", "whole"):
        (folder / name).mkdir(parents=True)

    def after(update):
        for name, updates in (("snapshots", moments), ("whole", whole)):
            if update in updates:
                write_snapshot(folder / name / f"step-{update:09d}.safetensors", weights)

    after(0)
    judged = range(per_epoch, total + 1, per_epoch)
    stream = race.batches(data.rows, total, seed, stage_one["batch"])
    outcome = race.run(step, network, data, stream, judged, after=after)
    values = {p.name: p.asnumpy() for p in (*step.optimizer.parameters, *step.optimizer.moments)}
    with whole_file(folder / "end.npz", "the end of stage one") as temporary:
        np.savez(temporary, **values)
    return outcome


def momentum(rates: np.ndarray):
    """Return (network, step) of Momentum with one rate per update."""
    network = LeNet5()
    optimizer = nn.Momentum(network.trainable_params(), Tensor(rates, ms.float32), race.MOMENTUM)
    return network, PlainStep(race.loss_net_of(network), optimizer)


def put(parameters, values: dict) -> None:
    """Set parameters to arrays, by name."""
    for parameter in parameters:
        set_state(parameter, values[parameter.name])


def continued(setting, folder, total):
    """Return (network, step) that continues stage one with the setting's rates.

    Its moments are kept, except with large batches: they belong to another rate and threw the
    weights far off.
    """
    rates = np.full(total, setting["learning_rate"])
    if setting["method"] == "to_zero":
        rates *= 1 - np.arange(total) / total
    network, step = momentum(rates)
    moments = [] if setting["method"] == "large_batch" else step.optimizer.moments
    with np.load(folder / "end.npz") as values:
        put((*step.optimizer.parameters, *moments), values)
    return network, step


def weights_in(folder: Path, network: nn.Cell) -> list[dict]:
    """Return the weights of each snapshot, by name."""
    snapshots = SnapshotFolder(folder, network)
    return [snapshots.load(number) for number in range(len(snapshots))]


def projected(setting, folder):
    """Return (network, step, basis) of the subspace, at the setting's starting point."""
    network = LeNet5()
    snapshots = folder / ("whole" if setting["start"] == "initial" else "snapshots")
    basis = Basis.of(snapshots, network, setting["components"])
    number = -1 if setting["start"] == "last" else 0
    put(network.trainable_params(), weights_in(snapshots, network)[number])
    searches = setting["method"] == "projected_bfgs"
    options = {n: setting[n] for n in ("trials", "failure", "alpha")} if searches else {}
    options["method"] = "bfgs" if searches else "sgd"
    speed = 0.0 if searches else race.MOMENTUM
    optimizer = nn.SGD(network.trainable_params(), setting["learning_rate"], speed)
    return network, SubspaceStep(race.loss_net_of(network), optimizer, basis, **options), basis


def average(folder, data) -> dict:
    """Judge the mean of the snapshots; ``seconds`` is the time of reading and averaging them."""
    network = LeNet5()
    begin = time.perf_counter()
    weights = weights_in(folder / "snapshots", network)
    means = {n: np.mean([w[n] for w in weights], axis=0, dtype=np.float64) for n in weights[0]}
    put(network.trainable_params(), {n: mean.astype(np.float32) for n, mean in means.items()})
    seconds = time.perf_counter() - begin
    accuracy, loss = race.judge(network, data)
    point = {"update": 0, "accuracy": accuracy, "loss": loss, "training_loss": None}
    return {"curve": [point], "failure": "", "seconds": seconds}


def finish(stored, images) -> None:
    """Time an update of every kind, and add the seconds to the rows.

    ``times``: setting -> method of ``TIMED`` -> milliseconds, the median over the plan's rounds, in
    each of which every method makes ten updates, in turn: so other load on the machine affects all
    alike. First seed, without noise.
    """
    plan, data = stored.head["plan"], images("test")
    seed, times = plan["seeds"][0], stored.head.setdefault("times", {})
    total = 10 * (plan["rounds"] + 1)
    for name, stage_one in plan["settings"].items():
        calls = {}
        for method in TIMED:
            setting = setting_of(plan["settings"], method, name)
            folder = folder_of(setting, data, seed, stage_one)
            if method.startswith("projected"):
                step = projected(setting, folder)[1]
            else:
                step = continued(setting, folder, total)[1]
            stream = race.batches(data.rows, total, (seed, 2), setting["batch"])
            calls[method] = race.updating(step, data, stream)
        taken = interleaved_ms(calls, plan["rounds"], 10)
        times[name] = {method: round(value, 3) for method, value in taken.items()}
    for row in stored.rows:
        if row["method"] != "average":
            method = row["method"] if row["method"] in TIMED else "same_rate"
            seconds = round(row["updates"] * times[row["setting"]][method] / 1e3, 4)
            row["seconds"] = None if row["stage"] == "sweep" else seconds


RACE = race.Race("subspace_race", PLAN, planned, train, end, finish=finish)

if __name__ == "__main__":
    RACE.main(__doc__)
