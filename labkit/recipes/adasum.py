"""Adasum on an image folder: the tutorial's ResNet-50 on ImageNet, 16 devices in two servers.

    labkit train adasum --data_path FOLDER --settings servers       (the default: 16 ranks)
    labkit train adasum --data_path FOLDER --settings one_device    (the same on one device)
    labkit eval adasum --data_path FOLDER --checkpoint_path FILE

Source: "Adaptive Gradient Summation Algorithm" (MindSpore tutorial r1.7), training.py (2 servers of
8 devices, 256 images on each device: with 1 281 167 images an epoch has 312 steps), and the
lr_generator and resnet samples of r1.6, from which it takes the learning rate and the loss.
Departures: labkit's Adasum, on any device and with two or more workers; every rank keeps its own
checkpoints, since each worker's optimizer has its own moments; BatchNorm is in float32 (source:
--precision O3), and what is not finite is dropped (source: --nonfinite propagate).
"""

from dataclasses import dataclass

from labkit.algorithms.adasum import AdasumStep
from labkit.ranks import cluster
from labkit.recipes.settings import WarmUpConfig, setting
from labkit.recipes.training import Recipe, Tree, momentum, warm_up_rates
from labkit.steps.losses import LossNet


@dataclass(frozen=True)
class AdasumConfig(WarmUpConfig):
    """The settings of Adasum."""

    reduction: str = setting("adasum", "of the workers' updates", words=("adasum", "mean", "sum"))
    tail: str = setting("flush", "workers with too few at the end", words=("flush", "drop"))
    node_size: int = setting(
        8, "ranks to a server, which are averaged; on one rank micro-batches that stand for them"
    )
    workers: int = setting(1, "virtual workers of each rank")
    save_checkpoint_path: str = "runs/adasum"


# "one_device": the same training on one, with 4096 images in an update and 312 updates in an epoch
# of 5004 micro-batches. A server averages 8 of them, and the 12 left over are dropped, as the
# tutorial drops the images that fill no batch.
NAMED = {"servers": AdasumConfig(), "one_device": AdasumConfig(workers=2, tail="drop")}


def build_step(config: AdasumConfig, net: LossNet, micro_batches: int) -> AdasumStep:
    """Return the step cell; ``micro_batches`` are those of this rank in an epoch."""
    on_one_rank = cluster.rank_and_size()[1] == 1
    in_an_update = config.workers * config.micro_steps * (config.node_size if on_one_rank else 1)
    updates, left = divmod(micro_batches, in_an_update)
    updates += 1 if left and config.tail == "flush" else 0
    names = ("workers", "micro_steps", "reduction", "node_size", "tail")
    return AdasumStep(
        net,
        momentum(config, net, warm_up_rates(config, config.epoch_size, max(updates, 1))),
        **{name: getattr(config, name) for name in names},
        **config.step_options(),
    )


LOSSES = ("============== Starting Training ==============", " loss is ")
RECIPE = Recipe(__doc__, NAMED, build_step, tree=Tree("device{}"), losses=LOSSES)
