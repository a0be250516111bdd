"""THOR on an image folder: the tutorial's ResNet-50 on ImageNet, 8 devices, and its evaluation.

    labkit train thor --data_path FOLDER --settings ascend      (the default; or gpu)
    labkit eval thor --data_path FOLDER --checkpoint_path FILE

Source: "Applying second-order optimization on the ResNet-50 network" (MindSpore tutorial r2.3),
train.py and eval.py; its values are those of official/cv/resnet in MindSpore's models repository,
whose latest file for Ascend has lr_decay 4.04839 and damping_init 0.02714 instead. With 1 281 167
images an epoch has 5004 updates, and 834 are a sixth of them. Departures: labkit's THOR, on any
device; all_reduce_fusion_config, there [80, 160] for Ascend and [75, 155] for GPU, is None: on two
ranks it does not change any number.
"""

import math
from dataclasses import dataclass

import mindspore as ms
from mindspore import nn

from labkit.algorithms.thor import ThorUpdate
from labkit.recipes.settings import TrainingConfig, setting
from labkit.recipes.training import Recipe, Tree, make_step
from labkit.steps import schedules
from labkit.steps.losses import LossNet
from labkit.steps.step import Step


@dataclass(frozen=True)
class ThorConfig(TrainingConfig):
    """The settings of THOR."""

    lr_init: float = setting(0.05803, "learning rate of labkit.steps.schedules.get_thor_lr")
    lr_decay: float = setting(4.0839, "its exponent")
    lr_end_epoch: int = setting(53, "epoch at which the rate would be 0")
    decay_epochs: int = setting(39, "epoch at which the rate is halved, and once more one later")
    damping_init: float = setting(0.03, "of labkit.steps.schedules.get_thor_damping", above=0)
    damping_decay: float = setting(0.50036, "its factor over ten epochs", above=0)
    frequency: int = setting(834, "updates between two refreshes of factors and inverses")
    momentum: float = setting(0.9, "of nn.Momentum", below=1)
    weight_decay: float = setting(5e-4, "of every Parameter, as in the tutorial")
    batch_size: int = 32
    epoch_size: int = setting(45, "epochs of the whole training", within="lr_end_epoch")
    loss_scale: float = 128.0
    keep_checkpoint_max: int = 15
    save_checkpoint_path: str = "runs/thor"


NAMED = {
    "ascend": ThorConfig(),
    "gpu": ThorConfig(
        lr_init=0.05672,
        lr_decay=4.9687,
        lr_end_epoch=50,
        damping_init=0.02345,
        damping_decay=0.5467,
        epoch_size=40,
    ),
}


def build_step(config: ThorConfig, net: LossNet, micro_batches: int) -> Step:
    """Return the step cell with THOR's update, for epochs of ``micro_batches``."""
    updates = math.ceil(micro_batches / config.micro_steps)
    rates = schedules.get_thor_lr(
        0, config.lr_init, config.lr_decay, config.lr_end_epoch, updates, config.decay_epochs
    )
    damping = schedules.get_thor_damping(
        0, config.damping_init, config.damping_decay, config.epoch_size, updates
    )
    # As a group: otherwise nn.Momentum exempts Parameters with "beta" or "gamma" in their names.
    everything = [{"params": net.network.trainable_params(), "weight_decay": config.weight_decay}]
    optimizer = nn.Momentum(everything, ms.Tensor(rates), config.momentum)
    update = ThorUpdate(net, optimizer, damping, frequency=config.frequency)
    return make_step(config, net, optimizer, update=update)


RECIPE = Recipe(
    __doc__,
    NAMED,
    build_step,
    tree=Tree("train_parallel{}", "ckpt_0", every_device=True),
    tree_on_gpu=Tree("train_parallel", "ckpt_{}", every_device=True),
    losses=("", ", loss is "),
    judged="result: {{'top_5_accuracy': {top_5_accuracy}, 'top_1_accuracy': {top_1_accuracy}}} "
    "ckpt={path}",
)
