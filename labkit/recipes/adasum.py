"""Adasum on an image folder: the tutorial's ResNet-50 on ImageNet, 16 devices in two servers.

    labkit train adasum --data_path FOLDER --settings servers
    labkit train adasum --data_path FOLDER --settings one_device
    labkit eval adasum --data_path FOLDER --checkpoint_path FILE

FOLDER holds train/ and val/, each with one folder per class, or is itself a folder of classes (as
in the tutorial; then there is no evaluation after training). ``labkit.recipes.adasum_config``
describes the settings, among them the named ones "servers" (the default: 16 ranks, 8 per server)
and "one_device" (the same training on one device). --ranks 8 starts eight ranks.

Source: "Adaptive Gradient Summation Algorithm" (MindSpore tutorial r1.7), training.py. Departures:
labkit's Adasum, on any device and with two or more workers; every image counts in the evaluation;
every rank keeps its own checkpoints, RUN/rank_<n>/checkpoint, since each worker's optimizer has its
own moments; a training can resume, from there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from labkit.recipes.adasum_config import NAMED, AdasumConfig
from labkit.recipes.recipe import Recipe
from labkit.recipes.resnet50_parts import build_loss, momentum, printed_losses, warm_up_rates

if TYPE_CHECKING:
    from mindspore import nn
    from mindspore.train import Callback

    from labkit.steps.step import Step


def build_step(config: AdasumConfig, network: nn.Cell, micro_batches: int) -> Step:
    """Return the step cell; ``micro_batches`` are those of this rank in an epoch."""
    from labkit.algorithms.adasum import AdasumStep
    from labkit.ranks import cluster
    from labkit.steps.losses import LossNet

    updates = updates_in_epoch(config, micro_batches, cluster.rank_and_size()[1])
    return AdasumStep(
        LossNet(network, build_loss(config)),
        build_optimizer(config, network, updates),
        workers=config.workers,
        micro_steps=config.micro_steps,
        on=config.on,
        reduction=config.reduction,
        scope=config.scope,
        node_size=config.node_size,
        tail=config.tail,
        **config.step_options(),
    )


def updates_in_epoch(config: AdasumConfig, micro_batches: int, ranks: int) -> int:
    """Return the updates in an epoch, each from a group of micro-batches of every worker."""
    inside = 1 if ranks > 1 else config.node_size
    in_an_update = config.workers * config.micro_steps * inside
    full = micro_batches // in_an_update
    return full if config.tail == "drop" else -(-micro_batches // in_an_update)


def build_optimizer(config: AdasumConfig, network: nn.Cell, updates: int) -> nn.Optimizer:
    """Return the optimizer, with a rate for each update; ``updates`` are those of an epoch."""
    rates = warm_up_rates(config, config.epoch_size, max(updates, 1))
    return momentum(network, rates, config.weight_decay, config.momentum)


def callbacks(
    config: AdasumConfig, network: nn.Cell, micro_batches: int, resume: bool
) -> list[Callback]:
    """Return callbacks that print ``epoch: 1 step: 312 loss is 5.5303826``; step counts updates."""
    from labkit.ranks import cluster

    updates = updates_in_epoch(config, micro_batches, cluster.rank_and_size()[1])
    return printed_losses(micro_batches, updates, " loss is ")


RECIPE = Recipe(
    name="adasum",
    description=__doc__,
    named=NAMED,
    build_step=build_step,
    callbacks=callbacks,
    folder_of_rank=True,
    updates=updates_in_epoch,
    devices=16,
)
train, evaluate_checkpoint, main = RECIPE.train, RECIPE.evaluate_checkpoint, RECIPE.main


if __name__ == "__main__":
    sys.exit(main())
