"""The critical batch size of LeNet on MNIST, for the mean of N workers and for Adasum.

    python benchmarks/critical_batch.py            prints the stored measurement
    python benchmarks/critical_batch.py --all      trains what is not yet done, and stores it
    python benchmarks/critical_batch.py --quick    two workers on few images, into runs/bench

Number of updates until 97 % of 2 000 held-out training images are classified correctly, over the
batch of one update: 32 images for each of N workers, 1 to 32. Momentum 0.9 and a constant learning
rate, since a schedule would need the length of the training in advance. The rate is tuned for each
N to minimise the updates to the target; Adasum is also trained at the rate of a single worker,
since it promises to need no other. ``_critical_plan.py`` has the details. The test set is not used.

--all and --quick reuse finished trainings from runs/bench unless --anew is given.
"""

import argparse
from functools import partial
from pathlib import Path

from _critical_plan import PLANS, best_rates, check, planned
from _side_by_side import print_table
from _trainings import Trainings, arguments, at_end, made_by, train_and_show

from labkit.data.prepare import prepare
from labkit.labs import results
from labkit.labs.results.races import BATCH, METHODS

MEANING = {
    "stage": "tune: of the learning rate; race: at the best one, Adasum's at one worker's as well",
    "most": "updates after which a training would have ended that had not reached the target",
    "to_target": "first update judged at which the accuracy is at least the target; empty: never",
    "tuned": "best learning rate of the tuning at which every seed arrives, by reduction, workers",
    "processor_seconds": "of the training, compiling and judging included",
}


def main():
    """Carry out the command line."""
    options = arguments(__doc__, ("all", "quick"), figure=True)
    train_and_show("critical_batch", options, train_all, check, show, draw)


def train_all(options: argparse.Namespace, work: Path, machine: dict) -> results.Stored:
    """Run all planned trainings and return the measurement."""
    from _critical_training import train
    from _race import images_for

    plan = PLANS[options.train]
    images = partial(images_for, options.data or prepare("mnist"), **plan["images"])
    trainings = Trainings(
        plan, images, work, options.anew, train=train, row_of=row_of, summary=_summary
    )
    for stage, setting, seed, most in planned(plan, trainings.rows):
        limits = {"most": most, "target": plan["target"]}
        trainings.add(stage, setting, seed, "validation", limits, **limits)
    head = made_by("critical_batch", options.train, machine) | {"meaning": MEANING, "plan": plan}
    head["tuned"] = best_rates(plan, trainings.rows)
    return results.Stored(head, trainings.rows, trainings.curves)


def row_of(run, stage, setting, seed, outcome, *, most, target) -> dict:
    """Return one row of the table."""
    curve = outcome["curve"]
    row = {"run": run, "stage": stage, **setting, "seed": seed, "most": most, **at_end(curve)}
    row["to_target"] = results.steps_to(curve, target)
    row["processor_seconds"] = round(outcome["processor_seconds"], 1)
    return row | {"failure": outcome["failure"] or None}


def _summary(row):
    return f"{row['to_target'] or 'not'} of {row['most']} updates, {row['processor_seconds']} s"


def show(stored: results.Stored) -> None:
    """Print updates to the target by batch and method, and the curves fitted to them."""
    target = stored.head["plan"]["target"]
    print(f"\nupdates to {target:.0%}, mean and seeds; rate: the learning rate\n")
    rows = []
    for method in METHODS:
        for batch, updates in stored.updates(method).items():
            rate = stored.rate_of(method, batch // BATCH)
            mean = results.mean_steps(updates)
            rows.append([method, batch // BATCH, batch, f"{rate:g}", mean, updates])
    print_table(["method", "workers", "batch", "rate", "mean", "by seed"], rows)
    print("\nS(B) = S_min (1 + B_crit / B), through all seeds; B_crit of each seed alone\n")
    rows = []
    for method in METHODS:
        curve, alone = stored.fits(method)
        by_seed = " ".join(f"{each.b_crit:.0f}" for each in alone)
        rows.append([method, f"{curve.s_min:.0f}", f"{curve.b_crit:.0f}", by_seed, curve.error])
    print_table(["method", "S_min", "B_crit", "by seed", "error"], rows)


def draw(stored: results.Stored, path: Path) -> None:
    """Write the figure of lab 04."""
    from labkit.labs.figures import adasum as adasum_plots

    updates = {method: stored.updates(method) for method in METHODS}
    curves = {method: stored.fits(method)[0] for method in METHODS}
    title = f"updates to {stored.head['plan']['target']:.0%}"
    adasum_plots.critical_batch(updates, curves, title).savefig(path, dpi=110)


if __name__ == "__main__":
    main()
