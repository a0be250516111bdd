"""ResNet-50 on an image folder: the migration document's whole training, and its evaluation.

    labkit train resnet50 --data_path FOLDER --epoch_size 90
    labkit eval resnet50 --data_path FOLDER --checkpoint_path FILE

Source: "ResNet-50 migration", train.py and eval.py. Departures: a real warm-up, augmentation
(--augment False turns it off), exact shards, and torchvision's network. The defaults are those of
its sample code (docs/sample_code/migration_sample/src/config.py of MindSpore's docs, r1.6), with
256 images in an update on one device (batch_size=32 on each of 8), but for class_num, which is
counted in the data.
"""

import math
from dataclasses import dataclass

from labkit.recipes.settings import TrainingConfig, setting
from labkit.recipes.training import Recipe, Tree, make_step, momentum
from labkit.steps.losses import LossNet
from labkit.steps.schedules import cosine
from labkit.steps.step import Step


@dataclass(frozen=True)
class Config(TrainingConfig):
    """The settings of the migration document."""

    lr: float = setting(0.256, "largest learning rate", above=0)
    lr_end: float = setting(0.0, "last learning rate", within="lr")
    warmup: int = setting(1, "epochs to the largest rate", at_least=0, within="epoch_size")
    momentum: float = setting(0.875, "of nn.Momentum", below=1)
    class_num: int | None = None
    weight_decay: float = 1 / 32768
    precision: str = "O0"
    loss_scale: float = 1.0
    save_checkpoint_epochs: int = 5
    keep_checkpoint_max: int = 10
    save_checkpoint_path: str = "runs/resnet50"


def build_step(config: Config, net: LossNet, micro_batches: int) -> Step:
    """Return the step cell, with optimizer and rates for epochs of ``micro_batches``."""
    updates = math.ceil(micro_batches / config.micro_steps)
    rates = cosine(config.lr, config.lr_end, config.epoch_size, updates, config.warmup)
    return make_step(config, net, momentum(config, net, rates))


RECIPE = Recipe(__doc__, {"default": Config()}, build_step, tree=Tree("", ""))
