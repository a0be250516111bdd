"""MindSpore's tutorial on gradient accumulation with its four bugs, beside the corrected training.

    python benchmarks/accumulation_race.py          prints the stored trainings
    python benchmarks/accumulation_race.py --all    trains what is not yet done, and stores it
    python benchmarks/accumulation_race.py --quick  everything on few images, into runs/bench

LeNet on MNIST as in the tutorial: three epochs, updates of 4 micro-batches of 32, Momentum with
rate 0.01 and momentum 0.9. "four" bugs: gradients are summed, an epoch's tail is carried into the
next one, the loss printed is the last micro-batch's, and pixels are divided by 255 after they were
normalised, in training and in the test. "none": averaged, flushed, the update's loss, divided
first; also at four times the rate, to which summing raises 0.01. Trainings with the same seed have
the same initial weights and the same images in the same order; all test images judge them.

--all and --quick reuse finished trainings from runs/bench unless --anew is given.
"""

import argparse
from functools import partial
from pathlib import Path

import mindspore as ms
import numpy as np
from _race import Images, batches, images_for, run
from _side_by_side import print_table
from _trainings import Trainings, arguments, at_end, made_by, percents, train_and_show
from _trainings import check as check_table
from mindspore import nn

from labkit.data.prepare import prepare
from labkit.labs import results
from labkit.nets.lenet import LeNet5
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet

BATCH, MICRO_STEPS, MOMENTUM = 32, 4, 0.9
NAME = "accumulation_race"
# Losses that the tutorial prints; a row has each in the column ``loss_`` + value.
PRINTED = {"epoch 1, step 1": "first", "epoch 1, the last step": "end", "epoch 2, step 459": "459"}
_PRINTED = tuple(PRINTED.values())
MEANING = {
    "bugs": "four: as published; none: corrected",
    "loss_first": "loss printed at the first update",
    "loss_end": "loss printed at the first epoch's last update",
    "loss_459": "loss printed at the second epoch's update of the number in plan: quoted",
    "printed_loss": "of the last update: its last micro-batch's loss with the bugs, its mean loss "
    "without",
}
_PUBLISHED = {"bugs": "four", "learning_rate": 0.01}
PLANS = {
    "all": {
        # Settings with the same images are adjacent, so that these are read once.
        "settings": [_PUBLISHED, *({"bugs": "none", "learning_rate": r} for r in (0.01, 0.04))],
        "seeds": [1, 2, 3],
        "epochs": 3,
        "quoted": 459,
        "images": {"held_out": 0, "train": None, "test": None},
    },
    # To check that the program runs: takes seconds; the results mean nothing.
    "quick": {
        "settings": [_PUBLISHED, {"bugs": "none", "learning_rate": 0.01}],
        "seeds": [1],
        "epochs": 2,
        "quoted": 5,
        "images": {"held_out": 0, "train": 1088, "test": 64},
    },
}


def main():
    """Carry out the command line."""
    options = arguments(__doc__, ("all", "quick"))
    train_and_show(NAME, options, train_all, check, show)


def train_all(options: argparse.Namespace, work: Path, machine: dict) -> results.Stored:
    """Run all planned trainings and return the race."""
    plan = PLANS[options.train]
    images = partial(images_for, options.data or prepare("mnist"), **plan["images"])
    trainings = Trainings(
        plan, images, work, options.anew,
        train=train, row_of=row_of, summary=lambda row: row["last_accuracy"],
    )  # fmt: skip
    limits = {name: plan[name] for name in ("epochs", "quoted")}
    for stage, setting, seed in planned(plan):
        part = "as published" if setting["bugs"] == "four" else "test"
        trainings.add(stage, setting, seed, part, limits)
    head = made_by(NAME, options.train, machine) | {"meaning": MEANING, "plan": plan}
    return results.Stored(head, trainings.rows, trainings.curves)


def planned(plan: dict) -> list[tuple[str, dict, int]]:
    """Return (stage, setting, seed) of every training, in order."""
    return [("race", setting, seed) for setting in plan["settings"] for seed in plan["seeds"]]


def make_step(setting: dict, seed: int) -> tuple[nn.Cell, AccumulatedStep]:
    """Return (network, step) of one setting, newly initialised."""
    ms.set_seed(seed)
    np.random.seed(seed)
    network = LeNet5()
    loss_net = LossNet(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    optimizer = nn.Momentum(network.trainable_params(), setting["learning_rate"], MOMENTUM)
    bugs = {"reduction": "sum", "tail": "carry"} if setting["bugs"] == "four" else {}
    return network, AccumulatedStep(loss_net, optimizer, MICRO_STEPS, **bugs)


def train(setting: dict, data: Images, seed: int, *, epochs: int, quoted: int) -> dict:
    """Train once and return what ``_race.run`` does; points also have ``printed_loss``.

    It is judged at the end of every epoch and at the updates whose losses the tutorial quotes.

    Args:
        setting: bugs and learning_rate
        data: images for training and for judging; with the bugs, rescaled as published
        seed: seed of weights and order
        epochs: passes over the images
        quoted: update of the second epoch whose loss is recorded
    """
    network, step = make_step(setting, seed)
    in_epoch = len(data.rows) // BATCH
    judged = {MICRO_STEPS, in_epoch + quoted * MICRO_STEPS}
    judged |= {epoch * in_epoch for epoch in range(1, epochs + 1)}
    returned, of_update = None, None

    def micro_batch(*batch):
        nonlocal returned
        returned = step(*batch)
        return returned

    def after(number):
        nonlocal of_update
        # Groups restart with every epoch: 1875 micro-batches are not a multiple of 4.
        if ((number - 1) % in_epoch + 1) % MICRO_STEPS == 0:
            of_update = returned
        if number % in_epoch == 0:
            step.end_epoch()

    def printed():
        update = step.last_update
        loss = float(of_update.asnumpy()) if setting["bugs"] == "four" else update.loss
        return {"update": update.number, "printed_loss": loss}

    stream = batches(data.rows, epochs * in_epoch, seed, BATCH)
    return run(micro_batch, network, data, stream, judged, after=after, extra=printed)


def row_of(run, stage, setting, seed, outcome) -> dict:
    """Return one row of the table."""
    row = {"run": run, "stage": stage, **setting, "seed": seed, **_of_curve(outcome["curve"])}
    return row | {"failure": outcome["failure"] or None}


def _of_curve(curve):
    losses = [point["printed_loss"] for point in curve[:3]]
    losses += [None] * (3 - len(losses))
    return at_end(curve) | {f"loss_{n}": x for n, x in zip(_PRINTED, losses, strict=True)}


def updates_of(plan: dict, setting: dict) -> int:
    """Return the updates of a training; with the bugs, an epoch's tail makes no update."""
    per_epoch, tail = divmod((plan["images"]["train"] or 60_000) // BATCH, MICRO_STEPS)
    return plan["epochs"] * (per_epoch + (setting["bugs"] == "none" and tail > 0))


def check(stored: results.Stored) -> None:
    """Raise ``InputError`` unless the rows agree with ``stored.head``."""
    plan = stored.head["plan"]

    def updates(row):
        return None if row["failure"] else updates_of(plan, row)

    check_table(stored, planned(plan), lambda row, curve: _of_curve(curve), updates)


def show(stored: results.Stored) -> None:
    """Print every setting's printed losses and its accuracy, by seed."""
    lines = []
    for setting in stored.head["plan"]["settings"]:
        losses = [stored.column(f"loss_{name}", **setting) for name in _PRINTED]
        texts = [" ".join(f"{loss:.4f}" for loss in each) for each in losses]
        right = percents(stored.column("last_accuracy", **setting))
        lines.append([setting["bugs"], f"{setting['learning_rate']}", *texts, *right])
    print("\nloss printed then, and test accuracy at the end in %, by seed\n")
    print_table(["bugs", "rate", *PRINTED, "mean", "accuracy"], lines)


if __name__ == "__main__":
    main()
