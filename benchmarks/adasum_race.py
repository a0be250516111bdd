"""Adasum against mean and sum: LeNet on MNIST, 16 virtual workers, two epochs.

    python benchmarks/adasum_race.py            prints the stored race
    python benchmarks/adasum_race.py --all      trains what is not yet done, and stores it
    python benchmarks/adasum_race.py --quick    everything on few images, into runs/bench

The single-worker learning rate is the best of a grid with one worker, batch 32, trained on 50 000
of MNIST's 60 000 training images and judged by the other 10 000. The learning rates of a reduction
are multiples of it; its own tuned rate is the best on the same images with 16 workers. The test set
is not used for either. Race: on all 60 000 images, judged by the test set, with seeds that the
tuning has not used. ``_adasum_plan.py`` defines what is raced.

Every rate warms up over 17 % of the updates and then decreases linearly to 0. Each worker has its
own moments. All workers together make two passes over the images.

--all and --quick reuse finished trainings from runs/bench unless --anew is given.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path

from _adasum_plan import PLANS, check, planned, single_rates, single_settings, tuned_rates
from _side_by_side import print_table, verdict
from _trainings import Trainings, arguments, at_end, made_by, percents, train_and_show

from labkit.data.prepare import prepare
from labkit.labs import results

# Required mean test accuracy at the single-worker rate: Adasum at least, the sum less than this.
ADASUM, SUM = 0.975, 0.90
MEANING = {
    "stage": "tune is judged by held-out training images, race by the test set",
    "single": "learning rate of the best training with one worker, by optimizer",
    "tuned": "learning rate of the best training with 16 workers, by reduction",
    "cosine_LAYER": "mean cosine of two workers' vectors, over pairs, and over the updates since "
    "the point before; of what is combined: moves, or gradients with on = gradients",
}


def main():
    """Carry out the command line."""
    options = arguments(__doc__, ("all", "quick"), figure=True)
    train_and_show("adasum_race", options, train_all, check, show, draw)


def train_all(options: argparse.Namespace, work: Path, machine: dict) -> results.Stored:
    """Run all planned trainings and return the race."""
    from _adasum_training import train
    from _race import images_for

    plan = PLANS[options.train]
    images = partial(images_for, options.data or prepare("mnist"), **plan["images"])
    trainings = Trainings(
        plan, images, work, options.anew, train=train, row_of=row_of, summary=_summary
    )
    limits = {"epochs": plan["epochs"], "points": plan["points"]}
    for optimizer in plan["single"]:
        for setting in single_settings(plan, optimizer):
            trainings.add("tune", setting, plan["tuning_seed"], "validation", limits)
    single = single_rates(trainings.rows)
    for stage, setting, seed in planned(plan, single)[len(trainings.rows) :]:
        part = "test" if stage == "race" else "validation"
        trainings.add(stage, setting, seed, part, limits)
    head = made_by("adasum_race", options.train, machine)
    head |= {"meaning": MEANING, "plan": plan, "single": single}
    head["tuned"] = tuned_rates(trainings.rows)
    return results.Stored(head, trainings.rows, trainings.curves)


def row_of(run, stage, setting, seed, outcome) -> dict:
    """Return one row of the table."""
    row = {"run": run, "stage": stage, **setting, "seed": seed, **at_end(outcome["curve"])}
    return row | {"failure": outcome["failure"] or None}


def _summary(row):
    return f"{row['last_accuracy']} after {row['updates']} {row['failure'] or ''}"


def show(stored: results.Stored) -> None:
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
    _show_required(stored)


def _show_required(stored):
    adasum = statistics.mean(stored.accuracies())
    means = stored.by_rate("mean")
    most = max(map(statistics.mean, means.values()))
    least = statistics.mean(stored.accuracies("sum"))
    rows = [
        ["Adasum", adasum, f"at least {ADASUM}", verdict(adasum >= ADASUM)],
        ["Adasum over the mean's best rate", adasum - most, "more than 0", verdict(adasum > most)],
        ["sum", least, f"less than {SUM}", verdict(least < SUM)],
    ]
    print("\nrequired, at the single-worker rate, mean of the seeds\n")
    print_table(["", "accuracy", "required", ""], rows)


def draw(stored: results.Stored, path: Path) -> None:
    """Write the figure: test error over the learning rate, and over the number of workers."""
    from labkit.labs.figures import common as plots

    names = {"Adasum": "adasum", "mean": "mean", "sum": "sum"}
    single = f"{stored.head['single']['Momentum']:g}"
    figure, drawn = plots.side_by_side(
        {
            "learning rate, 16 workers": stored.by_rate,
            f"workers, learning rate {single}": stored.by_workers,
        }
    )
    for axis, label, of in drawn:
        ticks = set()
        for color, (name, reduction) in zip(plots.PALETTE, names.items(), strict=False):
            errors = {x: plots.errors(right) for x, right in of(reduction).items()}
            plots.mean_and_seeds(axis, errors, color, name, size=3.5)
            ticks |= set(errors)
        axis.set(xscale="log", yscale="log", xlabel=label, ylabel="test error (%)")
        plots.label_ticks(axis, sorted(ticks), "x")
        plots.label_ticks(axis, (1, 2, 5, 10, 20, 50, 90))
    drawn[0][0].legend(frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
