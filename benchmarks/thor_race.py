"""THOR against Momentum on MNIST, both tuned with the same budget: updates and seconds.

    python benchmarks/thor_race.py            prints the stored race
    python benchmarks/thor_race.py --all      trains what is not yet done (1.5 hours), and stores it
    python benchmarks/thor_race.py --quick    everything on few images, into runs/bench

Tuning: training on 50 000 of MNIST's 60 000 training images, judged by the other 10 000; the test
set is not used. Both optimizers have equally many settings, of the same lengths; a training stops
when it reaches the target. Race: each optimizer's winner, and the winners of the other lengths, on
all 60 000 images, judged by the test set every 39 updates, with three seeds that the tuning has not
used. Sweeps: the tuned THOR with one option changed at a time, on the tuning's images and seed.

The number of updates does not depend on the machine's load, but seconds do. They are updates times
the mean time of one, measured in turn in one process, with refreshes but without compilation, after
all trainings.

--all and --quick reuse finished trainings from runs/bench unless --anew is given.
"""

import itertools
import json

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
    loss_net_of,
    rounded,
    run,
    steps_to,
    updating,
)
from side_by_side import interleaved_ms, print_table

from labkit.algorithms.thor import ThorStep, TraceRule
from labkit.labs.results import Stored, mean_steps, to_accuracy
from labkit.nets.lenet import LeNet5
from labkit.nets.resnet import ResidualBlockBase, ResNet
from labkit.steps.plain import PlainStep
from labkit.steps.schedules import cosine

BATCH, WEIGHT_DECAY = 128, 5e-4
TUNING_SEED, SEEDS = 100, (1, 2, 3)
TARGETS = (0.98, 0.985, 0.99)
_FREQUENCY = 10
_OWN = ("net", "optimizer", "learning_rate", "epochs", "damping", "frequency")

# Equally many settings for both, six on LeNet and four on ResNet, times the lengths of the cosine
# in epochs. THOR has two numbers to choose and so a coarser grid over each: where the damping
# outweighs the curvature, rate / damping is the rate of plain Momentum, so both grow together. The
# ranges come from single trainings on the same held-out images, 30 of Momentum and 10 of THOR.
_GRID = {
    "LeNet": {
        "Momentum": [{"learning_rate": rate} for rate in (0.02, 0.03, 0.04, 0.06, 0.08, 0.12)],
        "THOR": [
            {"learning_rate": rate, "damping": damping, "frequency": _FREQUENCY}
            for damping, rates in ((0.3, (0.06, 0.12)), (1.0, (0.2, 0.4)), (3.0, (0.6, 1.2)))
            for rate in rates
        ],
    },
    "ResNet": {
        "Momentum": [{"learning_rate": rate} for rate in (0.03, 0.06, 0.12, 0.24)],
        "THOR": [
            {"learning_rate": rate, "damping": damping, "frequency": _FREQUENCY}
            for rate, damping in ((0.03, 0.3), (0.1, 0.3), (0.1, 1.0), (0.3, 1.0))
        ],
    },
}
# The learning rate changes in proportion to the damping: rate / damping is constant.
IN_PROPORTION = "damping and rate"
_DAMPINGS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# tune_for: settings are tuned for the fewest updates to this accuracy on held-out training images,
# which are harder than the test set: Momentum never reached 98.5 % on them within three epochs.
PLANS = {
    "all": {
        "grid": _GRID,
        "lengths": {"LeNet": (1.5, 2, 3), "ResNet": (1,)},
        "tune_for": 0.98,
        "seeds": SEEDS,
        # Options of the tuned THOR, changed one at a time. A trace rule is [refresh, freeze].
        "varied": {
            "damping": _DAMPINGS,
            IN_PROPORTION: _DAMPINGS,
            "frequency": (1, 5, 10, 50, 100),
            "trace_rule": ([0.01, 0.001], [0.1, 0.001], [0.3, 0.01]),
            "factor_decay": (0.95,),
            "damping_split": ("pi",),
            "split": (32, None),
            "bias": ("plain",),
            "formulas": ("upstream_gpu",),
        },
        "sweep_updates": 390,
        "every": 39,
        "images": {"held_out": 10_000, "train": None, "test": None},
        "turn": 50,  # updates; a multiple of the frequency, so that refreshes count
    },
    # To check that the program runs: takes a minute; the results mean nothing. Most of it is
    # compilation, repeated for every training: so LeNet is trained once, a dense layer replaces it
    # where it shows the same, and only the last timed contestant compiles the graph between
    # refreshes.
    "quick": {
        "grid": {
            net: {
                "Momentum": [{"learning_rate": 0.05}],
                "THOR": [{"learning_rate": 0.1, "damping": 1.0, "frequency": 1}],
            }
            for net in ("dense", "LeNet")
        },
        "lengths": {"LeNet": (1,), "dense": (1, 2)},
        "tune_for": 0.98,
        "seeds": SEEDS[:1],
        "varied": {IN_PROPORTION: (0.3,), "trace_rule": ([0.1, 0.001],)},
        "sweep_updates": 3,
        "every": 2,
        "images": {"held_out": 128, "train": 512, "test": 200},
        "turn": 2,
    },
}
ROUNDS = 5  # of the turns in which updates are timed


def planned(plan, rows):
    """Yield every training of each net: its tuning, its race, and on the first one the sweeps."""
    for number, net in enumerate(plan["grid"]):
        yield from _tuning(plan, net)
        tuned = decided(plan, rows)["tuned"][net]
        for setting in itertools.chain(*tuned.values()):
            for seed in plan["seeds"]:
                yield Training("race", setting, seed, "test", _limits(plan))
        if number == 0:
            limits = _limits(plan, updates=plan["sweep_updates"])
            for name, value, setting in sweeps(tuned["THOR"][0], plan["varied"]):
                columns = {"varied": name, "value": json.dumps(value)}
                yield Training("sweep", setting, TUNING_SEED, "validation", limits, columns)


def _tuning(plan, net):
    for optimizer, settings in plan["grid"][net].items():
        for epochs in plan["lengths"][net]:
            limits = _limits(plan, stop_at=plan["tune_for"])
            for setting in settings:
                setting = {"net": net, "optimizer": optimizer, "epochs": epochs} | setting
                yield Training("tune", setting, TUNING_SEED, "validation", limits)


def _limits(plan, updates=None, stop_at=None):
    return {"updates": updates, "stop_at": stop_at, "every": plan["every"]}


def sweeps(tuned: dict, varied: dict) -> list[tuple[str, object, dict]]:
    """Return (option, its value, the whole setting) of each training of the sweeps.

    Each is the setting ``tuned`` with one option changed; the tuned value is among its values.
    """
    trainings = []
    for name, values in varied.items():
        for value in values:
            setting = tuned | {"damping" if name == IN_PROPORTION else name: value}
            if name == IN_PROPORTION:
                rate = tuned["learning_rate"] * value / tuned["damping"]
                setting["learning_rate"] = rounded(rate)
            trainings.append((name, value, setting))
    return trainings


def decided(plan, rows):
    """Return ``tuned``: net -> optimizer -> the winner of each length, the overall one first."""
    tried = {}
    tune = [row for row in rows if row["stage"] == "tune"]
    planned_tuning = itertools.chain(*(_tuning(plan, net) for net in plan["grid"]))
    for training, row in zip(planned_tuning, tune, strict=False):
        by_optimizer = tried.setdefault(row["net"], {})
        by_optimizer.setdefault(row["optimizer"], []).append((row, training.setting))
    tuned = {}
    for net, by_optimizer in tried.items():
        tuned[net] = {}
        for optimizer, pairs in by_optimizer.items():
            best = winner(pairs, plan["tune_for"])
            each = [
                winner([pair for pair in pairs if pair[1]["epochs"] == epochs], plan["tune_for"])
                for epochs in plan["lengths"][net]
            ]
            tuned[net][optimizer] = [best] + [other for other in each if other != best]
    return {"tuned": tuned}


def winner(pairs: list[tuple[dict, dict]], target: float) -> dict:
    """Return the setting, of pairs (row, setting), that reached ``target`` in the fewest updates.

    If several did at the same update, it is the one with the smallest final loss; if none did, the
    one with the best accuracy.
    """

    def rank(row):
        steps = row[f"to_{target}"]
        if steps is not None:
            return (0, steps, row["last_loss"])
        return (1, -(row["best_accuracy"] or 0.0), 0)

    return min(pairs, key=lambda pair: rank(pair[0]))[1]


def fields(training):
    """Return the fields of a row that the plan decides; further options of THOR are one field."""
    setting = training.setting
    others = {name: value for name, value in setting.items() if name not in _OWN}
    return {
        "stage": training.stage,
        "varied": training.columns.get("varied"),
        "value": training.columns.get("value"),
        **{name: setting.get(name) for name in _OWN},
        "options": json.dumps(others) if others else None,
        "seed": training.seed,
    }


def of_curve(plan, row, curve):
    """Return a row's fields that follow from its curve."""
    end = at_end(curve)
    return {
        "updates": end.pop("updates"),
        **{f"to_{target}": steps_to(curve, target) for target in TARGETS},
        "best_accuracy": max((point["accuracy"] for point in curve), default=None),
        **end,
    }


def of_outcome(outcome):
    """Return the other fields of a row."""
    return {name: outcome.get(name) for name in ("refreshes", "retries", "failure")}


def build(net: str) -> nn.Cell:
    """Return a new network.

    It is LeNet-5, a ResNet-10 of a quarter of the width, or one dense layer, which compiles fast
    and is not raced.
    """
    if net == "LeNet":
        return LeNet5()
    if net == "dense":
        return nn.SequentialCell(nn.Flatten(), nn.Dense(32 * 32, 10))
    return ThreeChannels(
        ResNet(ResidualBlockBase, [1] * 4, [16, 16, 32, 64], [16, 32, 64, 128], [1, 2, 2, 2], 10)
    )


class ThreeChannels(nn.Cell):
    """Applies a network for colour images to grey ones (B, 1, H, W), repeated as 3 channels."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x):
        return self.network(ms.ops.concat((x, x, x), axis=1))


def make_step(setting: dict, per_epoch: int, seed: int):
    """Return (network, step) of one setting, newly initialised.

    Args:
        setting: net, optimizer ("Momentum" or "THOR"), learning_rate, epochs (of the cosine), and,
            for THOR, damping and further options of ``ThorStep`` (trace_rule as a list)
        per_epoch: updates per epoch
        seed: seed of the weights
    """
    ms.set_seed(seed)
    np.random.seed(seed)
    options = dict(setting)
    network = build(options.pop("net"))
    name, peak = options.pop("optimizer"), options.pop("learning_rate")
    rates = Tensor(cosine(peak, 0.0, 1, round(options.pop("epochs") * per_epoch)))
    optimizer = nn.Momentum(network.trainable_params(), rates, MOMENTUM, WEIGHT_DECAY)
    if name == "Momentum":
        return network, PlainStep(loss_net_of(network), optimizer, **options)
    if rule := options.pop("trace_rule", None):
        options["trace_rule"] = TraceRule(*rule)
    return network, ThorStep(loss_net_of(network), optimizer, options.pop("damping"), **options)


def train(setting: dict, data: Images, seed: int, *, every, updates=None, stop_at=None):
    """Train once and return the outcome as ``race.run`` does; for THOR with refreshes and retries.

    Args:
        setting: as for ``make_step``
        data: images for training and for judging
        seed: seed of weights and order
        every: updates between evaluations
        updates: number of updates; None: until the end of the cosine
        stop_at: stop at the first evaluation with at least this accuracy
    """
    per_epoch = len(data.rows) // BATCH
    total = updates or round(setting["epochs"] * per_epoch)
    network, step = make_step(setting, per_epoch, seed)
    stream = batches(data.rows, total, seed, BATCH)
    judged = {*range(every, total, every), total}
    outcome = run(step, network, data, stream, judged, stop_at=stop_at)
    if isinstance(step, ThorStep):
        for name in ("refreshes", "retries"):
            outcome[name] = int(getattr(step.update, name).asnumpy().sum())
    return outcome


def times(stored: Stored, plan: dict, images) -> None:
    """Add to the head: net -> contestant -> ms, the mean time of an update.

    All contestants of a net take turns of ``turn`` updates in this process. On the first net THOR
    is also timed with a refresh at every update and without any: at frequency f an update takes
    cached + (refresh - cached) / f.
    """
    stored.head.update(tuning_seed=TUNING_SEED, times={})
    data, turn, rounds = images("validation"), plan["turn"], ROUNDS if plan is PLANS["all"] else 1
    for number, (net, by_optimizer) in enumerate(stored.head["tuned"].items()):
        won, calls = {optimizer: settings[0] for optimizer, settings in by_optimizer.items()}, {}
        if number == 0:
            won["THOR, refresh"] = won["THOR"] | {"frequency": 1}
            won["THOR, cached"] = won["THOR"] | {"frequency": 10**6}
        for name, setting in won.items():
            updates = (rounds + 1) * turn
            _, step = make_step(setting | {"epochs": 1}, updates, TUNING_SEED)
            stream = batches(data.rows, updates, TUNING_SEED, BATCH)
            calls[name] = updating(step, data, stream)
        ms = interleaved_ms(calls, rounds, turn)
        stored.head["times"][net] = {name: {"ms": round(each, 3)} for name, each in ms.items()}


def show(stored: Stored) -> None:
    """Print the race and the sweeps."""
    for net, tuned in stored.head["tuned"].items():
        print(f"\n{net}, whole training set, test accuracy; the first of each is the winner\n")
        rows = []
        for target in TARGETS:
            sides = {name: to_accuracy(stored, net, name, target) for name in tuned}
            rows += [_line(target, optimizer, side) for optimizer, side in sides.items()]
            momentum, thor = sides.values()
            if momentum["mean"] and thor["mean"]:
                ratios = [f"{momentum[n] / thor[n]:.2f}" for n in ("mean", "seconds")]
                rows.append(["", "times fewer", "", "", *ratios, ""])
            for optimizer, settings in tuned.items():
                for setting in settings[1:]:
                    side = to_accuracy(stored, net, optimizer, target, setting["epochs"])
                    rows.append(_line(target, optimizer, side))
        print_table(["accuracy", "", "epochs", "by seed", "mean", "seconds", "last"], rows)
    print("\nSweeps: validation accuracy, one seed\n")
    header = ["varied", "value", "to 98.0 %", "at the end", "loss", "refreshes", "what happened"]
    names = ("varied", "value", "to_0.98", "last_accuracy", "last_loss", "refreshes", "failure")
    sweep = stored.select(stage="sweep")
    print_table(header, [[_text(row[name]) for name in names] for row in sweep])


def _line(target, optimizer, side):
    numbers = [_text(side[name]) for name in ("mean", "seconds")]
    last = f"{mean_steps(side['last']) or 0:.4f}"
    epochs = _text(side["epochs"])
    return [f"{target:.1%}", optimizer, epochs, str(side["steps"]), *numbers, last]


def _text(value):
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


RACE = Race(
    "thor_race",
    PLANS,
    planned,
    train,
    lambda plan, row: None,
    show,
    of_curve,
    of_outcome,
    fields=fields,
    decided=decided,
    finish=times,
    keeps=lambda row: row["stage"] != "tune",  # the tuning's curves are too many
    meaning={
        "to_X": "first update judged at which the accuracy is at least X; empty: never",
        "stage": "tune and sweep are judged by held-out training images, race by the test set",
        "times": "ms: mean time of an update, measured in turns in one process, refreshes "
        "included, compilation not",
        "mean": "of updates to X over seeds: none where one seed never gets there",
    },
)

if __name__ == "__main__":
    RACE.main(__doc__)
