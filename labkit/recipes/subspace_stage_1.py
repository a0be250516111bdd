"""Dimension reduction, first stage: an ordinary training that keeps snapshots of its weights.

    labkit train subspace-1 --data_path FOLDER
    labkit eval subspace-1 --data_path FOLDER --checkpoint_path FILE

FOLDER holds train/ and val/ (or validation_preprocess/, as in the tutorial's text), each with one
folder per class. ``labkit.recipes.subspace_config`` describes the settings; their defaults are the
tutorial's. --ranks 8 starts eight ranks. The second stage is ``labkit.recipes.subspace_stage_2``.

Source: "Dimension Reduction Training" (MindSpore tutorial r1.6), train_stage_1.py. Departures:
RUN/checkpoint holds the whole state, from which a training can resume, and RUN/checkpoint_pca holds
the snapshots of the trainable weights, as safetensors (in the tutorial both are MindSpore
checkpoints in checkpoint_stage_1); all ranks evaluate, each its part, so that every image counts
(in the tutorial only the first rank evaluates), in float32; the snapshots' first epoch and their
number per epoch can be chosen.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.recipes import recipe
from labkit.recipes.config import TrainingConfig
from labkit.recipes.resnet50_parts import (
    make_step,
    momentum,
    printed_losses,
    updates_in_epoch,
    warm_up_rates,
)
from labkit.recipes.subspace_config import StageOneConfig

if TYPE_CHECKING:
    from mindspore import nn
    from mindspore.dataset import Dataset
    from mindspore.train import Callback

    from labkit.steps.step import Step

SNAPSHOTS = "checkpoint_pca"


def build_step(config: StageOneConfig, network: nn.Cell, micro_batches: int) -> Step:
    """Return the step cell, with optimizer and rates for epochs of ``micro_batches``."""
    updates = updates_in_epoch(config, micro_batches)
    rates = warm_up_rates(config, config.total_epochs, updates)
    optimizer = momentum(network, rates, config.weight_decay, config.momentum)
    return make_step(config, network, optimizer)


def tutorial_callbacks(
    config: TrainingConfig, network: nn.Cell, micro_batches: int, resume: bool
) -> list[Callback]:
    """Return callbacks that print ``epoch: 1 step: 625 loss is  5.2477064`` after each epoch."""
    return printed_losses(micro_batches, updates_in_epoch(config, micro_batches), " loss is  ")


def callbacks(
    config: StageOneConfig, network: nn.Cell, micro_batches: int, resume: bool
) -> list[Callback]:
    """Return the tutorial's callbacks, and one that keeps snapshots in RUN/checkpoint_pca."""
    from labkit.algorithms.subspace.snapshots import Snapshots

    snapshots = Snapshots(
        network,
        Path(config.save_checkpoint_path) / SNAPSHOTS,
        start_epoch=config.snapshot_start_epoch,
        saves_per_epoch=config.snapshots_per_epoch,
        keep=config.snapshot_max,
        resume=resume,
    )
    return [*tutorial_callbacks(config, network, micro_batches, resume), snapshots]


def evaluation(
    config: TrainingConfig, network: nn.Cell, val_set: Dataset, ranks: int
) -> dict[str, float]:
    """Return the result of ``recipe.evaluation``; the first rank prints it as the tutorial does.

    ============== Starting Testing ==============
    ============== {'Accuracy': 0.6604992988782051} ==============

    Raises:
        InputError: if there is nothing to evaluate, with the tutorial's message.
    """
    first = cluster.rank_and_size()[0] == 0
    if first:
        print("============== Starting Testing ==============", flush=True)
    if val_set.get_dataset_size() == 0:
        raise InputError("Please check dataset size > 0 and batch_size <= dataset size")
    result = recipe.evaluation(config, network, val_set, ranks)
    if first:
        accuracy = {"Accuracy": result["top_1_accuracy"]}
        print(f"============== {accuracy} ==============", flush=True)
    return result


RECIPE = recipe.Recipe(
    name="subspace_stage_1",
    description=__doc__,
    named={"tutorial": StageOneConfig()},
    build_step=build_step,
    callbacks=callbacks,
    evaluation=evaluation,
)
train, evaluate_checkpoint, main = RECIPE.train, RECIPE.evaluate_checkpoint, RECIPE.main


if __name__ == "__main__":
    sys.exit(main())
