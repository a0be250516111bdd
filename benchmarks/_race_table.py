"""The table of the race: rows from trainings, winners of the tuning, and the printed summary."""

import json

from _race_plan import TARGETS, TUNING_SEED
from _side_by_side import print_table
from _trainings import at_end, made_by

from labkit.labs.results import Stored, mean_steps, steps_to

_OWN = ("net", "optimizer", "learning_rate", "epochs", "damping", "frequency")
_MEANING = {
    "to_X": "first update judged at which the accuracy is at least X; empty: never",
    "stage": "tune and sweep are judged by held-out training images, race by the test set",
    "times": "ms: mean time of an update, measured in turns in one process, refreshes included, "
    "compilation not; compile_seconds: the first update and the second, which compile",
    "mean": "of updates to X over seeds: none where one seed never gets there",
}


def row_of(run, stage, setting, seed, outcome, *, varied=None, value=None) -> dict:
    """Return one row of the table; a training that was never judged has no accuracies."""
    curve, end = outcome["curve"], at_end(outcome["curve"])
    others = {name: value for name, value in setting.items() if name not in _OWN}
    return {
        "run": run,
        "stage": stage,
        "varied": varied,
        "value": None if varied is None else json.dumps(value),
        **{name: setting.get(name) for name in _OWN},
        "options": json.dumps(others) if others else None,
        "seed": seed,
        "updates": end["updates"],
        **{f"to_{target}": steps_to(curve, target) for target in TARGETS},
        "best_accuracy": max((point["accuracy"] for point in curve), default=None),
        "last_accuracy": end["last_accuracy"],
        "last_loss": end["last_loss"],
        "refreshes": outcome.get("refreshes"),
        "retries": outcome.get("retries"),
        "failure": outcome["failure"],
    }


def winner(rows: list[dict], settings: list[dict], target: float) -> dict:
    """Return the setting whose training reached ``target`` in the fewest updates.

    If several did at the same update, it is the one with the smallest final loss; if none did, the
    one with the best accuracy.
    """

    def rank(row):
        steps = row[f"to_{target}"]
        if steps is not None:
            return (0, steps, row["last_loss"])
        return (1, -(row["best_accuracy"] or 0.0), 0)

    return min(zip(rows, settings, strict=True), key=lambda pair: rank(pair[0]))[1]


def head_of(option: str, plan: dict, machine: dict, tuned: dict) -> dict:
    """Return how the table was made: command, versions, cores, date, plan and tuned settings."""
    return made_by("thor_race", option, machine) | {
        "meaning": _MEANING,
        "tuning_seed": TUNING_SEED,
        "plan": {name: value for name, value in plan.items() if name != "rounds"},
        "tuned": tuned,
    }


def show(stored: Stored) -> None:
    """Print the race and the sweeps."""
    for net in stored.head["tuned"]:
        _show_race(stored, net)
    sweep = stored.select(stage="sweep")
    print("\nSweeps: validation accuracy, one seed\n")
    header = ["varied", "value", "to 98.0 %", "at the end", "loss", "refreshes", "what happened"]
    names = ("varied", "value", "to_0.98", "last_accuracy", "last_loss", "refreshes", "failure")
    print_table(header, [[_text(row[name]) for name in names] for row in sweep])


def _show_race(stored, net):
    print(f"\n{net}, whole training set, test accuracy; the first of each is the winner\n")
    tuned = stored.head["tuned"][net]
    others = [
        (optimizer, setting) for optimizer, settings in tuned.items() for setting in settings[1:]
    ]
    rows = []
    for target in TARGETS:
        sides = stored.compare(net, target)
        for optimizer, side in sides.items():
            rows.append(_line(target, optimizer, side))
        means = [side["mean"] for side in sides.values()]
        if None not in means:
            seconds = [side["seconds"] for side in sides.values()]
            ratios = [means[0] / means[1], seconds[0] / seconds[1]]
            rows.append(["", "times fewer", "", "", *(f"{ratio:.2f}" for ratio in ratios), ""])
        for optimizer, setting in others:
            side = stored.compare(net, target, {optimizer: setting["epochs"]})[optimizer]
            rows.append(_line(target, optimizer, side))
    names = ["accuracy", "", "epochs", "updates by seed", "mean", "seconds", "last"]
    print_table(names, rows)


def _line(target, optimizer, side):
    return [
        f"{target:.1%}",
        optimizer,
        _text(side["setting"]["epochs"]),
        str(side["steps"]),
        _text(side["mean"]),
        _text(side["seconds"]),
        f"{mean_steps(side['last']) or 0:.4f}",
    ]


def _text(value):
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
