"""Gradient accumulation: the tutorial's LeNet-5 on MNIST, or a ResNet on an image folder.

    labkit train accumulation --data_path MNIST_Data
    labkit train accumulation --data_path FOLDER --settings resnet50
    labkit eval accumulation --data_path MNIST_Data --checkpoint_path FILE

MNIST_Data holds train/ and test/ (data_scripts/mnist.py makes it), FOLDER holds train/ and val/,
each with one folder per class. ``labkit.recipes.accumulation_config`` describes the settings, among
them the named ones "lenet" (the default) and "resnet50".

Source: "Gradient Accumulation Algorithm" (MindSpore tutorial r1.0). Departures: the gradients are
averaged (source: --reduction sum), the last micro-batches of an epoch make an update of their own
(source: --tail carry), and every image counts in the evaluation.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from labkit.recipes import lenet_parts, resnet50_parts
from labkit.recipes.accumulation_config import NAMED, AccumulationConfig
from labkit.recipes.recipe import Recipe

if TYPE_CHECKING:
    from mindspore import nn

    from labkit.steps.step import Step


def build_step(config: AccumulationConfig, network: nn.Cell, micro_batches: int) -> Step:
    """Return the step cell with its optimizer."""
    from mindspore import nn

    from labkit.steps.accumulation import AccumulatedStep
    from labkit.steps.losses import LossNet
    from labkit.steps.parameter_groups import decay_groups

    groups = decay_groups(network, config.weight_decay)
    return AccumulatedStep(
        LossNet(network, resnet50_parts.build_loss(config)),
        nn.Momentum(groups, config.learning_rate, config.momentum),
        config.micro_steps,
        reduction=config.reduction,
        tail=config.tail,
        **config.step_options(),
    )


def updates_in_epoch(config: AccumulationConfig, micro_batches: int, ranks: int = 1) -> int:
    """Return the updates in an epoch; only ``flush`` makes one of leftover micro-batches."""
    full = micro_batches // config.micro_steps
    return full if config.tail != "flush" else -(-micro_batches // config.micro_steps)


RECIPE = Recipe(
    name="accumulation",
    description=__doc__,
    named=NAMED,
    build_step=build_step,
    parts=lambda config: resnet50_parts if config.network == "resnet" else lenet_parts,
    data="MNIST's train/ and test/; for a ResNet train/ and val/",
    updates=updates_in_epoch,
)
train, evaluate_checkpoint, main = RECIPE.train, RECIPE.evaluate_checkpoint, RECIPE.main


if __name__ == "__main__":
    sys.exit(main())
