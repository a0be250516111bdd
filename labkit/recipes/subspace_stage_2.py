"""Dimension reduction, second stage: a search in the directions of the first stage's snapshots.

    labkit train subspace-2 --data_path FOLDER
    labkit train subspace-2 --data_path FOLDER \
        --pretrained_weight_path FILE --pca_mat_path pca_mat.npy
    labkit eval subspace-2 --data_path FOLDER --checkpoint_path FILE

FOLDER is the same as for ``labkit.recipes.subspace_stage_1``. The training starts from the run
folder of that stage: from its newest checkpoint, and from its snapshots, of which the basis is made
and saved as pca_mat.npy. If the file pca_mat_path exists, it is loaded and nothing is computed.
``labkit.recipes.subspace_config`` describes the settings, among them the named ones "tutorial" (the
default) and "as_it_ran". --ranks 8 starts eight ranks.

Source: "Dimension Reduction Training" (MindSpore tutorial r1.6), train_boost_stage_2.py, which
passes ``boost_config_dict`` to Model (``labkit.boost_step`` accepts it). Departures: labkit's
``SubspaceStep``, on any device; the optimizer is the one that the script names, which MindSpore
replaces; a missing checkpoint is refused (in the tutorial it raises NameError); the loss scale is a
number, and is divided out once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.recipes import run_folder
from labkit.recipes.recipe import Recipe
from labkit.recipes.resnet50_parts import build_loss, load_network
from labkit.recipes.subspace_config import STAGE_TWO, StageTwoConfig
from labkit.recipes.subspace_stage_1 import SNAPSHOTS, evaluation, tutorial_callbacks

if TYPE_CHECKING:
    from mindspore import nn

    from labkit.steps.step import Step


def build_step(config: StageTwoConfig, network: nn.Cell, micro_batches: int) -> Step:
    """Return the step cell, and give the network the weights that the stage starts from."""
    from labkit.algorithms.subspace import SubspaceStep
    from labkit.steps.losses import LossNet
    from labkit.upstream.basis import basis_from

    load_start(config, network)
    optimizer = build_optimizer(config, network)
    names = ("rho", "sigma", "trials", "gamma", "alpha", "failure")
    # Projected SGD has no search, and refuses its constants.
    constants = {name: getattr(config, name) for name in names} if config.method == "bfgs" else {}
    return SubspaceStep(
        LossNet(network, build_loss(config)),
        optimizer,
        basis_from(
            config.pca_mat_path, snapshot_folder(config), optimizer.parameters, config.n_components
        ),
        method=config.method,
        micro_steps=config.micro_steps,
        **config.step_options(),
        **constants,
    )


def build_optimizer(config: StageTwoConfig, network: nn.Cell) -> nn.Optimizer:
    """Return the optimizer, which applies the residual that the search leaves."""
    from mindspore import nn

    from labkit.steps.parameter_groups import decay_groups

    return nn.SGD(decay_groups(network, config.weight_decay), config.learning_rate)


def pretrained(config: StageTwoConfig) -> Path:
    """Return the checkpoint to start from; raise ``InputError`` if there is none."""
    if config.pretrained_weight_path is not None:
        path = Path(config.pretrained_weight_path)
        if not path.is_file():
            raise wrong("pretrained_weight_path", str(path), "a file")
        return path
    newest = run_folder.newest(Path(config.stage_1))
    if newest is None:
        raise InputError(
            f"{config.stage_1} holds no checkpoint; expected stage_1 to be the run folder of the "
            "first stage, or pretrained_weight_path"
        )
    return Path(config.stage_1) / "checkpoint" / newest


def load_start(config: StageTwoConfig, network: nn.Cell) -> None:
    """Set the network's Parameters to the values that the stage starts from."""
    path = pretrained(config)
    load_network(network, path)
    text = f"labkit: starts from {path}"
    if config.start_from == "first":
        from labkit.algorithms.subspace.snapshots import load_snapshot

        # BatchNorm keeps the checkpoint's running statistics: snapshots hold trainable weights.
        load_snapshot(network, snapshot_folder(config), which="first")
        text += f", with the weights of the first snapshot in {snapshot_folder(config)}"
    if cluster.rank_and_size()[0] == 0:
        print(text, flush=True)


def snapshot_folder(config: StageTwoConfig) -> Path:
    """Return the folder of the first stage's snapshots."""
    if config.weight_load_dir is not None:
        return Path(config.weight_load_dir)
    # RUN/checkpoint/FILE, or the tutorial's checkpoint_stage_1/FILE.
    folder = pretrained(config).absolute().parent
    for beside in (folder.parent / SNAPSHOTS, folder / SNAPSHOTS):
        if beside.is_dir():
            return beside
    return Path(config.stage_1) / SNAPSHOTS


def check_classes(config: StageTwoConfig, classes: Sequence[str]) -> None:
    """Raise ``InputError`` if the classes of the data are not those of the first stage."""
    run_folder.check_classes(classes, run_folder.beside(pretrained(config), run_folder.CLASSES))


RECIPE = Recipe(
    name="subspace_stage_2",
    description=__doc__,
    named=STAGE_TWO,
    build_step=build_step,
    callbacks=tutorial_callbacks,
    evaluation=evaluation,
    check_classes=check_classes,
)
train, evaluate_checkpoint, main = RECIPE.train, RECIPE.evaluate_checkpoint, RECIPE.main


if __name__ == "__main__":
    sys.exit(main())
