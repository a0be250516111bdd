"""ResNet-50 on an image folder: the migration document's whole training, and its evaluation.

    labkit train resnet50 --data_path FOLDER --epoch_size 90
    labkit eval resnet50 --data_path FOLDER --checkpoint_path FILE

FOLDER holds train/ and val/, each with one folder per class, or is itself a folder of classes (as
in the document; then there is no evaluation after training). ``labkit.recipes.resnet50_config``
describes the settings and their defaults. --ranks 8 starts eight ranks.

Source: "ResNet-50 migration", train.py and eval.py. Departures: a real warm-up, augmentation, exact
shards, no weight decay for biases whatever their names, and torchvision's network. Two settings
follow the document instead: --lr_schedule cosine_as_in_the_blog and --augment False.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from labkit.recipes.recipe import Recipe
from labkit.recipes.resnet50_config import Config
from labkit.recipes.resnet50_parts import make_step, momentum, updates_in_epoch

if TYPE_CHECKING:
    from mindspore import nn

    from labkit.steps.step import Step


def build_step(config: Config, network: nn.Cell, micro_batches: int) -> Step:
    """Return the step cell, with optimizer and rates for epochs of ``micro_batches``."""
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
train, evaluate_checkpoint, main = RECIPE.train, RECIPE.evaluate_checkpoint, RECIPE.main


if __name__ == "__main__":
    sys.exit(main())
