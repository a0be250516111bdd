"""PyTorch against MindSpore: the network of lab 02 trained to the end in both, and their speeds.

    python benchmarks/migration_race.py               prints the stored race
    python benchmarks/migration_race.py --time-only   the same, and renews the times
    python benchmarks/migration_race.py --all         trains what is not yet done, and stores it
    python benchmarks/migration_race.py --quick       everything on few images, into runs/bench

Needs PyTorch. A ResNet-18 of half the width on 9000 colour digits of 64 pixels, three epochs, as in
section 12 of lab 02. Both frameworks begin with bitwise the same weights and see the same images in
the same order; each reads the JPEG files with its own pipeline. Label smoothing, momentum, weight
decay and rates are the same. After each epoch both are judged by the same 5000 images, and after
the last one each framework judges the other's weights, converted by labkit.migration. Three seeds
of weights and order: their spread is the yardstick. A last training in PyTorch, with the images of
each batch reversed, shows the effect of rounding alone.

Everything runs on one core, the last one this process may use; each training, judgement and timing
runs in a process of its own. Times are measured with batches in memory.

--all and --quick reuse finished trainings from runs/bench unless --anew is given. --all takes
about 25 minutes.
"""

import json
import os
import tempfile
from functools import partial
from pathlib import Path

from _migration_plan import CONTESTANTS, PLANS, check, planned
from _side_by_side import (
    RESULTS,
    in_child,
    in_processes,
    look_at_machine,
    medians,
    print_table,
    verdict,
)
from _trainings import Trainings, arguments, at_end, made_by, percents, write

from labkit.data.prepare import prepare
from labkit.labs import results
from labkit.labs.results.races import FOLDER, FRAMEWORKS

PROGRAM = str(Path(__file__).with_name("_migration_training.py"))


def main():
    """Carry out the command line."""
    options = arguments(__doc__, ("all", "time-only", "quick"), "train/ and val/ of colour digits")
    out = options.out or FOLDER
    if options.train:
        plan = PLANS["quick" if options.train == "quick" else "all"]
        machine = look_at_machine()
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
        images, size = plan["images"], plan["training"]["image_size"]
        data = str(options.data or prepare("color-digits", size=size, **images))
        if options.train == "time-only":
            stored = results.load("migration_race", out)
        else:
            work = RESULTS / ("migration_race" + ("_quick" if options.train == "quick" else ""))
            out = options.out or (work / "stored" if options.train == "quick" else out)
            stored = train_all(plan, data, work, options.anew)
            stored.head.update(
                made_by("migration_race", options.train, machine, "torch"), plan=plan
            )
        stored.head["times"] = times(plan, data)
        stored.head["timed"] = {n: machine[n] for n in ("platform", "time", "idle_before")}
        stored.head["timed"]["threads"] = len(os.sched_getaffinity(0))
        check(stored)
        write("migration_race", stored, out)
    show(results.load("migration_race", out))


def train_all(plan: dict, data: str, work: Path, anew: bool) -> results.Stored:
    """Run all planned trainings; return the race, whose head is still empty."""
    trainings = Trainings(
        plan, lambda part: data, work, anew,
        train=partial(train, plan), row_of=row_of, summary=lambda row: row["last_accuracy"],
    )  # fmt: skip
    for stage, setting, seed in planned(plan):
        trainings.add(stage, setting, seed, "val", plan["training"])
    return results.Stored({}, trainings.rows, trainings.curves)


def train(plan: dict, setting: dict, data: str, seed: int, **training) -> dict:
    """Train in one framework, judge its weights in the other, and return the outcome."""
    (other,) = set(FRAMEWORKS) - {setting["framework"]}
    with tempfile.TemporaryDirectory() as folder:
        shared = {"plan": plan, "data": data, "weights": f"{folder}/weights.safetensors"}
        outcome = ask("train", **shared, **setting, seed=seed)
        answer = ask("judge", **shared, framework=other)
    pairs = zip(outcome.pop("predicted"), answer.pop("predicted"), strict=True)
    differ = sum(mine != theirs for mine, theirs in pairs)
    return outcome | {"other_accuracy": answer["accuracy"], "images_differ": differ}


def ask(task: str, environment: dict | None = None, **given) -> dict:
    """Return the result of a task of ``_migration_training`` in a process of its own."""
    return in_child(PROGRAM, json.dumps({"task": task, **given}), environment=environment)


def row_of(run, stage, setting, seed, outcome) -> dict:
    """Return one row of the table."""
    others = {name: outcome[name] for name in ("other_accuracy", "images_differ", "seconds")}
    return {
        "run": run, "stage": stage, **setting, "seed": seed, **at_end(outcome["curve"]), **others
    }  # fmt: skip


def times(plan: dict, data: str) -> dict:
    """Return contestant -> ms per image in training and inference, medians over processes.

    ``runs`` has the times of each process, ``kernels`` the instruction sets that the contestant may
    use.
    """

    def in_turns():
        return {
            name: ask("time", environment, plan=plan, data=data, framework=framework)
            for name, (framework, environment) in CONTESTANTS.items()
        }

    measured = in_processes(plan["timed"]["processes"], in_turns)
    by_name = {}
    for name in CONTESTANTS:
        kernels = [each[name].pop("kernels") for each in measured][0]
        runs = [{what: round(ms, 4) for what, ms in each[name].items()} for each in measured]
        by_name[name] = medians(runs) | {"kernels": kernels, "runs": runs}
    return by_name


def show(stored: results.Stored) -> None:
    """Print accuracies, their spread, the results of exchanged weights, and the times."""
    names = ("stage", "framework", "order", "seed", "last_accuracy", "other_accuracy",
             "images_differ", "seconds")  # fmt: skip
    print_table([*names], [[f"{row[name]}" for name in names] for row in stored.rows])
    print("\nvalidation accuracy in %, mean and by seed\n")
    ends = {name: stored.accuracies(name) for name in FRAMEWORKS}
    print_table(["", "mean", "by seed"], [[name, *percents(ends[name])] for name in ends])
    gap, spread = stored.gap_and_spread()
    print(
        f"\nthe means are {100 * gap:.2f} points apart; the seeds of one framework, at least "
        f"{100 * spread:.2f}: the same accuracy within the seeds' spread is {verdict(gap < spread)}"
    )
    for seed in stored.head["plan"]["seeds"]:
        off = stored.loss_differences(seed, "MindSpore")
        print(f"seed {seed}: losses of updates 1, 2, 5, 10 apart by", _at(off, 1, 2, 5, 10))
    print("\nms an image, one core\n")
    base = stored.head["times"]["PyTorch"]
    rows = []
    for name, ms in stored.head["times"].items():
        ratios = [ms[what] / base[what] for what in ("training", "inference")]
        rows.append([name, ms["kernels"], ms["training"], ratios[0], ms["inference"], ratios[1]])
    print_table(["", "kernels", "training", "/ PyTorch", "inference", "/ PyTorch"], rows)


def _at(values, *updates):
    return ", ".join(f"{values[u - 1]:.1e}" for u in updates if u <= len(values))


if __name__ == "__main__":
    main()
