"""THOR on an image folder: the tutorial's ResNet-50 on ImageNet, 8 devices, and its evaluation.

    labkit train thor --data_path FOLDER --settings ascend
    labkit eval thor --data_path FOLDER --checkpoint_path FILE

FOLDER holds train/ and val/, each with one folder per class, or is itself a folder of classes (as
in the tutorial; then there is no evaluation after training). The named settings are "ascend" (the
default) and "gpu". --ranks 8 starts eight ranks.

Source: "Applying second-order optimization on the ResNet-50 network" (MindSpore tutorial r2.3),
train.py and eval.py; its values are those of official/cv/resnet in MindSpore's models repository,
whose latest file for Ascend has lr_decay 4.04839 and damping_init 0.02714 instead. With 1 281 167
images an epoch has 5004 updates, and 834 are a sixth of them. Departures: labkit's THOR, on any
device; every image counts in the evaluation; a training can resume, from RUN/checkpoint. The
repository's files also have all_reduce_fusion_config, [80, 160] for Ascend and [75, 155] for GPU;
in labkit it is None by default: on two ranks it does not change any number. The damping's 70 epochs
are only the length of its array, which in labkit is that of the training.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.algorithms import THOR_ON_HOST
from labkit.recipes.settings import (
    MixedConfig,
    at_most,
    count,
    flag,
    path,
    positive,
    rate,
    refuse_sink,
    share,
)
from labkit.recipes.training import Recipe

if TYPE_CHECKING:
    from mindspore import nn

    from labkit.algorithms.thor import ThorUpdate
    from labkit.steps.step import Step


@dataclass(frozen=True)
class ThorConfig(MixedConfig):
    """Everything that determines a training, except the data and the machine."""

    batch_size: int = 32
    epoch_size: int = 45
    lr_init: float = positive(0.05803, "learning rate of labkit.steps.schedules.get_thor_lr")
    lr_decay: float = rate(4.0839, "its exponent")
    lr_end_epoch: int = count(53, "epoch at which the rate would be 0")
    decay_epochs: int = count(39, "epoch at which the rate is halved, and once more one later")
    damping_init: float = positive(0.03, "damping of labkit.steps.schedules.get_thor_damping")
    damping_decay: float = positive(0.50036, "its factor over ten epochs")
    frequency: int = count(834, "updates between two refreshes of factors and inverses")
    split: int | None = count(128, "largest block of a factor; None: whole factors")
    weight_decay: float = rate(
        5e-4, "of every Parameter, biases and BatchNorm's too, as in the tutorial"
    )
    momentum: float = share(0.9, "of nn.Momentum")
    loss_scale: float = 128.0
    use_label_smooth: bool = flag(True, "False makes label_smooth_factor 0")
    keep_checkpoint_max: int = 15
    save_checkpoint_path: str = path("runs/thor", "run folder")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_sink(self, THOR_ON_HOST)
        if not self.use_label_smooth:
            object.__setattr__(self, "label_smooth_factor", 0.0)
        # The learning rate ends at lr_end_epoch.
        at_most(self, "epoch_size", "lr_end_epoch")


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


def build_step(config: ThorConfig, network: nn.Cell, micro_batches: int) -> Step:
    """Return the step cell with THOR's update, for epochs of ``micro_batches``."""
    import mindspore as ms
    from mindspore import nn

    from labkit.algorithms.thor import ThorUpdate
    from labkit.recipes.parts import make_step, updates_in_epoch
    from labkit.steps import schedules

    updates = updates_in_epoch(config, micro_batches)
    rates = schedules.get_thor_lr(
        0, config.lr_init, config.lr_decay, config.lr_end_epoch, updates, config.decay_epochs
    )
    damping = schedules.get_thor_damping(
        0, config.damping_init, config.damping_decay, config.epoch_size, updates
    )
    # As a group: otherwise nn.Momentum exempts Parameters with "beta" or "gamma" in their names.
    everything = [{"params": network.trainable_params(), "weight_decay": config.weight_decay}]
    optimizer = nn.Momentum(everything, ms.Tensor(rates), config.momentum)

    def update(loss_net: nn.Cell) -> ThorUpdate:
        frequency, split = config.frequency, config.split
        return ThorUpdate(loss_net, optimizer, damping, frequency=frequency, split=split)

    return make_step(config, network, optimizer, update)


def say(evaluation: dict[str, float], checkpoint_path: str | Path) -> None:
    """Print an evaluation as the tutorial does."""
    result = {name: evaluation[name] for name in ("top_5_accuracy", "top_1_accuracy")}
    print(f"result: {result} ckpt={checkpoint_path}", flush=True)


RECIPE = Recipe(
    name="thor",
    description=__doc__,
    named=NAMED,
    build_step=build_step,
    losses=("", ", loss is "),
    say=say,
)
train, evaluate_checkpoint = RECIPE.train, RECIPE.evaluate_checkpoint
