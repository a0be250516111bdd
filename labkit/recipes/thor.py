"""THOR on an image folder: the tutorial's ResNet-50 on ImageNet, 8 devices, and its evaluation.

    python -m labkit.recipes.thor train --dataset_path FOLDER --settings ascend
    python -m labkit.recipes.thor eval --dataset_path FOLDER --checkpoint_path FILE

FOLDER holds train/ and val/, each with one folder a class, or is such a folder of classes itself
(the tutorial's; there is no evaluation after training then). ``labkit.recipes.thor_config`` has the
settings "ascend" (the default) and "gpu" and says what else can be set. On several ranks, msrun
starts one such command each, with --run_distribute True.

Source: "Applying second-order optimization on the ResNet-50 network" (MindSpore tutorial r2.3),
train.py and eval.py. Departures: THOR as labkit has it, on any device; every image counts in the
evaluation; the first rank alone writes checkpoints, RUN/ckpt_0/resnet-{epoch}_{step}.ckpt, since
all ranks hold the same weights; training resumes, from RUN/checkpoint. After a resume MindSpore
names its files resnet_1-{epoch}_{step}.ckpt, to keep the earlier ones.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from labkit.ranks import cluster
from labkit.recipes import command, resnet50
from labkit.recipes.resnet50_parts import build_loss
from labkit.recipes.thor_config import NAMED, ThorConfig


def build_step(config: ThorConfig, network, epoch_size: int):
    """Return the step cell with THOR's update; ``epoch_size`` is in micro-batches."""
    import mindspore as ms
    from mindspore import nn

    from labkit.algorithms.thor import ThorUpdate
    from labkit.steps import schedules
    from labkit.steps.accumulation import AccumulatedStep
    from labkit.steps.losses import LossNet
    from labkit.steps.plain import PlainStep

    updates = -(-epoch_size // config.micro_steps)
    rates = schedules.get_thor_lr(
        0, config.lr_init, config.lr_decay, config.lr_end_epoch, updates, config.decay_epochs
    )
    damping = schedules.get_thor_damping(
        0, config.damping_init, config.damping_decay, config.epoch_size, updates
    )
    # As a group: nn.Momentum would spare what has "beta" or "gamma" in its name.
    everything = [{"params": network.trainable_params(), "weight_decay": config.weight_decay}]
    optimizer = nn.Momentum(everything, ms.Tensor(rates), config.momentum)
    loss_net = LossNet(network, build_loss(config))
    update = ThorUpdate(
        loss_net, optimizer, damping, frequency=config.frequency, split=config.split
    )
    options = dict(update=update, precision=config.precision, loss_scale=config.loss_scale)
    if config.micro_steps > 1:
        return AccumulatedStep(loss_net, optimizer, config.micro_steps, **options)
    return PlainStep(loss_net, optimizer, **options)


def callbacks(config: ThorConfig, epoch_size: int) -> list:
    """Return the tutorial's callbacks: TimeMonitor, LossMonitor and ModelCheckpoint.

    The loss is printed once an epoch, as in the tutorial's output: ``epoch: 1 step: 5004, loss is
    4.4182425``.
    """
    from mindspore.train import CheckpointConfig, LossMonitor, ModelCheckpoint, TimeMonitor

    found = [TimeMonitor(data_size=epoch_size), LossMonitor(per_print_times=epoch_size)]
    if config.save_checkpoint:
        saving = CheckpointConfig(
            save_checkpoint_steps=config.save_checkpoint_epochs * epoch_size,
            keep_checkpoint_max=config.keep_checkpoint_max,
        )
        folder = Path(config.save_checkpoint_path) / "ckpt_0"
        found.append(ModelCheckpoint(prefix="resnet", directory=str(folder), config=saving))
    return found


def train(config: ThorConfig, dataset_path: str | Path, **options) -> resnet50.Trained:
    """Train with THOR, and evaluate where there is a val/; see ``labkit.recipes.resnet50.train``.

    options  device, distribute, device_num, resume
    """
    return resnet50.train(
        config, dataset_path, make_step=build_step, callbacks=callbacks, **options
    )


def evaluate_checkpoint(
    config: ThorConfig, dataset_path: str | Path, checkpoint_path: str | Path, **options
) -> dict[str, float]:
    """Return accuracies and loss of a checkpoint over every image, and print the tutorial's line.

    options  device, distribute, device_num

    See ``labkit.recipes.resnet50.evaluate_checkpoint``.
    """
    found = resnet50.evaluate_checkpoint(config, dataset_path, checkpoint_path, **options)
    if cluster.rank_and_size()[0] == 0:
        result = {name: found[name] for name in ("top_5_accuracy", "top_1_accuracy")}
        print(f"result: {result} ckpt={checkpoint_path}", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 for bad input with its message on stderr."""
    return command.run(
        arguments,
        name="thor",
        description=__doc__,
        named=NAMED,
        train=train,
        evaluate=evaluate_checkpoint,
    )


if __name__ == "__main__":
    sys.exit(main())
