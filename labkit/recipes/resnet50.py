"""ResNet-50 on an image folder: the migration document's whole training, and its evaluation.

    labkit train resnet50 --data_path FOLDER --epoch_size 90
    labkit eval resnet50 --data_path FOLDER --checkpoint_path FILE
    labkit train resnet50 --data_path FOLDER --pretrained FILE [--freeze 2] [--lower_rate 0.1]

The third line is fine-tuning: the weights are those of FILE, of torchvision's names or of MindSpore
(labkit.migration.read_torch says which files). The head (fc) is loaded if it has as many classes as
the data, else it stays new; any other tensor must fit. The frozen stages keep their weights, and
their BatchNorm is in evaluation mode: it uses its running statistics, which stay as they are.

Source: "ResNet-50 migration", train.py and eval.py. Departures: a real warm-up, augmentation
(--augment False turns it off), exact shards, and torchvision's network. The defaults are those of
its sample code (docs/sample_code/migration_sample/src/config.py of MindSpore's docs, r1.6), with
256 images in an update on one device (batch_size=32 on each of 8), but for class_num, which is
counted in the data.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from labkit.base.arguments import wrong
from labkit.migration.files import read_torch
from labkit.migration.names import shapes_of
from labkit.migration.weights import load
from labkit.recipes.settings import TrainingConfig, setting
from labkit.recipes.training import Recipe, Tree, make_step
from labkit.steps.losses import LossNet
from labkit.steps.parameter_groups import decay_groups
from labkit.steps.schedules import cosine
from labkit.steps.step import Step


@dataclass(frozen=True)
class Config(TrainingConfig):
    """The settings of the migration document."""

    lr: float = setting(0.256, "largest learning rate", above=0)
    lr_end: float = setting(0.0, "last learning rate", within="lr")
    warmup: int = setting(1, "epochs to the largest rate", at_least=0, within="epoch_size")
    momentum: float = setting(0.875, "of nn.Momentum", below=1)
    class_num: int | None = None
    weight_decay: float = 1 / 32768
    precision: str = "O0"
    loss_scale: float = 1.0
    save_checkpoint_epochs: int = 5
    keep_checkpoint_max: int = 10
    save_checkpoint_path: str = "runs/resnet50"
    pretrained: str | None = setting(None, "weights file to start from: fine-tuning")
    freeze: int = setting(
        0, "frozen stages of a pretrained network; 1: conv1 to layer1, 4: all but the head",
        at_least=0, at_most=4,
    )  # fmt: skip
    lower_rate: float = setting(
        1.0, "of a pretrained network: factor of the rates below the head", above=0, at_most=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, default in (("freeze", 0), ("lower_rate", 1.0)):
            if self.pretrained is None and (value := getattr(self, name)) != default:
                raise wrong(name, value, f"{default} without pretrained")
        if self.freeze == 4 and self.lower_rate != 1:
            raise wrong("lower_rate", self.lower_rate, "1.0: freeze=4 leaves the head alone")


def prepare(config: Config, network: Any) -> list[str]:
    """Load ``config.pretrained``, freeze stages, and return what was done, in lines.

    Raises:
        InputError: naming the tensors that do not fit; the network is then unchanged.
    """
    state: Any = read_torch(config.pretrained or "")
    if state.mindspore:  # it may also hold an optimizer or a step
        own = {parameter.name for parameter in network.get_parameters()}
        state = {name: state[name] for name in state if name in own}
    fits = shapes_of(state).get("fc.weight") == network.fc.weight.shape
    matched = load(network, state, leave=None if fits else r"^fc\.")
    done = [f"loaded {len(matched.links)} parameters"]
    done += [f"left new: {line}" for line in matched.left]
    if config.freeze:
        frozen = ["conv1", "bn1", *(f"layer{n}" for n in range(1, config.freeze + 1))]
        for cell in [getattr(network, name) for name in frozen]:
            cell.set_train(False)
            for parameter in cell.trainable_params():
                parameter.requires_grad = False
        why = "their BatchNorm uses its running statistics, which stay"
        done.append(f"frozen: {', '.join(frozen)}; {why}")
    if config.lower_rate != 1:
        done.append(f"rates below the head: {config.lower_rate} of its own")
    return done


def build_step(config: Config, net: LossNet, micro_batches: int) -> Step:
    """Return the step cell, with optimizer and rates for epochs of ``micro_batches``."""
    updates = math.ceil(micro_batches / config.micro_steps)
    rates = cosine(config.lr, config.lr_end, config.epoch_size, updates, config.warmup)
    groups = decay_groups(net.network, config.weight_decay)
    if config.lower_rate != 1:
        groups = _lower(groups, set(map(id, net.network.fc.trainable_params())), config, rates)
    return make_step(config, net, nn.Momentum(groups, ms.Tensor(rates), config.momentum))


def _lower(groups: list[dict], head: set[int], config: Config, rates: np.ndarray) -> list[dict]:
    """Return the groups, each cut into the head and what is below it."""
    *members, order = groups
    lower = {"lr": ms.Tensor((rates * config.lower_rate).astype(rates.dtype))}
    cut = [
        group | rate | {"params": [p for p in group["params"] if (id(p) in head) == is_head]}
        for group in members
        for rate, is_head in ((lower, False), ({}, True))
    ]
    return [*(group for group in cut if group["params"]), order]


def _pretrained(config: Config) -> Path | None:
    return Path(config.pretrained) if config.pretrained else None


RECIPE = Recipe(
    __doc__,
    {"default": Config()},
    build_step,
    tree=Tree("", ""),
    starts_from=_pretrained,
    prepare=prepare,
)
