"""The parts of a training, built from a recipe's settings: data, network, loss, optimizer, step."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from labkit.base.arguments import wrong
from labkit.data import imagefolder, mnist
from labkit.data.imagefiles import class_names
from labkit.errors import InputError, warn
from labkit.nets import lenet, resnet
from labkit.nets.initialisers import initialise
from labkit.recipes.settings import TrainingConfig, WarmUpConfig
from labkit.steps import schedules
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import CrossEntropySmooth, LossNet
from labkit.steps.parameter_groups import decay_groups
from labkit.steps.step import PlainStep, Step
from labkit.training import checkpoint

# (training, evaluation): of the tutorials' code, of dimension reduction's text, of THOR's tutorial.
_FOLDERS = (("train", "val"), ("train", "validation_preprocess"), ("ilsvrc", "ilsvrc_eval"))


def datasets(
    config: TrainingConfig, path: str | Path, rank: int, ranks: int, only_evaluate: bool = False
) -> tuple[Any, Any, tuple[str, ...]]:
    """Return (training set or None, evaluation set or None, class names)."""
    workers: dict[str, Any] = {"num_parallel_workers": config.num_parallel_workers}
    train_set = None
    if config.depth is None:
        workers |= {"rank_size": ranks, "rank_id": rank}
        val_set = mnist.create_eval_dataset(path, **workers)
        if not only_evaluate:
            train_set = mnist.create_dataset(path, config.batch_size, usage="train", **workers)
        return train_set, val_set, tuple("0123456789")
    root, names = Path(path), _folders(Path(path))
    share = (config.batch_size, ranks, rank)
    options = workers | {"image_size": config.image_size}
    if only_evaluate:
        folder = root / names[1] if names else root
        val_set = imagefolder.create_dataset(folder, *share, do_train=False, **options)
        return None, val_set, class_names(folder)
    options["augment"] = config.augment
    if names is None:
        return imagefolder.create_dataset(root, *share, **options), None, class_names(root)
    return imagefolder.create_datasets(root, *share, train=names[0], val=names[1], **options)


def _folders(root: Path) -> tuple[str, str] | None:
    """Return the names of the training and evaluation folders; None: ``root`` holds the classes."""
    known = dict.fromkeys(name for pair in _FOLDERS for name in pair)
    there = [name for name in known if (root / name).is_dir()]
    for pair in _FOLDERS:
        if there == list(pair):
            return pair
    # A class may be called "train".
    if len(there) > 1 or (there and sum(entry.is_dir() for entry in root.iterdir()) == 1):
        pairs = " or ".join(f"{train}/ and {val}/" for train, val in _FOLDERS)
        raise InputError(f"{root} holds {', '.join(there)}; expected {pairs}, none besides")
    return None


def with_classes(config: TrainingConfig, classes: Sequence[object]) -> TrainingConfig:
    """Return ``config`` with a class_num that is at least the number of classes in the data."""
    wanted = config.class_num or len(classes)
    if wanted < len(classes):
        raise wrong("class_num", wanted, f"at least {len(classes)}, the data's classes, or None")
    return replace(config, class_num=wanted)


def build_network(config: Any) -> nn.Cell:
    """Return the network with its initial weights, the same on every rank right after ``start``.

    The scheme ``seed`` leaves the dense bias as MindSpore makes it, from the global random state.
    """
    if config.depth is None:
        return lenet.LeNet5(config.class_num)
    network = resnet.resnet(config.depth, config.class_num)
    initialise(network, config.initialiser, config.seed)
    return network


def build_loss(config: Any) -> CrossEntropySmooth:
    """Return the loss, cross entropy against smoothed labels."""
    factor = config.label_smooth_factor
    return CrossEntropySmooth(smooth_factor=factor, num_classes=config.class_num)


def loss_net(config: TrainingConfig, network: nn.Cell) -> LossNet:
    """Return the network with its loss."""
    return LossNet(network, build_loss(config))


def updates_in_epoch(config: TrainingConfig, micro_batches: int) -> int:
    """Return the updates in an epoch, where leftover micro-batches make an update of their own."""
    return -(-micro_batches // config.micro_steps)


def warm_up_rates(config: WarmUpConfig, epochs: int, updates: int) -> np.ndarray:
    """Return the learning rates of ``epochs`` epochs with ``updates`` updates each."""
    ends = (config.lr_init, config.lr_end, config.lr_max, config.warmup_epochs)
    return schedules.get_lr(*ends, epochs, updates)


def momentum(config: Any, network: nn.Cell, rates: np.ndarray | float) -> nn.Optimizer:
    """Return nn.Momentum with weight decay on weights only, and one rate or one for each update."""
    groups = decay_groups(network, config.weight_decay)
    rates = rates if isinstance(rates, float) else ms.Tensor(rates)
    return nn.Momentum(groups, rates, config.momentum)


def make_step(config: Any, net: LossNet, optimizer: nn.Optimizer, **options: Any) -> Step:
    """Return the step cell for the settings; it accumulates if micro_steps is more than 1."""
    options |= config.step_options()
    if config.micro_steps > 1:
        return AccumulatedStep(net, optimizer, config.micro_steps, **options)
    return PlainStep(net, optimizer, **options)


def load_network(network: nn.Cell, checkpoint_path: str | Path) -> None:
    """Set the network's Parameters from a checkpoint, which may also hold an optimizer or a step.

    The names may be those of the tutorials' ResNets, see ``labkit.nets.resnet``.

    Raises:
        InputError: if a Parameter is missing or has another shape; the network is then unchanged.
    """
    values = checkpoint.read(checkpoint_path)
    pooling = [name for name in values if resnet.pools(name)]
    values = {resnet.own_name(name): value for name, value in values.items()}
    own = {parameter.name for parameter in network.get_parameters()}
    kept = {name: value for name, value in values.items() if name in own}
    checkpoint.load_into(network, kept, checkpoint_path)
    if pooling:
        warn(
            f"{checkpoint_path} is of the migration document's network: its blocks pool where this "
            f"one strides ({pooling[0]}); the weights fit, and the function is another"
        )
