"""THOR on an image folder: the tutorial's ResNet-50 on ImageNet, 8 devices, and its evaluation.

    labkit train thor --data_path FOLDER --settings ascend
    labkit eval thor --data_path FOLDER --checkpoint_path FILE

FOLDER holds train/ and val/, each with one folder per class, or is itself a folder of classes (as
in the tutorial; then there is no evaluation after training). ``labkit.recipes.thor_config``
describes the settings, among them the named ones "ascend" (the default) and "gpu". --ranks 8 starts
eight ranks.

Source: "Applying second-order optimization on the ResNet-50 network" (MindSpore tutorial r2.3),
train.py and eval.py. Departures: labkit's THOR, on any device; every image counts in the
evaluation; only the first rank writes checkpoints, RUN/ckpt_0/resnet-{epoch}_{step}.ckpt, since
all ranks hold the same weights; a training can resume, from RUN/checkpoint. After a resume
MindSpore names its files resnet_1-{epoch}_{step}.ckpt, to keep the earlier ones.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.recipes.recipe import Recipe
from labkit.recipes.resnet50_parts import make_step, monitors, updates_in_epoch
from labkit.recipes.thor_config import NAMED, ThorConfig

if TYPE_CHECKING:
    from mindspore import nn
    from mindspore.train import Callback

    from labkit.algorithms.thor import ThorUpdate
    from labkit.steps.step import Step


def build_step(config: ThorConfig, network: nn.Cell, micro_batches: int) -> Step:
    """Return the step cell with THOR's update, for epochs of ``micro_batches``."""
    import mindspore as ms
    from mindspore import nn

    from labkit.algorithms.thor import ThorUpdate
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


def callbacks(
    config: ThorConfig, network: nn.Cell, micro_batches: int, resume: bool
) -> list[Callback]:
    """Return the tutorial's callbacks: TimeMonitor, LossMonitor and ModelCheckpoint."""
    from mindspore.train import CheckpointConfig, ModelCheckpoint

    if not config.save_checkpoint or config.layout == "documents":
        return monitors(micro_batches)
    saving = CheckpointConfig(
        save_checkpoint_steps=config.save_checkpoint_epochs * micro_batches,
        keep_checkpoint_max=config.keep_checkpoint_max,
    )
    folder = Path(config.save_checkpoint_path) / "ckpt_0"
    checkpoints = ModelCheckpoint(prefix="resnet", directory=str(folder), config=saving)
    return [*monitors(micro_batches), checkpoints]


def say(evaluation: dict[str, float], checkpoint_path: str | Path) -> None:
    """Print an evaluation as the tutorial does."""
    result = {name: evaluation[name] for name in ("top_5_accuracy", "top_1_accuracy")}
    print(f"result: {result} ckpt={checkpoint_path}", flush=True)


RECIPE = Recipe(
    name="thor",
    description=__doc__,
    named=NAMED,
    build_step=build_step,
    callbacks=callbacks,
    say=say,
)
train, evaluate_checkpoint, main = RECIPE.train, RECIPE.evaluate_checkpoint, RECIPE.main


if __name__ == "__main__":
    sys.exit(main())
