"""Adasum against mean and sum: LeNet on MNIST, 16 virtual workers, two epochs.

    python benchmarks/adasum_race.py            prints the stored race
    python benchmarks/adasum_race.py --all      trains what is not yet done, and stores it
    python benchmarks/adasum_race.py --quick    everything on few images, into runs/bench

The single-worker learning rate is the best of a grid with one worker, batch 32, trained on 50 000
of MNIST's 60 000 training images and judged by the other 10 000. The learning rates of a reduction
are multiples of it; its own tuned one is the best on the same images with 16 workers. The test set
is not read for either. Race: on all 60 000 images, judged by the test set, with seeds that the
tuning has not seen. ``_adasum_plan.py`` says what is raced.

Every rate warms up over 17 % of the updates and falls to 0 in a line. Each worker has moments of
its own. All workers together make two passes over the images.

--all and --quick take up what they have finished, from runs/bench; --anew does not.
"""

import argparse
import statistics
from pathlib import Path

from _adasum_plan import PLANS
from _side_by_side import look_at_machine, print_table
from _trainings import Trainings, made_by

import labkit
from labkit.data.prepare import prepare
from labkit.labs import results
from labkit.labs.results import adasum_race as race

RUNS = Path(__file__).resolve().parent.parent / "runs" / "bench"
# Issue: mean test accuracy of Adasum, at least, and of the sum, less than, at the single rate.
ADASUM, SUM = 0.975, 0.90
MEANING = {
    "stage": "tune is judged by held-out training images, race by the test set",
    "single": "learning rate of the best training with one worker, by optimizer",
    "tuned": "learning rate of the best training with 16 workers, by reduction",
    "cosine_LAYER": "mean cosine of two workers' vectors, over pairs, and over the updates since "
    "the point before; of what is combined: moves, or gradients with on = gradients",
}


def main():
    """Do what the command line asks for."""
    given = _arguments()
    out = given.out or results.stored.FOLDER
    if given.quick or given.all:
        machine = look_at_machine()
        labkit.start(device="CPU")
        name = race.NAME + ("_quick" if given.quick else "")
        plan = PLANS["quick" if given.quick else "full"]
        trainings = _trainings(plan, given.data or prepare("mnist"), RUNS / name, given.anew)
        single = train_all(trainings)
        head = made_by(
            f"python benchmarks/{race.NAME}.py --{'quick' if given.quick else 'all'}", machine
        )
        head |= {"meaning": MEANING, "plan": plan, "single": single}
        head["tuned"] = race.tuned_rates(trainings.rows)
        stored = results.Stored(head, trainings.rows, trainings.curves)
        out = given.out or (RUNS / name / "stored" if given.quick else out)
        results.write(race.NAME, stored, out)
    stored = race.load(out)
    show(stored)
    if given.figure:
        draw(stored, given.figure)


def _arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    for option in ("--all", "--quick"):
        what.add_argument(option, action="store_true")
    parser.add_argument("--anew", action="store_true", help="forget the finished trainings")
    parser.add_argument("--figure", type=Path, help="also draw the race into this PNG file")
    parser.add_argument("--data", type=Path, help="folder with train/ and test/ of MNIST")
    parser.add_argument("--out", type=Path, help="where the stored race is; default: as said above")
    return parser.parse_args()


def _trainings(plan, data, work, anew):
    from _adasum_training import train

    return Trainings(plan, data, work, anew, train=train, row_of=row_of, said=_said)


def train_all(trainings: Trainings) -> dict[str, float]:
    """Train everything that is planned; return optimizer -> single-worker learning rate."""
    plan = trainings.plan
    limits = {"epochs": plan["epochs"], "points": plan["points"]}
    for optimizer in plan["single"]:
        for setting in race.single_settings(plan, optimizer):
            trainings.add("tune", setting, plan["tuning_seed"], "validation", limits)
    single = race.single_rates(trainings.rows)
    for stage, setting, seed in race.planned(plan, single)[len(trainings.rows) :]:
        part = "test" if stage == "race" else "validation"
        trainings.add(stage, setting, seed, part, limits)
    return single


def row_of(run, stage, setting, seed, outcome) -> dict:
    """Return one row of the table; a training without a single judgement has no accuracies."""
    curve = outcome["curve"]
    last = curve[-1] if curve else {"update": 0, "accuracy": None, "loss": None}
    return {
        "run": run,
        "stage": stage,
        **setting,
        "seed": seed,
        "updates": last["update"],
        "last_accuracy": last["accuracy"],
        "last_loss": last["loss"],
        "failure": outcome["failure"] or None,
    }


def _said(row):
    return f"{row['last_accuracy']} after {row['updates']} {row['failure'] or ''}"


def show(stored: results.Stored) -> None:
    """Print the rates found, the race, and whether it shows what is required."""
    print(f"\nlearning rates: single worker {stored.head['single']}, tuned {stored.head['tuned']}")
    print("\ntest accuracy in %\n")
    names = ("workers", "reduction", "optimizer", "on", "scope", "learning_rate")
    found = {}
    for row in stored.select(stage="race"):
        found.setdefault(tuple(row[name] for name in names), []).append(row["last_accuracy"])
    rows = [[*("-" if x is None else f"{x}" for x in key), *_percent(found[key])] for key in found]
    print_table([*names, "mean", "by seed"], rows)
    _show_required(stored)


def _show_required(stored):
    adasum = statistics.mean(race.accuracies(stored))
    means = race.by_rate(stored, "mean")
    most = max(statistics.mean(found) for found in means.values())
    least = statistics.mean(race.accuracies(stored, "sum"))
    rows = [
        ["Adasum", adasum, f"at least {ADASUM}", adasum >= ADASUM],
        ["Adasum over the mean's best rate", adasum - most, "more than 0", adasum > most],
        ["sum", least, f"less than {SUM}", least < SUM],
    ]
    print("\nrequired, at the single-worker rate, mean of the seeds\n")
    rows = [[*row[:-1], "met" if row[-1] else "MISSED"] for row in rows]
    print_table(["", "accuracy", "required", ""], rows)


def draw(stored: results.Stored, path: Path) -> None:
    """Write the figure: test error over the learning rate, and over the number of workers."""
    import matplotlib

    matplotlib.use("agg")
    from labkit.labs.figures import common as plots

    names = {"Adasum": "adasum", "mean": "mean", "sum": "sum"}
    single = f"{stored.head['single']['Momentum']:g}"
    panels = {
        "learning rate, 16 workers": {n: race.by_rate(stored, r) for n, r in names.items()},
        f"workers, learning rate {single}": {
            n: race.by_workers(stored, r) for n, r in names.items()
        },
    }
    plots.errors_over(panels).savefig(path, dpi=110)


def _percent(found):
    texts = [f"{100 * each:.2f}" for each in found]
    return [f"{100 * statistics.mean(found):.2f}", " ".join(texts)]


if __name__ == "__main__":
    main()
