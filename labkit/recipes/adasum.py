"""Adasum on an image folder: the tutorial's ResNet-50 on ImageNet, 16 devices in two servers.

    labkit train adasum --data_path FOLDER --settings servers
    labkit train adasum --data_path FOLDER --settings one_device
    labkit eval adasum --data_path FOLDER --checkpoint_path FILE

FOLDER holds train/ and val/, each with one folder per class, or is itself a folder of classes (as
in the tutorial; then there is no evaluation after training). The named settings are "servers"
(the default: 16 ranks, 8 per server) and "one_device" (the same training on one device). --ranks 8
starts eight ranks.

Source: "Adaptive Gradient Summation Algorithm" (MindSpore tutorial r1.7), training.py (ResNet-50,
ImageNet, 2 servers of 8 devices, 256 images on each device: with 1 281 167 images an epoch has 312
steps), and the lr_generator and resnet samples of r1.6, from which it takes the learning rate and
the loss. Departures: labkit's Adasum, on any device and with two or more workers; every image
counts in the evaluation; every rank keeps its own checkpoints, since each worker's optimizer has
its own moments; a training can resume; weight decay exempts normalisation layers and biases by what
they are, not by their names; keep_batchnorm_fp32 and drop_overflow_update are True by default (in
the tutorial False): a micro-batch with an image that is not finite is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import algorithms as words
from labkit.ranks import cluster
from labkit.recipes.settings import WarmUpConfig, at_most, count, one_of, refuse_sink
from labkit.recipes.training import TITLE, Recipe

if TYPE_CHECKING:
    from mindspore import nn

    from labkit.steps.step import Step


@dataclass(frozen=True)
class AdasumConfig(WarmUpConfig):
    """Everything that determines a training, except the data and the machine."""

    reduction: str = one_of("adasum", words.ADASUM_REDUCTIONS, "of labkit.AdasumStep")
    on: str = one_of("updates", words.ADASUM_ON, "of labkit.AdasumStep: what is combined")
    scope: str = one_of("layer", words.ADASUM_SCOPES, "of labkit.AdasumStep: by layer, or whole")
    tail: str = one_of("flush", words.WHOLE_TAILS, "what becomes of an epoch's last micro-batches")
    node_size: int = count(
        8,
        "ranks to a server: averaged inside it, combined across servers; 1 combines every rank. On "
        "one rank: micro-batches that stand for them",
    )
    workers: int = count(1, "virtual workers of each rank")
    save_checkpoint_path: str = "runs/adasum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reduction == "adasum":
            refuse_sink(self, words.ADASUM_ON_HOST)
        at_most(self, "warmup_epochs", "epoch_size")


# "servers": the tutorial's 16 devices. "one_device": the same training on one, with 4096 images in
# an update and 312 updates in an epoch of 5004 micro-batches. A server averages 8 of them, and the
# 12 left over are dropped, as the tutorial drops the images that fill no batch.
NAMED = {"servers": AdasumConfig(), "one_device": AdasumConfig(workers=2, tail="drop")}


def build_step(config: AdasumConfig, network: nn.Cell, micro_batches: int) -> Step:
    """Return the step cell; ``micro_batches`` are those of this rank in an epoch."""
    from labkit.algorithms.adasum import AdasumStep
    from labkit.recipes.parts import build_loss, momentum, warm_up_rates
    from labkit.steps.losses import LossNet

    updates = updates_in_epoch(config, micro_batches, cluster.rank_and_size()[1])
    rates = warm_up_rates(config, config.epoch_size, max(updates, 1))
    return AdasumStep(
        LossNet(network, build_loss(config)),
        momentum(network, rates, config.weight_decay, config.momentum),
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


RECIPE = Recipe(
    name="adasum",
    description=__doc__,
    named=NAMED,
    build_step=build_step,
    losses=(TITLE.format("Training"), " loss is "),
)
train, evaluate_checkpoint = RECIPE.train, RECIPE.evaluate_checkpoint
