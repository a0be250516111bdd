"""One training of the two-stage race: stage one with its snapshots, or a training after it.

Also the times of the updates of every kind, measured in turn in one process.
"""

import functools
import hashlib
import json
import math
import statistics
import time
from dataclasses import replace
from pathlib import Path

import mindspore as ms
import numpy as np
from _race import Images, batches, judge, run
from _subspace_plan import TIMED
from _subspace_start import Start, moments_of, with_noise
from _trainings import load_json
from mindspore import Tensor, nn

from labkit.algorithms.subspace import Basis, SubspaceStep
from labkit.algorithms.subspace.graphs import Shard
from labkit.algorithms.subspace.snapshots import SnapshotFolder, load_snapshot, write_snapshot
from labkit.labs.results.races import subspace_setting as setting_of
from labkit.nets.lenet import LeNet5
from labkit.steps.gradients import set_state
from labkit.steps.losses import LossNet
from labkit.steps.plain import PlainStep

MOMENTUM = 0.9


def train(setting: dict, data: Images, seed: int, *, folder, stage_one, epochs, points) -> dict:
    """Train once and return its outcome.

    Args:
        setting: from ``labkit.labs.results.races.subspace_setting``
        data: images for training and for judging
        seed: seed of weights and order
        folder: folder in which stage one stores its snapshots and its end
        stage_one: its batch, learning_rate, epochs, and start_epoch and saves_per_epoch as in
            ``labkit.algorithms.subspace.snapshots.Snapshots``
        epochs: epochs of stage two
        points: number of evaluations of stage two, the last one at its end

    Returns:
        as ``_race.run``, with everything compiled before; ``epoch_updates``, the updates of one
        epoch; and, for a search, its statistics.
    """
    data = replace(data, labels=with_noise(data, setting["noise"]))
    key = json.dumps([stage_one, setting["noise"], seed, len(data.rows), epochs], sort_keys=True)
    start = Start(Path(folder) / hashlib.sha256(key.encode()).hexdigest()[:16])
    method = setting["method"]
    if method == "stage_one" or not start.finished:
        outcome = train_stage_one(stage_one, data, seed, start, epochs)
    if method == "average":
        outcome = average(start, data)
    elif method.startswith("projected"):
        outcome = search(setting, data, seed, start, epochs, points)
    elif method != "stage_one":
        outcome = go_on(setting, data, seed, start, stage_one, epochs, points)
    return outcome | {"epoch_updates": len(data.rows) // (setting["batch"] or len(data.rows))}


@functools.cache
def plain(batch: int, updates: int):
    """Return (network, step, its initial state) of Momentum with an array of ``updates`` rates.

    All trainings of the same form share it, so that MindSpore compiles it once.
    """
    network = LeNet5()
    rates = Tensor(np.zeros(updates, np.float32))
    optimizer = nn.Momentum(network.trainable_params(), rates, MOMENTUM)
    return network, *_compiled(PlainStep(_loss_net(network), optimizer), batch)


@functools.cache
def subspace(batch: int, components: int, method: str, rate: float, momentum: float, options: str):
    """Return (network, step, its initial state) of a ``SubspaceStep`` with a placeholder basis."""
    network = LeNet5()
    parameters = network.trainable_params()
    names = [(parameter.name, parameter.shape) for parameter in parameters]
    size = sum(parameter.size for parameter in parameters)
    basis = Basis(np.eye(components, size, dtype=np.float32), names, np.ones(components), 1.0)
    optimizer = nn.SGD(parameters, rate, momentum)
    step = SubspaceStep(_loss_net(network), optimizer, basis, method=method, **json.loads(options))
    return network, *_compiled(step, batch)


def _loss_net(network):
    return LossNet(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))


def _compiled(step, batch):
    """Make one update, which compiles the graphs; return (step, earlier values of Parameters)."""
    values = [parameter.asnumpy().copy() for parameter in step.get_parameters()]
    random = np.random.default_rng(0)
    images = random.standard_normal((batch, 1, 32, 32), dtype=np.float32)
    step(Tensor(images), Tensor(random.integers(0, 10, batch).astype(np.int32)))
    return step, values


def _restore(step, values):
    for parameter, value in zip(step.get_parameters(), values, strict=True):
        set_state(parameter, value)


def train_stage_one(stage_one, data, seed, start, epochs) -> dict:
    """Train stage one and store in ``start`` the state from which other trainings start.

    The array of rates, padded with zeros, is as long as that of a training that continues for
    ``epochs`` of stage two, so that both share one compiled step.
    """
    per_epoch = len(data.rows) // stage_one["batch"]
    total = stage_one["epochs"] * per_epoch
    network, step, values = plain(stage_one["batch"], total + epochs * per_epoch)
    _restore(step, values)
    _initialise(network, seed)
    _set_rates(step, np.full(total, stage_one["learning_rate"]))
    start.clear()
    moments = moments_of(stage_one, per_epoch)
    whole = {math.ceil(total * part / (len(moments) - 1)) for part in range(len(moments))}
    weights = network.trainable_params()

    def after(update):
        if update in moments:
            write_snapshot(start.snapshots / f"step-{update:09d}.safetensors", weights)
        if update in whole:
            write_snapshot(start.whole / f"step-{update:09d}.safetensors", weights)

    after(0)
    judged = range(per_epoch, total + 1, per_epoch)
    stream = batches(data.rows, total, seed, stage_one["batch"])
    outcome = run(step, network, data, stream, judged, after=after)
    start.save(step)
    return outcome


def _initialise(network, seed):
    ms.set_seed(seed)
    np.random.seed(seed)
    for own, new in zip(network.trainable_params(), LeNet5().trainable_params(), strict=True):
        set_state(own, new.asnumpy())


def _set_rates(step, rates):
    parameter = step.optimizer.learning_rate.learning_rate
    padded = np.zeros(parameter.shape, np.float32)
    padded[: len(rates)] = rates
    set_state(parameter, padded)


def go_on(setting, data, seed, start, stage_one, epochs, points) -> dict:
    """Continue the training of stage one, with the setting's batch and rates.

    Its moments are kept, except with large batches: they belong to another rate and threw the
    weights far off.
    """
    batch, rate = setting["batch"], setting["learning_rate"]
    per_epoch = len(data.rows) // batch
    total = epochs * per_epoch
    length = total
    if batch == stage_one["batch"]:
        length += stage_one["epochs"] * per_epoch
    network, step, values = plain(batch, length)
    _restore(step, values)
    start.load_into(step, moments=setting["method"] != "large_batch")
    to_zero = setting["method"] == "to_zero"
    _set_rates(step, rate * (1 - np.arange(total) / total) if to_zero else np.full(total, rate))
    return run(step, network, data, _second(data, total, seed, batch), _judged(total, points))


def search(setting, data, seed, start, epochs, points) -> dict:
    """Train in the subspace of the snapshots, from the setting's starting point."""
    initial = setting["start"] == "initial"
    folder = start.whole if initial else start.snapshots
    searches = setting["method"] == "projected_bfgs"
    options = {n: setting[n] for n in ("trials", "failure", "alpha")} if searches else {}
    batch = setting["batch"]
    network, step, values = subspace(
        batch,
        setting["components"],
        "bfgs" if searches else "sgd",
        setting["learning_rate"],
        0.0 if searches else MOMENTUM,
        json.dumps(options),
    )
    _restore(step, values)
    begin = time.perf_counter()
    basis = Basis.of(folder, network, setting["components"])
    basis_seconds = time.perf_counter() - begin
    step.update.basis_shard = Shard(basis, step.optimizer.parameters)
    load_snapshot(network, folder, "last" if setting["start"] == "last" else "first")
    total = epochs * (len(data.rows) // batch)
    searched = []

    def after(update):
        if searches:
            searched.append(step.last_search)

    stream = _second(data, total, seed, batch)
    outcome = run(step, network, data, stream, _judged(total, points), after=after)
    outcome |= {"basis_seconds": basis_seconds, "explained": float(basis.explained.sum())}
    if searches and searched:
        outcome["searches"] = len(searched)
        outcome["failed_searches"] = searched[-1].failures
        outcome["trials_made"] = sum(search.trials for search in searched)
    return outcome


def average(start, data) -> dict:
    """Judge the mean of the snapshots; ``seconds`` is the time of reading and averaging them."""
    network = LeNet5()
    begin = time.perf_counter()
    with SnapshotFolder(start.snapshots, network) as snapshots:
        weights = [snapshots.load(number) for number in range(len(snapshots))]
    for parameter in network.trainable_params():
        values = np.mean([each[parameter.name] for each in weights], axis=0, dtype=np.float64)
        set_state(parameter, values.astype(np.float32))
    seconds = time.perf_counter() - begin
    accuracy, loss = judge(network, data)
    point = {"update": 0, "accuracy": accuracy, "loss": loss, "training_loss": None}
    return {"curve": [point], "failure": "", "seconds": seconds}


def _second(data, total, seed, batch):
    """Return the batches of stage two, in a different order from those of stage one."""
    return batches(data.rows, total, (seed, 2), batch)


def _judged(total, points):
    return {round(total * number / points) for number in range(1, points + 1)}


def kept_ms(plan: dict, data: Images, folder: Path) -> dict[str, dict[str, float]]:
    """Return ``update_ms``, cached in ``folder`` for the same settings and rounds."""
    path, of = folder / "times.json", {name: plan[name] for name in ("settings", "rounds")}
    kept = load_json(path)
    if kept is None or kept["of"] != of:
        kept = {"of": of, "times": update_ms(plan, data, folder)}
        path.write_text(json.dumps(kept))
    return kept["times"]


def update_ms(plan: dict, data: Images, folder: Path) -> dict[str, dict[str, float]]:
    """Return setting -> method of ``TIMED`` -> milliseconds of an update.

    It is the median over the plan's rounds, each of which runs stage two once with every method,
    for the first seed and without noise, so that other load on the machine affects all alike.
    ``folder`` has the results of stage one.
    """
    planned = {(c.get("setting", "batch 8"), c["method"]) for c in plan["compare"]}
    settings = [
        setting_of(plan, method, setting)
        for setting in plan["settings"]
        for method in TIMED
        if (setting, method) in planned
    ]
    rounds = {}
    for _ in range(plan["rounds"]):
        for setting in settings:
            stage_one = plan["settings"][setting["setting"]]
            limits = {"stage_one": stage_one, "epochs": plan["epochs"], "points": plan["epochs"]}
            outcome = train(setting, data, plan["seeds"][0], folder=folder, **limits)
            ms = outcome["seconds"] / outcome["curve"][-1]["update"] * 1e3
            rounds.setdefault((setting["setting"], setting["method"]), []).append(ms)
    times = {name: {} for name in plan["settings"]}
    for (setting, method), taken in rounds.items():
        times[setting][method] = round(statistics.median(taken), 3)
    return times
