"""ResNet-50 on an image folder: the migration document's whole training, and its evaluation.

    labkit train resnet50 --data_path FOLDER --epoch_size 90
    labkit eval resnet50 --data_path FOLDER --checkpoint_path FILE

FOLDER holds train/ and val/, each with one folder per class, or is itself a folder of classes (as
in the document; then there is no evaluation after training). --ranks 8 starts eight ranks.

Source: "ResNet-50 migration", train.py and eval.py. Departures: a real warm-up, augmentation, exact
shards, no weight decay for biases whatever their names, and torchvision's network. Two settings
follow the document instead: --lr_schedule cosine_as_in_the_blog and --augment False.

The first settings' names are those of the document's config; it does not print their values. The
defaults are those of the sample that it was written from
(docs/sample_code/migration_sample/src/config.py of MindSpore's docs, r1.6), a ResNet-50 on ImageNet
with 256 images per update: 256 on one device, or batch_size=32 on each of 8. Departures: class_num
is counted in the data (in the sample 1000), and save_checkpoint_path is a folder for this training
alone (in the sample ./ckpt/). The document's train.py writes a checkpoint every 5 steps whatever
its config says; labkit follows the config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.errors import InputError
from labkit.recipes.settings import (
    TrainingConfig,
    at_most,
    count,
    one_of,
    positive,
    rate,
    share,
)
from labkit.recipes.training import Recipe

if TYPE_CHECKING:
    from mindspore import nn

    from labkit.steps.step import Step

# Functions of labkit.steps.schedules.
SCHEDULES = ("cosine", "cosine_as_in_the_blog")


@dataclass(frozen=True)
class Config(TrainingConfig):
    """Everything that determines a training, except the data and the machine."""

    class_num: int | None = None
    lr: float = positive(0.256, "largest learning rate")
    lr_end: float = rate(0.0, "last learning rate")
    warmup: int = count(1, "epochs until the largest rate is reached", 0)
    lr_schedule: str = one_of(
        "cosine",
        SCHEDULES,
        "function of labkit.steps.schedules: cosine has a warm-up; cosine_as_in_the_blog is the "
        "document's call, which takes warmup for the length of the decay",
    )
    weight_decay: float = 1 / 32768
    momentum: float = share(0.875, "of nn.Momentum")
    save_checkpoint_epochs: int = 5
    keep_checkpoint_max: int = 10
    save_checkpoint_path: str = "runs/resnet50"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_most(self, "warmup", "epoch_size")
        if self.lr_end > self.lr:
            raise InputError(f"lr_end is {self.lr_end}, lr {self.lr}; expected lr_end <= lr")
        decays = self.warmup and self.lr_end < self.lr
        if self.lr_schedule == "cosine_as_in_the_blog" and not decays:
            raise InputError(
                f"warmup is {self.warmup}, lr_end {self.lr_end} and lr {self.lr}; "
                "cosine_as_in_the_blog needs warmup >= 1 and lr_end < lr"
            )


def build_step(config: Config, network: nn.Cell, micro_batches: int) -> Step:
    """Return the step cell, with optimizer and rates for epochs of ``micro_batches``."""
    from labkit.recipes.parts import make_step, momentum, updates_in_epoch
    from labkit.steps import schedules

    updates = updates_in_epoch(config, micro_batches)
    schedule = getattr(schedules, config.lr_schedule)
    rates = schedule(config.lr, config.lr_end, config.epoch_size, updates, config.warmup)
    schedules.check_length(rates, config.epoch_size * updates)
    optimizer = momentum(network, rates, config.weight_decay, config.momentum)
    return make_step(config, network, optimizer)


RECIPE = Recipe(
    name="resnet50", description=__doc__, named={"default": Config()}, build_step=build_step
)
train, evaluate_checkpoint = RECIPE.train, RECIPE.evaluate_checkpoint
