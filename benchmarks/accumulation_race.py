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

import mindspore as ms
import numpy as np
from mindspore import nn
from race import MOMENTUM, Images, Race, Training, at_end, batches, loss_net_of, percents, run
from side_by_side import print_table

from labkit.labs.results import Stored
from labkit.nets.lenet import LeNet5
from labkit.steps.accumulation import AccumulatedStep

BATCH, MICRO_STEPS = 32, 4
# Losses that the tutorial prints; a row has each in the column ``loss_`` + value.
PRINTED = {"epoch 1, step 1": "first", "epoch 1, the last step": "end", "epoch 2, step 459": "459"}
_PUBLISHED = {"bugs": "four", "learning_rate": 0.01}
PLANS = {
    "all": {
        # Settings with the same images are adjacent, so that these are read once.
        "settings": [_PUBLISHED, *({"bugs": "none", "learning_rate": r} for r in (0.01, 0.04))],
        "seeds": [1, 2, 3],
        "epochs": 3,
        "quoted": 459,  # update of the second epoch whose loss is recorded
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


def planned(plan, rows):
    """Return every training, in order."""
    parts = {"four": "as published", "none": "test"}
    limits = {name: plan[name] for name in ("epochs", "quoted")}
    return [
        Training("race", setting, seed, parts[setting["bugs"]], limits)
        for setting in plan["settings"]
        for seed in plan["seeds"]
    ]


def make_step(setting: dict, seed: int) -> tuple[nn.Cell, AccumulatedStep]:
    """Return (network, step) of one setting, newly initialised."""
    ms.set_seed(seed)
    np.random.seed(seed)
    network = LeNet5()
    optimizer = nn.Momentum(network.trainable_params(), setting["learning_rate"], MOMENTUM)
    bugs = {"reduction": "sum", "tail": "carry"} if setting["bugs"] == "four" else {}
    return network, AccumulatedStep(loss_net_of(network), optimizer, MICRO_STEPS, **bugs)


def train(setting: dict, data: Images, seed: int, *, epochs: int, quoted: int) -> dict:
    """Train once and return what ``race.run`` does; points also have ``printed_loss``.

    It is judged at the end of every epoch and at the updates whose losses the tutorial quotes.
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


def of_curve(plan, row, curve):
    """Return a row's fields that follow from its curve: the end, and the losses printed."""
    losses = [point["printed_loss"] for point in curve[:3]]
    losses += [None] * (3 - len(losses))
    names = [f"loss_{name}" for name in PRINTED.values()]
    return at_end(curve) | dict(zip(names, losses, strict=True))


def updates_of(plan, row):
    """Return the updates of a training; with the bugs, an epoch's tail makes no update."""
    if row["failure"]:
        return None
    per_epoch, tail = divmod((plan["images"]["train"] or 60_000) // BATCH, MICRO_STEPS)
    return plan["epochs"] * (per_epoch + (row["bugs"] == "none" and tail > 0))


def show(stored: Stored) -> None:
    """Print every setting's printed losses and its accuracy, by seed."""
    lines = []
    for setting in stored.head["plan"]["settings"]:
        losses = [stored.column(f"loss_{name}", **setting) for name in PRINTED.values()]
        texts = [" ".join(f"{loss:.4f}" for loss in each) for each in losses]
        right = percents(stored.column("last_accuracy", **setting))
        lines.append([setting["bugs"], f"{setting['learning_rate']}", *texts, *right])
    print("\nloss printed then, and test accuracy at the end in %, by seed\n")
    print_table(["bugs", "rate", *PRINTED, "mean", "accuracy"], lines)


RACE = Race(
    "accumulation_race",
    PLANS,
    planned,
    train,
    updates_of,
    show,
    of_curve,
    meaning={
        "bugs": "four: as published; none: corrected",
        "loss_first": "loss printed at the first update",
        "loss_end": "loss printed at the first epoch's last update",
        "loss_459": "loss printed at the second epoch's update of the number in plan: quoted",
        "printed_loss": "of the last update: its last micro-batch's loss with the bugs, its mean "
        "loss without",
    },
)

if __name__ == "__main__":
    RACE.main(__doc__)
