"""Dimension reduction, first stage: an ordinary training that keeps snapshots of its weights.

    python -m labkit.recipes.subspace_stage_1 train --dataset_path FOLDER
    python -m labkit.recipes.subspace_stage_1 eval --dataset_path FOLDER --checkpoint_path FILE

FOLDER holds train/ and val/ (or validation_preprocess/, as the tutorial's text has it), each with
one folder a class. ``labkit.recipes.subspace_config`` says what can be set: the defaults are the
tutorial's. On several ranks, msrun starts one such command each, with --run_distribute True. The
second stage is ``labkit.recipes.subspace_stage_2``.

Source: "Dimension Reduction Training" (MindSpore tutorial r1.6), train_stage_1.py. Departures: the
whole state is in RUN/checkpoint, from where the training resumes, and the snapshots of the
trainable weights are safetensors in RUN/checkpoint_pca (there both are MindSpore checkpoints, in
checkpoint_stage_1); all ranks evaluate, each its part, so that every image counts (there the first
rank alone); the snapshots' first epoch and their number in an epoch can be chosen.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.recipes import command, resnet50
from labkit.recipes.resnet50_parts import build_loss
from labkit.recipes.subspace_config import StageOneConfig

SNAPSHOTS = "checkpoint_pca"


def build_step(config: StageOneConfig, network, epoch_size: int):
    """Return the step cell, its optimizer and rates; ``epoch_size`` is in micro-batches."""
    import mindspore as ms
    from mindspore import nn

    from labkit.steps import schedules
    from labkit.steps.accumulation import AccumulatedStep
    from labkit.steps.losses import LossNet
    from labkit.steps.parameter_groups import decay_groups
    from labkit.steps.plain import PlainStep

    rates = schedules.get_lr(
        config.lr_init,
        config.lr_end,
        config.lr_max,
        config.warmup_epochs,
        config.total_epochs,
        -(-epoch_size // config.micro_steps),
        config.lr_decay_mode,
    )
    groups = decay_groups(network, config.weight_decay)
    optimizer = nn.Momentum(groups, ms.Tensor(rates), config.momentum)
    loss_net = LossNet(network, build_loss(config))
    options = dict(precision=config.precision, loss_scale=config.loss_scale)
    if config.micro_steps > 1:
        return AccumulatedStep(loss_net, optimizer, config.micro_steps, **options)
    return PlainStep(loss_net, optimizer, **options)


def tutorial_callbacks(config, epoch_size: int) -> list:
    """Return what prints as the tutorial's training does, and TimeMonitor.

    ============== Starting Training ==============
    epoch: 1 step: 625 loss is  5.2477064

    The loss is that of the first rank's last micro-batch of an epoch, while records.csv has that
    of every update.
    """
    from mindspore.train import Callback, TimeMonitor

    class Printed(Callback):
        def on_train_begin(self, run_context):
            print("============== Starting Training ==============", flush=True)

        def on_train_step_end(self, run_context):
            now = run_context.original_args()
            if now.cur_step_num % epoch_size == 0:
                epoch = now.cur_step_num // epoch_size
                loss = now.net_outputs
                print("epoch:", epoch, "step:", epoch_size, "loss is ", loss, flush=True)

    return [Printed(), TimeMonitor(data_size=epoch_size)]


def evaluation(config, network, val_set, ranks: int) -> dict[str, float]:
    """Return ``resnet50.evaluation`` and print it as the tutorial does, on the first rank.

    ============== Starting Testing ==============
    ============== {'Accuracy': 0.6604992988782051} ==============

    Raises ``InputError`` with the tutorial's words where there is nothing to evaluate.
    """
    first = cluster.rank_and_size()[0] == 0
    if first:
        print("============== Starting Testing ==============", flush=True)
    if val_set.get_dataset_size() == 0:
        raise InputError("Please check dataset size > 0 and batch_size <= dataset size")
    found = resnet50.evaluation(config, network, val_set, ranks)
    if first:
        accuracy = {"Accuracy": found["top_1_accuracy"]}
        print(f"============== {accuracy} ==============", flush=True)
    return found


def train(config: StageOneConfig, dataset_path: str | Path, **options) -> resnet50.Trained:
    """Train as the tutorial's first stage; see ``labkit.recipes.resnet50.train``.

    options  device, distribute, device_num, resume
    """
    trained = []

    def make_step(config, network, epoch_size):
        trained.append(network)
        return build_step(config, network, epoch_size)

    def callbacks(config, epoch_size):
        kept = snapshots(config, *trained, resume=options.get("resume", False))
        return [*tutorial_callbacks(config, epoch_size), kept]

    return resnet50.train(
        config,
        dataset_path,
        make_step=make_step,
        callbacks=callbacks,
        evaluate=evaluation,
        **options,
    )


def snapshots(config: StageOneConfig, network, *, resume: bool = False):
    """Return the callback that keeps the network's trainable weights in RUN/checkpoint_pca."""
    from labkit.algorithms.subspace.snapshots import Snapshots

    return Snapshots(
        network,
        Path(config.save_checkpoint_path) / SNAPSHOTS,
        start_epoch=config.snapshot_start_epoch,
        saves_per_epoch=config.snapshots_per_epoch,
        keep=config.snapshot_max,
        resume=resume,
    )


def evaluate_checkpoint(
    config, dataset_path: str | Path, checkpoint_path: str | Path, **options
) -> dict[str, float]:
    """Return accuracies and loss of a checkpoint of either stage, and print as the tutorial does.

    options  device, distribute, device_num

    See ``labkit.recipes.resnet50.evaluate_checkpoint``.
    """
    return resnet50.evaluate_checkpoint(
        config, dataset_path, checkpoint_path, evaluate=evaluation, **options
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 for bad input with its message on stderr."""
    return command.run(
        arguments,
        name="subspace_stage_1",
        description=__doc__,
        named={"tutorial": StageOneConfig()},
        train=train,
        evaluate=evaluate_checkpoint,
    )


if __name__ == "__main__":
    sys.exit(main())
