"""THOR against Momentum and Muon on MNIST, each tuned: updates and seconds.

    python benchmarks/thor_race.py [--all]    as race.py says; --all takes 1.5 hours

Tuning: training on 50 000 of MNIST's 60 000 training images, judged by the other 10 000; the test
set is not used. THOR and Momentum have equally many settings, of the same lengths; a training stops
when it reaches the target. Race: each optimizer's winner, and the winners of the other lengths, on
all 60 000 images, judged by the test set every 39 updates, with three seeds that the tuning has not
used. Sweeps: the tuned THOR with one option changed at a time, on the tuning's images and seed.
Muon came later, with as many settings of one length: LeNet's two inner dense layers, 58 080 of
61 684 weights, are Muon's, and AdamW takes the rest at the same rate.

Seconds are updates times the mean time of one, measured in turn in one process after all trainings,
with refreshes but without compilation.
"""

import itertools
import json

import mindspore as ms
import race
from mindspore import Tensor, nn
from side_by_side import interleaved_ms

from labkit.algorithms.thor import ThorStep, TraceRule
from labkit.nets.lenet import LeNet5
from labkit.nets.resnet import ResidualBlockBase, ResNet
from labkit.optimizers import AdamW, Both, Muon
from labkit.steps.schedules import cosine
from labkit.steps.step import PlainStep

BATCH, WEIGHT_DECAY = 128, 5e-4
DECAY = 0.1  # Muon's and AdamW's: times the rate, it is taken off the weights themselves
TUNING_SEED, SEEDS = 100, (1, 2, 3)
TARGETS = (0.98, 0.985, 0.99)
_OWN = ("net", "optimizer", "learning_rate", "epochs", "damping", "frequency")
# The learning rate changes in proportion to the damping: rate / damping is constant.
IN_PROPORTION = "damping and rate"
_DAMPINGS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def _momentum(*rates):
    return [{"learning_rate": rate} for rate in rates]


def _thor(*pairs, frequency=10):
    return [{"learning_rate": r, "damping": d, "frequency": frequency} for r, d in pairs]


PLAN = {
    # Equally many settings for both, times the lengths of the cosine in epochs. THOR has two
    # numbers to choose and so a coarser grid over each: where the damping outweighs the
    # curvature, rate / damping is the rate of plain Momentum, so both grow together. The ranges
    # come from single trainings on the same held-out images, 30 of Momentum and 10 of THOR.
    "grid": {
        "LeNet": {
            "Momentum": _momentum(0.02, 0.03, 0.04, 0.06, 0.08, 0.12),
            "THOR": _thor((0.06, 0.3), (0.12, 0.3), (0.2, 1.0), (0.4, 1.0), (0.6, 3.0), (1.2, 3.0)),
        },
        "ResNet": {
            "Momentum": _momentum(0.03, 0.06, 0.12, 0.24),
            "THOR": _thor((0.03, 0.3), (0.1, 0.3), (0.1, 1.0), (0.3, 1.0)),
        },
    },
    "lengths": {"LeNet": (1.5, 2, 3), "ResNet": (1,)},
    # Muon came last, with as many settings of one length, the one that won for the others.
    "later": {"LeNet": {"Muon": _momentum(0.002, 0.003, 0.004, 0.006, 0.008, 0.012)}},
    "later_lengths": (2,),
    # Settings are tuned for the fewest updates to this accuracy on held-out training images,
    # which are harder than the test set: Momentum never reached 98.5 % on them in three epochs.
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
}
ROUNDS = 5  # of the turns in which updates are timed


def planned(plan, rows):
    """Yield every training of each net: its tuning, its race, and on the first one the sweeps."""
    for number, (net, grid) in enumerate(plan["grid"].items()):
        yield from _contest(plan, rows, net, grid, plan["lengths"][net])
        setting = decided(plan, rows)["tuned"][net]["THOR"][0]
        for name, values in plan["varied"].items() if number == 0 else ():
            for value in values:
                change = {"damping" if name == IN_PROPORTION else name: value}
                if name == IN_PROPORTION:
                    rate = setting["learning_rate"] * value / setting["damping"]
                    change["learning_rate"] = race.rounded(rate)
                which = {"varied": name, "value": json.dumps(value)}
                updates = plan["sweep_updates"]
                yield _training(plan, "sweep", setting | change, updates=updates, which=which)
    for net, grid in plan["later"].items():
        yield from _contest(plan, rows, net, grid, plan["later_lengths"])


def _contest(plan, rows, net, grid, lengths):
    """Yield the tuning of some optimizers on a net, and then the races of their winners."""
    for optimizer, settings in grid.items():
        for epochs, setting in itertools.product(lengths, settings):
            setting = {"net": net, "optimizer": optimizer, "epochs": epochs} | setting
            yield _training(plan, "tune", setting, stop_at=plan["tune_for"])
    tuned = decided(plan, rows)["tuned"][net]
    for setting in itertools.chain(*(tuned[optimizer] for optimizer in grid)):
        for seed in plan["seeds"]:
            yield _training(plan, "race", setting, seed)


def _training(plan, stage, setting, seed=TUNING_SEED, *, updates=None, stop_at=None, which=None):
    others = {name: value for name, value in setting.items() if name not in _OWN}
    row = {"stage": stage, "varied": None, "value": None} | (which or {})
    row |= {name: setting.get(name) for name in _OWN}
    row |= {"options": json.dumps(others) if others else None, "seed": seed}
    limits = {"updates": updates, "stop_at": stop_at, "every": plan["every"]}
    return race.Training(row, "test" if stage == "race" else "validation", setting, seed, limits)


def decided(plan, rows):
    """Return ``tuned``: net -> optimizer -> the winner of each length, the overall one first."""
    tuned = {}
    tune = [row for row in rows if row["stage"] == "tune"]
    for (net, optimizer), group in race.grouped(tune, "net", "optimizer").items():
        ranked = sorted(group, key=lambda row: rank(row, plan["tune_for"]))
        winners = {row["epochs"]: row for row in reversed(ranked)}
        others = [winners[epochs] for epochs in sorted(winners) if winners[epochs] is not ranked[0]]
        tuned.setdefault(net, {})[optimizer] = [
            {name: row[name] for name in _OWN if row[name] is not None}
            for row in (ranked[0], *others)
        ]
    return {"tuned": tuned}


def rank(row: dict, target: float) -> tuple:
    """Return what the winner of a tuning has least of.

    That is the updates to ``target``, and among equal ones the final loss; if none got there, the
    best accuracy decides.
    """
    steps = row[f"to_{target}"]
    if steps is not None:
        return (0, steps, row["last_loss"])
    return (1, -(row["best_accuracy"] or 0.0), 0)


def end(plan, row, outcome):
    """Return a row's fields for what its training reached."""
    curve, fields = outcome["curve"], race.at_end(plan, row, outcome)
    fields |= {f"to_{target}": race.steps_to(curve, target) for target in TARGETS}
    fields |= {name: outcome.get(name) for name in ("refreshes", "retries")}
    return fields | {"best_accuracy": max((p["accuracy"] for p in curve), default=None)}


def build(net: str) -> nn.Cell:
    """Return a new network: LeNet-5, or a ResNet-10 of a quarter of the width."""
    if net == "LeNet":
        return LeNet5()
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

    Its ``epochs`` are those of the cosine; what THOR has beyond that are options of ``ThorStep``.
    """
    options = dict(setting)
    network = race.seeded(lambda: build(options.pop("net")), seed)
    name, peak = options.pop("optimizer"), options.pop("learning_rate")
    rates = Tensor(cosine(peak, 0.0, 1, round(options.pop("epochs") * per_epoch)))
    optimizer = nn.Momentum(network.trainable_params(), rates, race.MOMENTUM, WEIGHT_DECAY)
    if name == "Muon":
        optimizer = muon(network, rates)
    if name != "THOR":
        return network, PlainStep(race.loss_net_of(network), optimizer, **options)
    if rule := options.pop("trace_rule", None):
        options["trace_rule"] = TraceRule(*rule)
    return network, ThorStep(
        race.loss_net_of(network), optimizer, options.pop("damping"), **options
    )


def muon(network: LeNet5, rates: Tensor) -> nn.Optimizer:
    """Return Muon for the matrices between layers and AdamW for the rest, at the same rates."""
    weights, inner = network.trainable_params(), [network.fc1.weight, network.fc2.weight]
    rest = [weight for weight in weights if not any(weight is each for each in inner)]
    own = Muon(inner, rates, weight_decay=DECAY)
    return Both(weights, own, AdamW(rest, rates, weight_decay=DECAY))


def train(setting: dict, data: race.Images, seed: int, *, every, updates=None, stop_at=None):
    """Train once and return the outcome as ``race.run`` does; for THOR with refreshes and retries.

    It is judged after ``every`` updates; ``updates`` None: until the end of the cosine.
    """
    per_epoch = len(data.rows) // BATCH
    total = updates or round(setting["epochs"] * per_epoch)
    network, step = make_step(setting, per_epoch, seed)
    stream = race.batches(data.rows, total, seed, BATCH)
    judged = {*range(every, total, every), total}
    outcome = race.run(step, network, data, stream, judged, stop_at=stop_at)
    if isinstance(step, ThorStep):
        for name in ("refreshes", "retries"):
            outcome[name] = int(getattr(step.update, name).asnumpy().sum())
    return outcome


def finish(stored, images) -> None:
    """Add to the head: net -> contestant -> ms, the mean time of an update.

    All contestants of a net take turns of ``turn`` updates in this process. On the first net THOR
    is also timed with a refresh at every update and without any: at frequency f an update takes
    cached + (refresh - cached) / f.
    """
    plan = stored.head["plan"]
    stored.head.update(tuning_seed=TUNING_SEED, times={})
    data, turn, rounds = images("validation"), plan["turn"], ROUNDS
    for number, (net, by_optimizer) in enumerate(stored.head["tuned"].items()):
        won, calls = {optimizer: settings[0] for optimizer, settings in by_optimizer.items()}, {}
        if number == 0:
            won["THOR, refresh"] = won["THOR"] | {"frequency": 1}
            won["THOR, cached"] = won["THOR"] | {"frequency": 10**6}
        for name, setting in won.items():
            updates = (rounds + 1) * turn
            _, step = make_step(setting | {"epochs": 1}, updates, TUNING_SEED)
            stream = race.batches(data.rows, updates, TUNING_SEED, BATCH)
            calls[name] = race.updating(step, data, stream)
        taken = interleaved_ms(calls, rounds, turn)
        stored.head["times"][net] = {name: {"ms": round(each, 3)} for name, each in taken.items()}


# The tuning's curves are too many.
RACE = race.Race("thor_race", PLAN, planned, train, end, decided, finish, no_curves="tune")

if __name__ == "__main__":
    RACE.main(__doc__)
