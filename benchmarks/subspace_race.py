"""Two-stage training against its controls: LeNet, 5 000 MNIST images, two epochs after stage one.

    python benchmarks/subspace_race.py               prints the stored race
    python benchmarks/subspace_race.py --all         trains what is not yet done, and stores it
    python benchmarks/subspace_race.py --required    no noise and no sweeps, into runs/bench
    python benchmarks/subspace_race.py --quick       few of all on few images, into runs/bench

Stage one trains with momentum 0.9 at a constant rate and saves 40 snapshots. The controls continue
from its end, with its weights and moments (large batches with its weights only): at its rate, at a
tenth of it, with a linear decay to zero, in batches of 250. The average of the snapshots trains
nothing. Stage two starts from the weights of the last snapshot, which are those of the end, and
uses batches of 250 in the subspace of 32 components: ``SubspaceStep`` over nn.SGD, rate 1, no
momentum, and projected SGD with momentum 0.9. All are judged by MNIST's 10 000 test images; nothing
is tuned. ``_subspace_plan.py`` defines what is raced.

Seconds are the number of updates times the time of one, without compilation, judging and the basis;
these times are measured in turn after all trainings. If other programs ran at the same time, the
times can only be compared with each other: see "idle_before" of the stored race.

--all, --required and --quick reuse finished trainings from runs/bench unless --anew is given.
"""

import argparse
import shutil
import statistics
from functools import partial
from pathlib import Path

from _side_by_side import print_table, verdict
from _subspace_plan import PLANS, check, from_curve, planned, seconds_of
from _trainings import Trainings, arguments, made_by, percents, train_and_show

from labkit.data.prepare import prepare
from labkit.labs import results
from labkit.labs.results.races import LARGE_BATCH, SEARCH

# Required gain in accuracy after one epoch of stage two over the end of stage one, mean of seeds.
GAIN = 0.02
_SEARCHED = ("searches", "failed_searches", "trials_made")
_KEPT = ("seconds", "basis_seconds", "explained", *_SEARCHED)


def main():
    """Carry out the command line."""
    options = arguments(__doc__, tuple(PLANS), figure=True)
    train_and_show("subspace_race", options, train_all, check, show, draw)


def train_all(options: argparse.Namespace, work: Path, machine: dict) -> results.Stored:
    """Run all planned trainings, time the updates, and return the race."""
    from _race import images_for
    from _subspace_training import kept_ms, train

    data = options.data or prepare("mnist")
    plan, folder = PLANS[options.train], work / "stage_one"
    if options.anew:
        shutil.rmtree(folder, ignore_errors=True)
    trainings = Trainings(
        plan, partial(images_for, data, **plan["images"]), work, options.anew,
        train=partial(train, folder=folder), row_of=row_of, summary=_summary,
    )  # fmt: skip
    limits = {"epochs": plan["epochs"], "points": plan["points"]}
    for stage, setting, seed in planned(plan):
        stage_one = plan["settings"][setting["setting"]]
        trainings.add(stage, setting, seed, "test", limits | {"stage_one": stage_one})
    images = images_for(data, "test", **plan["images"])
    times = kept_ms(plan, images, folder)
    for row in trainings.rows:
        if row["method"] != "average":
            row["seconds"] = seconds_of(times, row)
    head = made_by("subspace_race", options.train, machine)
    head |= {"times": times, "plan": plan}
    return results.Stored(head, trainings.rows, trainings.curves)


def row_of(run, stage, setting, seed, outcome) -> dict:
    """Return one row of the table."""
    epoch = outcome["epoch_updates"]
    return {
        "run": run,
        "stage": stage,
        "seed": seed,
        **setting,
        **from_curve(outcome["curve"], epoch, setting["method"]),
        **{name: _rounded(outcome.get(name)) for name in _KEPT},
        "stopped": outcome["failure"] or None,
    }


def _rounded(value):
    return round(value, 4) if isinstance(value, float) else value


def _summary(row):
    return f"{row['one_epoch_accuracy']} {row['last_accuracy']} {row['stopped'] or ''}"


def show(stored: results.Stored) -> None:
    """Print the comparisons, the sweeps, and whether the race meets the requirement."""
    pairs = {(row["setting"], row["noise"]): None for row in stored.select(stage="compare")}
    for setting, noise in pairs:
        print(f"\nstage one: {setting}, {noise:.0%} of the labels random; test accuracy in %\n")
        _show_compared(stored.compared(setting, noise))
    _show_sweep(stored)
    _show_gains(stored)


def _show_gains(stored):
    print("\ngain over the end of stage one, batch 8, after one epoch of stage two; in points\n")
    methods = [change["method"] for change in stored.head["plan"]["more"]]
    if methods:
        rows = [[name, *_gain(stored, name, more=True)] for name in methods if name != "stage_one"]
        print_table(["more seeds", "mean", "by seed"], rows)
        print()
    mean, by_seed = _gain(stored, "projected_bfgs")
    met = statistics.mean(stored.gains("projected_bfgs", 1)) >= GAIN
    required = [["projected_bfgs", mean, by_seed, f"{GAIN:+.0%}", verdict(met)]]
    print_table(["", "mean", "by seed", "required", ""], required)


def _gain(stored, method, **which):
    gains = stored.gains(method, 1, **which)
    mean, *by_seed = (f"{100 * gain:+.2f}" for gain in (statistics.mean(gains), *gains))
    return [mean, " ".join(by_seed)]


def draw(stored: results.Stored, path: Path) -> None:
    """Write the figure: test error after two epochs, each method at its best rate."""
    from labkit.labs.figures import subspace as subspace_plots

    panels = {}
    for setting, noise in {(row["setting"], row["noise"]): None for row in stored.rows}:
        title = setting + (f"\n{noise:.0%} random labels" if noise else "")
        panels[title] = stored.best(setting, noise)
    subspace_plots.by_method(panels).savefig(path, dpi=110)


def _show_compared(lines):
    rows = []
    for line in lines:
        # These methods have only one accuracy, the one at the end.
        early = line["one_epoch"] if line["method"] not in ("stage_one", "average") else None
        name = " ".join(str(line[n]) for n in ("batch", "learning_rate") if line[n] is not None)
        numbers = [f"{statistics.mean(line[n]):.3f}" for n in ("loss", "seconds")]
        columns = [*percents(early), *percents(line["two_epochs"])]
        rows.append([line["method"], name, *columns, *numbers])
    header = ["", "batch, rate", "one epoch", "by seed", "two", "by seed", "loss", "seconds"]
    print_table(header, rows)


def _show_sweep(stored):
    names, rows = ("setting", *SEARCH, "batch"), []
    swept = stored.select(stage="sweep")
    for values in dict.fromkeys(tuple(row[name] for name in names) for row in swept):
        key = dict(zip(names, values, strict=True))
        what = {name: value for name, value in key.items() if value != _usual(name)}
        searches = stored.searches(**key)
        accuracies = (stored.accuracies("projected_bfgs", n, **key) for n in (1, 2))
        failed = f"{statistics.mean(searches['failed']):.1%}"
        trials = f"{statistics.mean(searches['trials']):.2f}"
        columns = [text for by_seed in accuracies for text in percents(by_seed)]
        rows.append([" ".join(f"{n}={v}" for n, v in what.items()), *columns, failed, trials])
    if rows:
        print("\nprojected BFGS, changed in one thing; test accuracy in %\n")
        print_table(
            ["", "one epoch", "by seed", "two", "by seed", "failed searches", "trials"], rows
        )


def _usual(name):
    return {"setting": "batch 8", "batch": LARGE_BATCH}.get(name) or SEARCH[name]


if __name__ == "__main__":
    main()
