"""THOR against Momentum on MNIST, both tuned with the same budget: updates and seconds.

    python benchmarks/thor_race.py               step times in turns, and the stored race
    python benchmarks/thor_race.py --time-only   the same, and stores the times: on a quiet machine
    python benchmarks/thor_race.py --all         everything again (1.5 hours), and stores it
    python benchmarks/thor_race.py --quick       everything on few images, into runs/bench

Tuning: training on 50 000 of MNIST's 60 000 training images, judged by the other 10 000; the test
set is not used. Both optimizers have equally many settings, of the same lengths; a training stops
when it reaches the target. Race: each optimizer's winner, and the winners of the other lengths, on
all 60 000 images, judged by the test set every 39 updates, with three seeds that the tuning has not
used. Sweeps: the tuned THOR with one option changed at a time, on the tuning's images and seed.

The number of updates does not depend on the machine's load, but seconds do. They are updates times
the mean time of one, measured in turn in one process, with refreshes but without compilation.

--all and --quick reuse finished trainings from runs/bench unless --anew is given.
"""

import itertools
import statistics
import time
from functools import partial
from pathlib import Path

from _race_plan import PLANS, TUNING_SEED, sweeps
from _race_table import head_of, row_of, show, winner
from _side_by_side import RESULTS, look_at_machine, write_results
from _trainings import Trainings, arguments, write

import labkit
from labkit.data.prepare import prepare
from labkit.labs import results
from labkit.labs.results.races import FOLDER

NAME = "thor_race"


def main():
    """Carry out the command line."""
    options = arguments(__doc__, ("all", "time-only", "quick"))
    machine = look_at_machine()
    labkit.start(device="CPU")
    data, out = options.data or prepare("mnist"), options.out or FOLDER
    if options.train in PLANS:
        plan, work = PLANS[options.train], RESULTS / NAME
        if options.train == "quick":
            work = RESULTS / f"{NAME}_quick"
            out = options.out or work / "stored"
        stored = train_all(options.train, data, work, options.anew, machine)
    else:
        plan = PLANS["all"]
        stored = results.load(NAME, out)
    stored.head["times"] = times(stored.head["tuned"], plan, data)
    stored.head["times"]["idle_before"] = machine["idle_before"]
    if options.train:
        write(NAME, stored, out)
        stored = results.load(NAME, out)
    show(stored)
    write_results(NAME, {"times": stored.head["times"]}, machine)


def train_all(option: str, data: Path, work: Path, anew: bool, machine: dict) -> results.Stored:
    """Run all trainings of a plan and return the race, which has no times yet."""
    from _race import images_for, train

    plan, tuned = PLANS[option], {}
    images = partial(images_for, data, **plan["images"])
    trainings = Trainings(plan, images, work, anew, train=train, row_of=row_of, summary=_summary)
    for net in plan["grid"]:
        tuned[net] = tune(trainings, net)
        race(trainings, tuned[net])
        if net == plan["sweep_net"]:
            sweep(trainings, tuned[net]["THOR"][0])
    return results.Stored(head_of(option, plan, machine, tuned), trainings.rows, _kept(trainings))


def _kept(trainings):
    """Return the curves to store: all but the tuning's, which are too many."""
    rows = [row for row in trainings.rows if row["stage"] != "tune"]
    curves = {row["run"]: trainings.curves[row["run"]] for row in rows}
    return {run: curve for run, curve in curves.items() if curve}


def _limits(plan, updates=None, stop_at=None):
    return {"updates": updates, "stop_at": stop_at, "every": plan["every"]}


def _summary(row):
    steps = [value for name, value in row.items() if name.startswith("to_")]
    return f"{steps}, last {row['last_accuracy']} after {row['updates']} {row['failure']}"


def tune(trainings: Trainings, net: str) -> dict:
    """Train every setting of the net's grids; return optimizer -> the winner of each length.

    The overall winner comes first.
    """
    plan, tuned = trainings.plan, {}
    for optimizer, settings in plan["grid"][net].items():
        winners, target = [], plan["tune_for"]
        tried, rows = [], []
        for epochs in plan["lengths"][net]:
            grid = [
                {"net": net, "optimizer": optimizer, "epochs": epochs} | setting
                for setting in settings
            ]
            limits = _limits(plan, stop_at=target)
            new = [trainings.add("tune", each, TUNING_SEED, "validation", limits) for each in grid]
            winners.append(winner(new, grid, target))
            tried, rows = tried + grid, rows + new
        best = winner(rows, tried, target)
        tuned[optimizer] = [best] + [other for other in winners if other != best]
    return tuned


def race(trainings: Trainings, tuned: dict) -> None:
    """Train each optimizer's winners on the whole training set, with every seed."""
    for setting in itertools.chain(*tuned.values()):
        for seed in trainings.plan["seeds"]:
            trainings.add("race", setting, seed, "test", _limits(trainings.plan))


def sweep(trainings: Trainings, won: dict) -> None:
    """Train the tuned THOR with one option changed at a time, all for equally many updates."""
    plan = trainings.plan
    for name, value, setting in sweeps(won, plan["varied"]):
        limits = _limits(plan, updates=plan["sweep_updates"])
        columns = {"varied": name, "value": value}
        trainings.add("sweep", setting, TUNING_SEED, "validation", limits, **columns)


def times(tuned: dict, plan: dict, data: Path) -> dict:
    """Return net -> contestant -> ms, the mean time of an update, and compile_seconds.

    All contestants of a net take turns of ``turn`` updates in this process, ``rounds`` times; ms is
    the median over turns. On the sweeps' net THOR is also timed with a refresh at every update and
    without any: at frequency f an update takes cached + (refresh - cached) / f.
    """
    from _race import images_for

    images = images_for(data, "validation", **plan["images"])
    by_net = {}
    for net, by_optimizer in tuned.items():
        won = {optimizer: settings[0] for optimizer, settings in by_optimizer.items()}
        if net == plan["sweep_net"]:
            won["THOR, refresh"] = won["THOR"] | {"frequency": 1}
            won["THOR, cached"] = won["THOR"] | {"frequency": 10**6}
        by_net[net] = _in_turns(won, images, plan["rounds"], plan["turn"])
    return by_net


def _in_turns(settings, images, rounds, turn):
    calls, timed, taken = {}, {}, {name: [] for name in settings}
    for name, setting in settings.items():
        calls[name] = _caller(setting, images, (rounds + 1) * turn)
        begin = time.perf_counter()
        calls[name]()
        calls[name]()
        timed[name] = {"compile_seconds": round(time.perf_counter() - begin, 2)}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(turn):
                call()
            taken[name].append((time.perf_counter() - begin) / turn * 1e3)
    for name, turns in taken.items():
        timed[name]["ms"] = round(statistics.median(turns), 3)
        timed[name]["turns"] = [round(turn, 3) for turn in turns]
    return timed


def _caller(setting, images, updates):
    """Return a function that makes one update and waits for it."""
    from _race import batches, make_step
    from mindspore import Tensor

    _, step = make_step(setting | {"epochs": 1}, updates, TUNING_SEED)
    rows = itertools.cycle(list(batches(images.rows, min(updates, 100), TUNING_SEED)))

    def call():
        chosen = next(rows)
        float(step(Tensor(images.images[chosen]), Tensor(images.labels[chosen])).asnumpy())

    return call


if __name__ == "__main__":
    main()
