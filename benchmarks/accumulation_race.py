"""MindSpore's tutorial on gradient accumulation with its four bugs, beside the corrected training.

    python benchmarks/accumulation_race.py [--all]    as race.py says

LeNet on MNIST as in the tutorial: three epochs, updates of 4 micro-batches of 32, Momentum with
rate 0.01 and momentum 0.9. "four" bugs: gradients are summed, an epoch's tail is carried into the
next one, the loss printed is the last micro-batch's, and pixels are divided by 255 after they were
normalised, in training and in the test. "none": averaged, flushed, the update's loss, divided
first; also at four times the rate, to which summing raises 0.01. Trainings with the same seed have
the same initial weights and the same images in the same order; all test images judge them.
"""

import race
from mindspore import nn

from labkit.nets.lenet import LeNet5
from labkit.steps.accumulation import AccumulatedStep

BATCH, MICRO_STEPS = 32, 4
# Losses that the tutorial prints, at epoch 1, step 1 and the last, and at epoch 2, step 459.
PRINTED = ("first", "end", "459")
_PUBLISHED = {"bugs": "four", "learning_rate": 0.01}
PLAN = {
    # Settings with the same images are adjacent, so that these are read once.
    "settings": [_PUBLISHED, *({"bugs": "none", "learning_rate": r} for r in (0.01, 0.04))],
    "seeds": [1, 2, 3],
    "epochs": 3,
    "quoted": 459,  # update of the second epoch whose loss is recorded
    "images": {"held_out": 0, "train": None, "test": None},
}


def planned(plan, rows):
    """Return every training, in order."""
    parts = {"four": "as published", "none": "test"}
    limits = {name: plan[name] for name in ("epochs", "quoted")}
    return [
        race.training("race", parts[setting["bugs"]], setting, seed, limits)
        for setting in plan["settings"]
        for seed in plan["seeds"]
    ]


def make_step(setting: dict, seed: int) -> tuple[nn.Cell, AccumulatedStep]:
    """Return (network, step) of one setting, newly initialised."""
    network = race.seeded(LeNet5, seed)
    optimizer = nn.Momentum(network.trainable_params(), setting["learning_rate"], race.MOMENTUM)
    bugs = {"reduction": "sum", "tail": "carry"} if setting["bugs"] == "four" else {}
    return network, AccumulatedStep(race.loss_net_of(network), optimizer, MICRO_STEPS, **bugs)


def train(setting: dict, data: race.Images, seed: int, *, epochs: int, quoted: int) -> dict:
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

    stream = race.batches(data.rows, epochs * in_epoch, seed, BATCH)
    return race.run(micro_batch, network, data, stream, judged, after=after, extra=printed)


def end(plan, row, outcome):
    """Return a row's other fields: the end, and the losses printed; None: not trained so far."""
    losses = [point["printed_loss"] for point in outcome["curve"]] + [None] * len(PRINTED)
    printed = zip((f"loss_{name}" for name in PRINTED), losses, strict=False)
    return race.at_end(plan, row, outcome) | dict(printed)


RACE = race.Race("accumulation_race", PLAN, planned, train, end)

if __name__ == "__main__":
    RACE.main(__doc__)
