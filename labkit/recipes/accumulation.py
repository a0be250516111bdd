"""Gradient accumulation: the tutorial's LeNet-5 on MNIST, or a ResNet on an image folder.

    labkit train accumulation --data_path MNIST_Data
    labkit train accumulation --data_path FOLDER --settings resnet50
    labkit eval accumulation --data_path MNIST_Data --checkpoint_path FILE

MNIST_Data holds train/ and test/ (data_scripts/mnist.py makes it), FOLDER holds train/ and val/,
each with one folder per class.

Source: "Gradient Accumulation Algorithm" (MindSpore tutorial r1.0): LeNet-5 on MNIST, 4
micro-batches of 32 in an update, Momentum(0.01, 0.9), 3 epochs. Departures: the gradients are
averaged (source: --reduction sum), the last micro-batches of an epoch make an update of their own
(source: --tail carry), the two Rescales are in the right order (source: --rescale seed), and every
image counts in the evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from labkit.data import RESCALES
from labkit.errors import InputError
from labkit.recipes.settings import MixedConfig, one_of, positive, share
from labkit.recipes.training import Recipe
from labkit.steps import options as steps

if TYPE_CHECKING:
    from mindspore import nn

    from labkit.steps.step import Step

# Settings that apply only to the ResNet and to image folders.
_OF_RESNET = ("depth", "image_size", "initialiser", "augment", "cache_session_id")


@dataclass(frozen=True)
class AccumulationConfig(MixedConfig):
    """Everything that determines a training, except the data and the machine."""

    network: str = one_of(
        "lenet", ("lenet", "resnet"), "lenet: LeNet-5 on MNIST; resnet: a ResNet on an image folder"
    )
    learning_rate: float = positive(0.01, "of nn.Momentum, the same throughout")
    momentum: float = share(0.9, "of nn.Momentum")
    reduction: str = one_of("mean", steps.REDUCTION, "of labkit.AccumulatedStep; sum: the source")
    tail: str = one_of("flush", steps.TAILS, "what becomes of an epoch's last micro-batches")
    rescale: str = one_of("correct", RESCALES, "order of the two Rescales, see labkit.data.mnist")
    batch_size: int = 32
    micro_steps: int = 4
    epoch_size: int = 3
    class_num: int | None = None
    weight_decay: float = 0.0
    label_smooth_factor: float = 0.0
    precision: str = "O0"
    loss_scale: float = 1.0
    save_checkpoint_path: str = "runs/accumulation"

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = {each.name: each.default for each in fields(self)}
        for name in _OF_RESNET if self.network == "lenet" else ("rescale",):
            if getattr(self, name) != defaults[name]:
                raise InputError(
                    f"{name} is {getattr(self, name)} with network {self.network}, which has none; "
                    f"expected {defaults[name]}"
                )


# "resnet50": 256 images in an update, in micro-batches of 64.
NAMED = {
    "lenet": AccumulationConfig(),
    "resnet50": AccumulationConfig(
        network="resnet",
        batch_size=64,
        learning_rate=0.1,
        epoch_size=90,
        class_num=1001,
        weight_decay=1e-4,
        label_smooth_factor=0.1,
        precision="O2",
        loss_scale=1024.0,
    ),
}


def build_step(config: AccumulationConfig, network: nn.Cell, micro_batches: int) -> Step:
    """Return the step cell with its optimizer."""
    from mindspore import nn

    from labkit.recipes.parts import build_loss
    from labkit.steps.accumulation import AccumulatedStep
    from labkit.steps.losses import LossNet
    from labkit.steps.parameter_groups import decay_groups

    groups = decay_groups(network, config.weight_decay)
    return AccumulatedStep(
        LossNet(network, build_loss(config)),
        nn.Momentum(groups, config.learning_rate, config.momentum),
        config.micro_steps,
        reduction=config.reduction,
        tail=config.tail,
        **config.step_options(),
    )


RECIPE = Recipe(
    name="accumulation",
    description=__doc__,
    named=NAMED,
    build_step=build_step,
    data="MNIST's train/ and test/; for a ResNet train/ and val/",
)
train, evaluate_checkpoint = RECIPE.train, RECIPE.evaluate_checkpoint
