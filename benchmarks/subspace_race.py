"""Two-stage training against its controls: LeNet, 5 000 MNIST images, two epochs after stage one.

    python benchmarks/subspace_race.py            prints the stored race
    python benchmarks/subspace_race.py --all      trains what is not yet done, and stores it
    python benchmarks/subspace_race.py --quick    few of all on few images, into runs/bench

Stage one trains with momentum 0.9 at a constant rate and saves 40 snapshots. The controls continue
from its end, with its weights and moments (large batches with its weights only): at its rate, at a
tenth of it, with a linear decay to zero, in batches of 250. The average of the snapshots trains
nothing. Stage two starts from the weights of the last snapshot, which are those of the end, and
uses batches of 250 in the subspace of 32 components: ``SubspaceStep`` over nn.SGD, rate 1, no
momentum, and projected SGD with momentum 0.9. All are judged by MNIST's 10 000 test images; nothing
is tuned.

Rates of the large batch: stage one's rate, the same times the square root of the ratio of the batch
sizes, and times the ratio. Rates of projected SGD, momentum 0.9: stage one's rate, 0.1 and 1.

Seconds are the number of updates times the time of one, without compilation, judging and the basis;
these times are measured in turn after all trainings. If other programs ran at the same time, the
times can only be compared with each other: see "idle_before" of the stored race.

--all and --quick reuse finished trainings from runs/bench unless --anew is given.
"""

import hashlib
import json
import math
import shutil
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from race import (
    MOMENTUM,
    Images,
    Race,
    Training,
    at_end,
    batches,
    judge,
    loss_net_of,
    percents,
    rounded,
    run,
    updating,
)
from side_by_side import RESULTS, interleaved_ms, print_table, verdict

from labkit.algorithms.subspace import Basis, SubspaceStep
from labkit.algorithms.subspace.snapshots import SnapshotFolder, load_snapshot, write_snapshot
from labkit.base.files import whole_file
from labkit.errors import InputError
from labkit.labs.results import Stored
from labkit.nets.lenet import LeNet5
from labkit.steps.gradients import set_state
from labkit.steps.plain import PlainStep

# Required gain in accuracy after one epoch of stage two over the end of stage one, mean of seeds.
GAIN = 0.02
STARTS = RESULTS / "subspace_starts"  # of stage two: what stage one leaves
_NOISE_SEED = 0  # wrong labels belong to the data: all trainings with noise see the same
# Methods whose updates are timed; stage one and the other controls use the step of same_rate.
TIMED = ("same_rate", "large_batch", "projected_sgd", "projected_bfgs")
SEEDS = (1, 2, 3)
_SEARCHED = ("searches", "failed_searches", "trials_made")
_MORE_SEEDS = (4, 5, 6, 7, 8)
_MORE = ("stage_one", "same_rate", "tenth", "to_zero", "average", "projected_bfgs")
# Stage one: start_epoch and saves_per_epoch are those of
# ``labkit.algorithms.subspace.snapshots.Snapshots`` and give 40 snapshots.
_SETTINGS = {
    "batch 8": {"batch": 8, "learning_rate": 0.01}
    | {"epochs": 6, "start_epoch": 2, "saves_per_epoch": 8},
    "batch 32": {"batch": 32, "learning_rate": 0.02}
    | {"epochs": 14, "start_epoch": 5, "saves_per_epoch": 4},
}
LARGE_BATCH = 250
SEARCH = {"components": 32, "trials": 20, "start": "last", "failure": "reset", "alpha": 0.001}


def subspace_setting(
    plan: Mapping, method: str, setting: str = "batch 8", noise: float = 0.0, **changes
) -> dict:
    """Return the setting of one training; fields that its method does not have are None.

    Args:
        plan: the race's plan
        method: what follows stage one, as the results' README.md names it
        setting: setting of stage one, by its name in the plan
        noise: share of the training labels replaced at random
        **changes: batch, learning_rate or fields of ``SEARCH`` that differ from the method's own:
            ``same_rate`` and ``to_zero`` use batch and rate of stage one, ``tenth`` a tenth of that
            rate, ``large_batch`` batch 250 at that rate, ``projected_sgd`` the same in the
            subspace, ``projected_bfgs`` batch 250 and rate 1
    """
    stage_one = plan["settings"][setting]
    batch, rate = stage_one["batch"], stage_one["learning_rate"]
    own = {
        "tenth": {"learning_rate": rounded(rate / 10)},
        "large_batch": {"batch": LARGE_BATCH},
        "average": {"batch": None, "learning_rate": None},
        "projected_sgd": {"batch": LARGE_BATCH, "components": 32, "start": "last"},
        "projected_bfgs": {"batch": LARGE_BATCH, "learning_rate": 1.0} | SEARCH,
    }
    fields = {"setting": setting, "noise": noise, "method": method} | dict.fromkeys(SEARCH)
    return fields | {"batch": batch, "learning_rate": rate} | own.get(method, {}) | changes


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

# compare: all methods side by side, for each stage one; sweep: changes to the search, both as
# arguments of ``subspace_setting``, with all seeds; more: some methods with more_seeds, since the
# end of stage one varies much between seeds. points: number of evaluations of stage two.
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


def planned(plan, rows):
    """Return every training, in order.

    Stages: ``compare``, all methods side by side; ``sweep``, changes to the search; ``more``, some
    methods with further seeds.
    """
    limits = {"epochs": plan["epochs"], "points": plan["points"]}
    trainings = []
    for stage in ("compare", "sweep", "more"):
        for seed in plan["more_seeds" if stage == "more" else "seeds"]:
            for change in plan[stage]:
                setting = subspace_setting(plan, **change)
                limits = limits | {"stage_one": plan["settings"][setting["setting"]]}
                trainings.append(Training(stage, setting, seed, "test", limits))
    return trainings


def fields(training):
    """Return the fields of a row that the plan decides."""
    return {"stage": training.stage, "seed": training.seed, **training.setting}


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


def of_curve(plan: Mapping, row: Mapping, curve: list[dict]) -> dict:
    """Return a row's fields that follow from its curve: after one epoch, and at the end."""
    first = {"accuracy": None, "loss": None}
    if row["method"] not in ("stage_one", "average"):
        epoch = updates_of(plan, row) // plan["epochs"]
        first = next((point for point in curve if point["update"] == epoch), first)
    after_one = {f"one_epoch_{name}": first[name] for name in ("accuracy", "loss")}
    return after_one | at_end(curve)


def of_outcome(outcome: dict) -> dict:
    """Return the other fields of a row; ``finish`` puts the seconds of all but the average."""
    names = ("seconds", "basis_seconds", "explained")
    kept = {name: outcome.get(name) for name in (*names, *_SEARCHED)}
    kept = {n: round(value, 4) if isinstance(value, float) else value for n, value in kept.items()}
    return kept | {"stopped": outcome["failure"] or None}


def check(stored: Stored) -> None:
    """Raise ``InputError`` unless the seconds are those of the updates."""
    for row in stored.rows:
        seconds = seconds_of(stored.head["times"], row)
        if row["method"] != "average" and row["seconds"] != seconds:
            raise InputError(f"row {row['run']}: expected seconds {seconds}, got {row['seconds']}")


def with_noise(data: Images, noise: float) -> np.ndarray:
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


def train(setting: dict, data: Images, seed: int, *, stage_one, epochs, points) -> dict:
    """Train once and return its outcome.

    Args:
        setting: from ``subspace_setting``
        data: images for training and for judging
        seed: seed of weights and order
        stage_one: its batch, learning_rate, epochs, and start_epoch and saves_per_epoch as in
            ``labkit.algorithms.subspace.snapshots.Snapshots``
        epochs: epochs of stage two
        points: number of evaluations of stage two, the last one at its end

    Returns:
        as ``race.run``; and, for a search, its statistics.
    """
    data = replace(data, labels=with_noise(data, setting["noise"]))
    folder = folder_of(setting, data, seed, stage_one)
    method, batch = setting["method"], setting["batch"]
    if method == "stage_one" or not (folder / "end.npz").exists():
        outcome = train_stage_one(stage_one, data, seed, folder)
    if method == "stage_one":
        return outcome
    if method == "average":
        return average(folder, data)
    total = epochs * (len(data.rows) // batch)
    searched, found = [], {}
    if method.startswith("projected"):
        begin = time.perf_counter()
        network, step, basis = projected(setting, folder)
        found["basis_seconds"] = time.perf_counter() - begin
        found["explained"] = float(basis.explained.sum())
    else:
        network, step = continued(setting, folder, total)

    def after(update):
        if method == "projected_bfgs":
            searched.append(step.last_search)

    judged = {round(total * number / points) for number in range(1, points + 1)}
    # In a different order from that of stage one.
    stream = batches(data.rows, total, (seed, 2), batch)
    outcome = run(step, network, data, stream, judged, after=after) | found
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
    ms.set_seed(seed)
    np.random.seed(seed)
    network, step = momentum(np.full(total, stage_one["learning_rate"]))
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
    stream = batches(data.rows, total, seed, stage_one["batch"])
    outcome = run(step, network, data, stream, judged, after=after)
    values = {p.name: p.asnumpy() for p in (*step.optimizer.parameters, *step.optimizer.moments)}
    with whole_file(folder / "end.npz", "the end of stage one") as temporary:
        np.savez(temporary, **values)
    return outcome


def momentum(rates: np.ndarray):
    """Return (network, step) of Momentum with one rate per update."""
    network = LeNet5()
    optimizer = nn.Momentum(network.trainable_params(), Tensor(rates, ms.float32), MOMENTUM)
    return network, PlainStep(loss_net_of(network), optimizer)


def continued(setting, folder, total):
    """Return (network, step) that continues stage one with the setting's rates.

    Its moments are kept, except with large batches: they belong to another rate and threw the
    weights far off.
    """
    rate, method = setting["learning_rate"], setting["method"]
    rates = np.full(total, rate)
    if method == "to_zero":
        rates *= 1 - np.arange(total) / total
    network, step = momentum(rates)
    moments = [] if method == "large_batch" else step.optimizer.moments
    with np.load(folder / "end.npz") as values:
        for parameter in (*step.optimizer.parameters, *moments):
            set_state(parameter, values[parameter.name])
    return network, step


def projected(setting, folder):
    """Return (network, step, basis) of the subspace, at the setting's starting point."""
    network = LeNet5()
    snapshots = folder / ("whole" if setting["start"] == "initial" else "snapshots")
    basis = Basis.of(snapshots, network, setting["components"])
    load_snapshot(network, snapshots, "last" if setting["start"] == "last" else "first")
    searches = setting["method"] == "projected_bfgs"
    options = {n: setting[n] for n in ("trials", "failure", "alpha")} if searches else {}
    options["method"] = "bfgs" if searches else "sgd"
    rate = setting["learning_rate"]
    optimizer = nn.SGD(network.trainable_params(), rate, 0.0 if searches else MOMENTUM)
    return network, SubspaceStep(loss_net_of(network), optimizer, basis, **options), basis


def average(folder, data) -> dict:
    """Judge the mean of the snapshots; ``seconds`` is the time of reading and averaging them."""
    network = LeNet5()
    begin = time.perf_counter()
    with SnapshotFolder(folder / "snapshots", network) as snapshots:
        weights = [snapshots.load(number) for number in range(len(snapshots))]
    for parameter in network.trainable_params():
        values = np.mean([each[parameter.name] for each in weights], axis=0, dtype=np.float64)
        set_state(parameter, values.astype(np.float32))
    seconds = time.perf_counter() - begin
    accuracy, loss = judge(network, data)
    point = {"update": 0, "accuracy": accuracy, "loss": loss, "training_loss": None}
    return {"curve": [point], "failure": "", "seconds": seconds}


def finish(stored: Stored, plan: dict, images) -> None:
    """Time an update of every kind, and add the seconds to the rows.

    ``times``: setting -> method of ``TIMED`` -> milliseconds, the median over the plan's rounds, in
    each of which every method makes ten updates, in turn: so other load on the machine affects all
    alike. First seed, without noise.
    """
    data, seed = images("test"), plan["seeds"][0]
    stored.head["times"] = {}
    for name, stage_one in plan["settings"].items():
        calls = {}
        for method in TIMED:
            setting = subspace_setting(plan, method, name)
            folder, batch = folder_of(setting, data, seed, stage_one), setting["batch"]
            total = 10 * (plan["rounds"] + 1)
            if method.startswith("projected"):
                step = projected(setting, folder)[1]
            else:
                step = continued(setting, folder, total)[1]
            stream = batches(data.rows, total, (seed, 2), batch)
            calls[method] = updating(step, data, stream)
        times = interleaved_ms(calls, plan["rounds"], 10)
        stored.head["times"][name] = {method: round(value, 3) for method, value in times.items()}
    for row in stored.rows:
        if row["method"] != "average":
            row["seconds"] = seconds_of(stored.head["times"], row)


def show(stored: Stored) -> None:
    """Print the comparisons, the sweeps, and whether the race meets the requirement."""
    compared = stored.select(stage="compare")
    for setting, noise in dict.fromkeys((row["setting"], row["noise"]) for row in compared):
        print(f"\nstage one: {setting}, {noise:.0%} of the labels random; test accuracy in %\n")
        _show_compared(stored.select(stage="compare", setting=setting, noise=noise))
    _show_sweep(stored)
    print("\ngain over the end of stage one, batch 8, after one epoch of stage two; in points\n")
    methods = [change["method"] for change in stored.head["plan"]["more"]]
    if methods:
        rows = [[n, *_gain(gains(stored, n, True))] for n in methods if n != "stage_one"]
        print_table(["more seeds", "mean", "by seed"], rows)
        print()
    reached = gains(stored, "projected_bfgs")
    (mean, by_seed), met = _gain(reached), statistics.mean(reached) >= GAIN
    required = [["projected_bfgs", mean, by_seed, f"{GAIN:+.0%}", verdict(met)]]
    print_table(["", "mean", "by seed", "required", ""], required)


def gains(stored: Stored, method: str, more: bool = False, **which) -> list[float]:
    """Return the gains after one epoch over stage one; ``more`` includes the further seeds."""
    stages = ("compare", "sweep", "more")[: 3 if more else 2]
    after, before = (
        stored.select(stage=stages, **subspace_setting(stored.head["plan"], name, **which))
        for name in (method, "stage_one")
    )
    return [_early(a) - b["last_accuracy"] for a, b in zip(after, before, strict=True)]


def _early(row):
    """Return the accuracy after one epoch; the average has only one, as has what was stopped."""
    early, last = row["one_epoch_accuracy"], row["last_accuracy"]
    return last if early is None else early


def _gain(gains):
    mean, *by_seed = (f"{100 * gain:+.2f}" for gain in (statistics.mean(gains), *gains))
    return [mean, " ".join(by_seed)]


def _show_compared(compared):
    rows, groups = [], {}
    for row in compared:
        groups.setdefault((row["method"], row["batch"], row["learning_rate"]), []).append(row)
    for (method, *rate), own in groups.items():
        # These methods have only one accuracy, the one at the end.
        early = map(_early, own) if method not in ("stage_one", "average") else None
        name = " ".join(str(value) for value in rate if value is not None)
        numbers = [statistics.mean(row[n] for row in own) for n in ("last_loss", "seconds")]
        columns = [*percents(early and [*early]), *percents([row["last_accuracy"] for row in own])]
        rows.append([method, name, *columns, *(f"{number:.3f}" for number in numbers)])
    header = ["", "batch, rate", "one epoch", "by seed", "two", "by seed", "loss", "seconds"]
    print_table(header, rows)


def _show_sweep(stored):
    names, rows = ("setting", *SEARCH, "batch"), []
    swept = stored.select(stage="sweep")
    for values in dict.fromkeys(tuple(row[name] for name in names) for row in swept):
        key = dict(zip(names, values, strict=True))
        what = {name: value for name, value in key.items() if value != _usual(name)}
        setting = subspace_setting(stored.head["plan"], "projected_bfgs", **key)
        own = stored.select(stage=("compare", "sweep"), **setting)
        failed, trials = (
            statistics.mean(row[name] / row["searches"] for row in own)
            for name in ("failed_searches", "trials_made")
        )
        accuracies = [_early(row) for row in own], [row["last_accuracy"] for row in own]
        columns = [text for by_seed in accuracies for text in percents(by_seed)]
        columns += [f"{failed:.1%}", f"{trials:.2f}"]
        rows.append([" ".join(f"{n}={v}" for n, v in what.items()), *columns])
    if rows:
        print("\nprojected BFGS, changed in one thing; test accuracy in %\n")
        print_table(
            ["", "one epoch", "by seed", "two", "by seed", "failed searches", "trials"], rows
        )


def _usual(name):
    return {"setting": "batch 8", "batch": LARGE_BATCH}.get(name) or SEARCH[name]


RACE = Race(
    "subspace_race",
    PLANS,
    planned,
    train,
    lambda plan, row: None if row["stopped"] else updates_of(plan, row),
    show,
    of_curve,
    of_outcome,
    fields=fields,
    finish=finish,
    check_more=check,
)

if __name__ == "__main__":
    RACE.main(__doc__)
