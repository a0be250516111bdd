"""Two-stage training by dimension reduction: the tutorial's ResNet-50 on ImageNet, 8 devices.

    labkit train subspace-1 --data_path FOLDER
    labkit train subspace-2 --data_path FOLDER [--pretrained_weight_path FILE] [--pca_mat_path FILE]
    labkit eval subspace-2 --data_path FOLDER --checkpoint_path FILE

The second stage starts from the run folder of the first: from its newest checkpoint, and from the
basis of its snapshots, which is made and saved unless the file pca_mat_path exists.

Source: "Dimension Reduction Training" (MindSpore tutorial r1.6), train_stage_1.py and
train_boost_stage_2.py (256 images on each device: with 1 281 167 images an epoch has 625 steps),
and the lr_generator and resnet samples of r1.6, from which it takes the learning rate and the loss.
Departures: BatchNorm is in float32 (source: --precision O3), and what is not finite is dropped
(source: --nonfinite propagate); the loss scale is divided out once. The second stage is labkit's
``SubspaceStep`` with the optimizer that the script names and MindSpore replaces, and without weight
decay: the tutorial's 1e-4 at rate 1 would remove an eighth of every weight in its 1250 steps (1 -
(1 - 1e-4)^1250 = 0.118), but what MindSpore puts in the optimizer's place has none.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindspore import nn

from labkit.algorithms.subspace import SubspaceStep, basis_from
from labkit.algorithms.subspace.search import Constants
from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.recipes.settings import TrainingConfig, WarmUpConfig, setting
from labkit.recipes.training import SNAPSHOTS, Recipe, Tree, make_step, momentum, warm_up_rates
from labkit.steps.losses import LossNet
from labkit.steps.parameter_groups import decay_groups
from labkit.steps.step import Step
from labkit.training.checkpoint import CHECKPOINTS, checkpoints


@dataclass(frozen=True)
class StageOneConfig(WarmUpConfig):
    """The first stage: an ordinary training that keeps snapshots of the weights."""

    epoch_size: int = setting(70, "epochs; the rate is then still at 0.188", within="total_epochs")
    total_epochs: int = setting(90, "epochs of the learning rate's schedule")
    warmup_epochs: int = setting(5, "epochs to the largest rate", at_least=0, within="total_epochs")
    snapshot_start_epoch: int = setting(1, "first epoch with snapshots", within="epoch_size")
    snapshots_per_epoch: int = setting(1, "at even distances; the last one at the epoch's end")
    snapshot_max: int | None = setting(40, "snapshots kept, the newest; None: all")
    save_checkpoint_epochs: int = 10
    keep_checkpoint_max: int = 10
    save_checkpoint_path: str = "runs/subspace/stage_1"


def build_stage_one(config: StageOneConfig, net: LossNet, micro_batches: int) -> Step:
    """Return the step cell, with optimizer and rates for epochs of ``micro_batches``."""
    if (saves := config.snapshots_per_epoch) > micro_batches:
        raise wrong("snapshots_per_epoch", saves, f"at most {micro_batches}, the micro-batches")
    updates = math.ceil(micro_batches / config.micro_steps)
    rates = warm_up_rates(config, config.total_epochs, updates)
    return make_step(config, net, momentum(config, net, rates))


@dataclass(frozen=True)
class StageTwoConfig(TrainingConfig):
    """The second stage: a search in the directions that the first stage's snapshots span."""

    stage_1: str = setting("runs/subspace/stage_1", "run folder of the first stage")
    pretrained_weight_path: str | None = setting(None, "checkpoint; None: the newest of stage_1")
    pca_mat_path: str | None = setting(
        None, "basis, loaded or made of the snapshots; None: pca_mat.safetensors beside these"
    )
    n_components: int = setting(32, "of the basis")
    rho: float = setting(0.55, "factor between the lengths of two trials of the search")
    sigma: float = setting(0.4, "share of the predicted decrease that the loss must show")
    trials: int = setting(20, "most trials of a search; MindSpore has 2")
    gamma: float = setting(0.9, "momentum of the residual")
    alpha: float = setting(0.001, "factor of the residual, which the optimizer takes")
    failure: str = setting("reset", "what a failed search forgets; or rollback")
    learning_rate: float = setting(1.0, "of nn.SGD, which takes what the search leaves")
    weight_decay: float = 0.0
    epoch_size: int = 2
    save_checkpoint_path: str = "runs/subspace/stage_2"

    def __post_init__(self) -> None:
        super().__post_init__()
        Constants(**self.constants())

    def constants(self) -> dict[str, Any]:
        """Return the constants of the search."""
        names = ("rho", "sigma", "trials", "gamma", "alpha", "failure")
        return {name: getattr(self, name) for name in names}


# "as_it_ran": what MindSpore does with the tutorial's settings. Two trials are fixed in its code,
# and its loss scale of 1024 stays in the residual: alpha is 1024 times 0.001.
STAGE_TWO = {
    "tutorial": StageTwoConfig(),
    "as_it_ran": StageTwoConfig(trials=2, alpha=1.024, failure="rollback"),
}


def build_stage_two(config: StageTwoConfig, net: LossNet, micro_batches: int) -> SubspaceStep:
    """Return the step cell; the network has the weights that the stage starts from."""
    # It applies the residual that the search leaves.
    optimizer = nn.SGD(decay_groups(net.network, config.weight_decay), config.learning_rate)
    weights, components = optimizer.parameters, config.n_components
    basis = basis_from(config.pca_mat_path, snapshot_folder(config), weights, components)
    options = config.constants() | config.step_options()
    return SubspaceStep(net, optimizer, basis, micro_steps=config.micro_steps, **options)


def pretrained(config: StageTwoConfig) -> Path:
    """Return the checkpoint to start from; raise ``InputError`` if there is none."""
    if config.pretrained_weight_path is not None:
        return Path(config.pretrained_weight_path)
    if not (of_stage_1 := checkpoints(Path(config.stage_1) / CHECKPOINTS)):
        raise InputError(
            f"{config.stage_1} holds no checkpoint; expected stage_1 to be the run folder of the "
            "first stage, or pretrained_weight_path"
        )
    return of_stage_1[-1]


def snapshot_folder(config: StageTwoConfig) -> Path | None:
    """Return the folder of the snapshots: that of the checkpoint's run, or else of stage_1."""
    # The tutorial's checkpoint_stage_1/FILE, or RUN/checkpoint/FILE.
    folder = pretrained(config).absolute().parent
    runs = (folder.parent, Path(config.stage_1))
    places = [folder / SNAPSHOTS, *(path for run in runs for path in run.glob(f"*/*/{SNAPSHOTS}"))]
    return next(filter(Path.is_dir, places), None)


STAGE_1 = Recipe(
    __doc__,
    {"tutorial": StageOneConfig()},
    build_stage_one,
    tree=Tree("device{}_stage_1", "checkpoint_stage_1"),
    losses=("============== Starting Training ==============", " loss is  "),
    snapshots=True,
    judged="============== Starting Testing ==============\n"
    "============== {{'Accuracy': {top_1_accuracy}}} ==============",
)
STAGE_2 = replace(
    STAGE_1,
    named=STAGE_TWO,
    build_step=build_stage_two,
    tree=Tree("device{}_stage_2", "checkpoint_stage_2"),
    snapshots=False,
    starts_from=pretrained,
)
